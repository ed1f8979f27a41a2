"""bcl video."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from bcl.errors import ConfigError
from bcl.games import OBSERVATION_NAMES
from bcl.quantities import format_eps, parse_eps
from bcl.runs import store

if TYPE_CHECKING:
    from bcl.evaluation import Moment


@dataclass(frozen=True)
class Command:
    """Show an agent under attack: the game, the perturbation magnified, what the agent saw. Writes an mp4 and a GIF."""

    takes_settings: ClassVar[bool] = False

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")]
    """A run directory or a policy file."""
    attack: str = "pgd"
    """By name, such as pgd, ri-fgsm or square."""
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
        given = None if self.eps is None else parse_eps(self.eps, "--eps")
        if self.steps < 0:
            raise ConfigError(f"--steps {self.steps} is not possible", "give 1 or more, or 0 for the whole episode")
        if not 1 <= self.fps <= 240:
            raise ConfigError(f"--fps {self.fps:g} is not possible", "give 1 to 240")

        from bcl.api.target import find_target, paper_starts
        from bcl.attacks import attack_by_name
        from bcl.cli import console
        from bcl.envs import make_env
        from bcl.evaluation import game_for_evaluation, watch
        from bcl.reports.encode import encode, ffmpeg
        from bcl.reports.video import Subject, frames

        ffmpeg()  # before anything is played
        attack = attack_by_name(self.attack)
        target = find_target(self.policy, self.device)
        eps = target.defaults.eps[0] if given is None else given
        stem = (self.out or target.results / "videos") / self._name(eps)
        _try_to_write(stem)
        starts = paper_starts(self.seed, 1)
        game = game_for_evaluation(target.game, self.env_set, target.defaults.max_steps, starts)
        envs = make_env(game, 1, next(target.policy.parameters()).device, render=len(target.policy.spec.obs_shape) == 1)
        dimensions = OBSERVATION_NAMES.get(game.id, ())
        subject = Subject(game.id, repr(attack) if eps else "", eps, envs.action_names, dimensions)
        tally = _Tally()
        try:
            with console.progress(1) as bar:
                moments = watch(target.policy, envs, attack, eps, seed=self.seed, steps=self.steps or None)
                shown = tally.of(moments, self.steps, bar.begin("playing"))
                mp4, gif = encode(frames(shown, subject), self.fps)
        finally:
            envs.close()
        for suffix, data in ((".mp4", mp4), (".gif", gif)):
            store.write_bytes(stem.with_name(stem.name + suffix), data)
            print(f"{stem}{suffix}  {len(data) / 1e6:.1f} MB")
        print(
            f"return {tally.total:.4g} after {tally.steps} steps, {tally.changed / tally.steps:.0%} of actions changed"
        )
        against = f" --attack {self.attack} --eps {format_eps(eps)}" if eps else ""
        levels = f" --env-set {self.env_set}" if self.env_set else ""
        print(f"next: bcl attack {shlex.quote(str(self.policy))}{against}{levels}")

    def _name(self, eps: float) -> str:
        """Of the files, without their endings."""
        words = f"{self.attack} eps {format_eps(eps)}" if eps else "no attack"
        words += f" {self.env_set} levels" if self.env_set else ""
        return re.sub(r"[^a-z0-9.]+", "-", f"{words} seed {self.seed}".lower())


def _try_to_write(path: Path) -> None:
    """Before the work: a folder that cannot be written is an error now."""
    trial = path.with_name(f".{path.name}.trial")
    store.write_bytes(trial, b"")
    store.remove(trial)


class _Tally:
    """What passed by."""

    steps = changed = 0
    total = 0.0

    def of(self, moments: Iterable["Moment"], steps: int, report: Callable[[int, int], None]) -> Iterator["Moment"]:
        for moment in moments:
            self.steps, self.total = self.steps + 1, moment.total
            self.changed += moment.wanted != moment.taken
            report(self.steps, steps or self.steps)
            yield moment
