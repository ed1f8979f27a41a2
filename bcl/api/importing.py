"""bcl.import_policy.

The command line reads its signature for its help: nothing heavy is imported at the top.
"""

from collections.abc import Callable
from typing import Any

from bcl.api import Policy, Where, game_of, path_of, text
from bcl.errors import WeightsError
from bcl.games import Game


def import_policy(
    path: Where, format: str, game: str | Game | Callable[..., Any], *, normalise: Where | None = None
) -> Policy:
    """Convert a published checkpoint into a bcl policy, without running anything it carries.

    `bcl.save` writes the policy to a file.

    Args:
        path: The foreign checkpoint.
        format: radial-dqn (radial_rl_v2, SA-DQN, BCL), radial-dqn-v1 (radial_rl), radial-ppo (Procgen) or sb3 (a
            Stable-Baselines3 DQN, PPO or A2C zip).
        game: The game it plays, such as fruitbot.
        normalise: sb3: an npz file with mean and var of VecNormalize's obs_rms, and its epsilon, where the agent was trained
            behind it.
    """
    text("format", format, "give its name, such as 'sb3'")
    statistics = None if normalise is None else path_of("normalise", normalise)
    if statistics and not statistics.is_file():
        raise WeightsError(f"normalise = '{statistics}' is not a file", "give the npz file of the statistics")
    from bcl.policies import importers

    return importers.import_policy(path_of("path", path), format, game_of(game), statistics)
