"""Games behind one vector interface."""

import torch

from bcl.envs.vector import Step, VariedStarts, VectorEnv
from bcl.games import AtariGame, Game, ProcgenGame


def make_env(
    game: Game, num_envs: int, device: str | torch.device = "cpu", threads: int = 0, *, render: bool = False
) -> VectorEnv:
    """See `bcl.make_env`."""
    device = torch.device(device)
    if isinstance(game, AtariGame):
        from bcl.envs.atari import AtariEnvs

        return AtariEnvs(game, num_envs, device, threads, render)
    if isinstance(game, ProcgenGame):
        from bcl.envs.procgen import ProcgenEnvs

        return ProcgenEnvs(game, num_envs, device, threads, render)
    from bcl.envs.gymnasium import GymnasiumEnvs

    return GymnasiumEnvs(game, num_envs, device, threads, render)
