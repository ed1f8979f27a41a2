"""Games behind one vector interface."""

import torch

from bcl.envs.vector import Step, VariedStarts, VectorEnv
from bcl.errors import GameError
from bcl.games import AtariGame, Game, ProcgenGame


def make_env(
    game: Game, num_envs: int, device: str | torch.device = "cpu", threads: int = 0, *, render: bool = False
) -> VectorEnv:
    """See `bcl.make_env`."""
    if num_envs < 1:
        raise GameError(f"{num_envs} environments cannot be played", "ask for at least 1")
    if threads < 0:
        raise GameError(f"{threads} threads cannot run", "give 0 or more")
    device = torch.device(device)
    if isinstance(game, AtariGame):
        from bcl.envs.atari import AtariEnvs

        return AtariEnvs(game, num_envs, device, threads, render)
    if isinstance(game, ProcgenGame):
        from bcl.envs.procgen import ProcgenEnvs

        return ProcgenEnvs(game, num_envs, device, threads, render)
    from bcl.envs.gymnasium import GymnasiumEnvs

    return GymnasiumEnvs(game, num_envs, device, threads, render)
