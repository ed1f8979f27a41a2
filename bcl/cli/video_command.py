"""bcl video."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from bcl.errors import counted
from bcl.settings import format_eps, parse_eps


@dataclass(frozen=True)
class Command:
    """Show an agent under attack: the game, the perturbation magnified, what the agent saw. Writes an mp4 and a GIF."""

    takes_settings: ClassVar[bool] = False

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE|zoo:NAME")]
    """A run directory, a policy file or an agent of `bcl zoo`."""
    attack: str = "pgd"
    """apgd, apgd-margin, corner-noise, fgsm, learned, mad, multi, multi-t, noise, pgd, pgd-N (N steps), ri-fgsm, square,
    worst-action or module:Attack."""
    eps: str | None = None
    """Budget, such as 3/255; 0 is no attack; by default the first of the run, or of the game's preset."""
    seed: int = 0
    """Seed of the game and of the attack: it is the episode that `bcl attack --episodes 1` judges with that seed."""
    steps: int = 600
    """Agent steps to show; 0: the whole episode."""
    fps: float = 15.0
    """Agent steps per second; Atari games are played at 15."""
    env_set: Literal["train", "eval"] | None = None
    """Procgen: the training levels, or the unlimited set."""
    out: Path | None = None
    """Folder; by default videos in the run, or in FILE.results beside the file."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def run(self, _: list[str]) -> None:
        """Play, draw, write."""
        if self.eps is not None:
            parse_eps(self.eps, "--eps")

        from bcl.api.filming import video
        from bcl.cli import console

        with console.progress(1) as bar:
            made = video(
                self.policy, attack=self.attack, eps=self.eps, seed=self.seed, steps=self.steps, fps=self.fps,
                env_set=self.env_set, out=self.out, device=self.device, onlooker=bar,
            )  # fmt: skip
        for file in (made.mp4, made.gif):
            print(f"{file}  {_size(file)}")
        print(
            f"return {made.total:.4g} after {counted(made.steps, 'step')}, {made.changed / made.steps:.0%} of actions changed"
        )
        against = f" --attack {self.attack} --eps {format_eps(made.eps)}" if made.eps else ""
        levels = f" --env-set {self.env_set}" if self.env_set else ""
        print(f"next: bcl attack {shlex.quote(str(self.policy))}{against}{levels}")


def _size(file: Path) -> str:
    size = file.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
