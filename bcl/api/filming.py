"""bcl.video, which `bcl video` calls."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bcl.api import Where, given, path_of, whole
from bcl.api.agents import judged, paper_starts
from bcl.api.evaluating import NOBODY, Onlooker, named_attack
from bcl.attacks import Attack, attack_label
from bcl.envs import make_env
from bcl.errors import ConfigError
from bcl.evaluation import Cell, Moment, Plan, game_for_evaluation, watch
from bcl.evaluation.certify import USUAL_LENGTH
from bcl.evaluation.play import Progress
from bcl.experiment.learned_adversary import ready
from bcl.games import OBSERVATION_NAMES
from bcl.policies import Policy
from bcl.reports.video import Subject, encode, ffmpeg, frames
from bcl.runs import store
from bcl.settings import format_eps, parse_eps


@dataclass
class Video:
    """Two files, and what they show."""

    mp4: Path
    gif: Path
    eps: float
    steps: int = 0
    changed: int = 0
    """Steps in which the attack changed the action."""
    total: float = 0.0
    """The return."""

    def passing(self, moments: Iterable[Moment], steps: int, report: Progress) -> Iterator[Moment]:
        """The same moments, counted as they pass."""
        for moment in moments:
            self.steps, self.total = self.steps + 1, moment.total
            self.changed += moment.wanted != moment.taken
            report(self.steps, steps or max(USUAL_LENGTH, self.steps))
            yield moment


def video(
    agent: Policy | Where,
    *,
    attack: str | Attack = "pgd",
    eps: float | str | None = None,
    seed: int = 0,
    steps: int = 600,
    fps: float = 15.0,
    env_set: Literal["train", "eval"] | None = None,
    out: Where | None = None,
    device: str = "auto",
    onlooker: Onlooker = NOBODY,
) -> Video:
    """Show an agent under attack in an mp4 and a GIF, as `bcl video` does; its options are these."""
    budget = None if eps is None else parse_eps(eps)
    seed, steps = whole("seed", seed), whole("steps", steps)
    if steps < 0:
        raise ConfigError(f"steps = {steps} is not possible", "give 1 or more, or 0 for the whole episode")
    if not 1 <= given("fps", fps, (int, float), "give a number") <= 240:
        raise ConfigError(f"fps = {fps:g} is not possible", "give 1 to 240")
    if out is None and isinstance(agent, Policy):
        raise ConfigError("an agent in memory has no folder", "say where the video goes: out='videos'")
    ffmpeg()  # before anything is played
    adversary = named_attack(attack)
    with judged(agent, device) as target:
        policy, eps = target.policy, target.defaults.eps[0] if budget is None else budget
        game = game_for_evaluation(target.game, env_set, target.defaults.max_steps, paper_starts(seed, 1))
        folder = path_of("out", out) if out else target.results / "videos"
        if folder.suffix.lower() in (".mp4", ".gif"):
            raise ConfigError(f"'{folder}' is to be a folder, for an mp4 and a GIF", "leave the ending out")
        stem = stem_of(attack if isinstance(attack, str) else attack_label(attack), eps, env_set, seed)
        made = Video(folder / f"{stem}.mp4", folder / f"{stem}.gif", eps)
        store.try_to_write(made.mp4)  # a folder that cannot be written is an error before the work
        render = len(policy.spec.obs_shape) == 1
        with contextlib.closing(make_env(game, 1, next(policy.parameters()).device, render=render)) as envs:
            dimensions = OBSERVATION_NAMES.get(game.id, ())
            subject = Subject(game.id, adversary if eps else None, eps, envs.action_names, dimensions)
            onlooker.start(1)
            played = ready(policy, Plan(game, 1, seed), target.results / "evals", onlooker.begin)(Cell(adversary, eps))
            moments = watch(policy, envs, played.attack, eps, seed=seed, steps=steps or None)
            shown = frames(made.passing(moments, steps, onlooker.begin("playing")), subject)
            for path, data in zip((made.mp4, made.gif), encode(shown, fps), strict=True):
                store.write_bytes(path, data)
    return made


def stem_of(attack: str, eps: float, env_set: str | None, seed: int) -> str:
    """Name of the files, without their endings."""
    words = f"{attack} eps {format_eps(eps)}" if eps else "no attack"
    words += f" {env_set} levels" if env_set else ""
    return re.sub(r"[^a-z0-9.]+", "-", f"{words} seed {seed}".lower())
