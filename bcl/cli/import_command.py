"""bcl import."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bcl.config import resolve
from bcl.errors import StoreError, counted
from bcl.settings import parse_flags


@dataclass(frozen=True)
class Command:
    """Convert a published checkpoint into a bcl policy, without running anything it carries."""

    takes_settings: ClassVar[bool] = True

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The foreign checkpoint."""
    format: str
    """radial-dqn (radial_rl_v2, SA-DQN, BCL), radial-dqn-v1 (radial_rl), radial-ppo (Procgen) or sb3 (a
    Stable-Baselines3 DQN, PPO or A2C zip)."""
    game: str
    """The game it plays, such as fruitbot."""
    out: Path
    """The file to write; must not exist."""
    normalise: Path | None = None
    """sb3: an npz file with mean and var of VecNormalize's obs_rms, where the agent was trained behind it."""

    def run(self, settings: list[str]) -> None:
        """Convert and save."""
        if os.path.lexists(self.out):
            raise StoreError(f"'{self.out}' exists already", "give another --out")
        config = resolve(self.game, flags=parse_flags(settings))

        from bcl.policies.files import save
        from bcl.policies.importers import import_policy

        policy = import_policy(self.file, self.format, config.game, self.normalise)
        save(policy, self.out)
        parameters = sum(p.numel() for p in policy.parameters())
        print(
            f"{self.out}: {policy.spec.kind} for {policy.spec.algo}, {counted(parameters, 'parameter')}, "
            f"{counted(policy.spec.num_actions, 'action')}, {self.game}"
        )
        print(f"next: bcl attack {self.out}")
