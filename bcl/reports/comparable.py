"""What can be compared: runs, repeats and policy files, and which of their evaluations have the same conditions."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bcl.config import Config, evaluation_defaults
from bcl.errors import ConfigError, StoreError
from bcl.evaluation import Evaluation
from bcl.evaluation.evaluation import Levels
from bcl.evaluation.plan import Starts
from bcl.experiment.verdict import Verdict
from bcl.games import Game
from bcl.policies.files import is_policy
from bcl.reports.collect import LATER, beside_the_start, flagged, load_with_game, read_results, results_of_policy
from bcl.reports.history import Effort, effort
from bcl.runs.directory import RunDirectory, runs_of
from bcl.runs.results import Results


@dataclass(frozen=True)
class Member:
    """One agent."""

    name: str
    evaluations: tuple[Evaluation, ...]
    effort: Effort | None = None
    """Of a run."""
    flags: tuple[str, ...] = ()
    """Of a run's verdict."""

    def on(self, levels: Levels, starts: Starts | None = None) -> list[Evaluation]:
        """Its evaluations on one of Procgen's sets of levels, with these starts or any."""
        return [one for one in self.evaluations if one.levels == levels and starts in (None, one.starts)]


@dataclass(frozen=True)
class Entry:
    """What was given: a run, its repeats, or a policy file."""

    label: str
    path: Path
    config: Config | None
    """Of a run."""
    scored: tuple[float, ...]
    """Budgets of the final score."""
    members: tuple[Member, ...]
    """Several where there are repeats."""

    @property
    def game(self) -> Game:
        """That its first agent was evaluated on."""
        return self.members[0].evaluations[0].game

    @property
    def efforts(self) -> list[Effort]:
        """Of its runs."""
        return [member.effort for member in self.members if member.effort]


def read_entry(path: Path, label: str) -> Entry:
    """A finished run, finished repeats, or a policy file."""
    if is_policy(path):
        policy, game = load_with_game(path)
        member = Member(path.name, _evaluations(path, results_of_policy(path, policy)))
        return Entry(label, path, None, evaluation_defaults(game).scored, (member,))
    runs = runs_of(path)
    config = runs[0].config
    if not all(run.finished for run in runs):
        raise StoreError(f"'{path}' is not finished", f"'bcl resume {shlex.quote(str(path))}' does what is left")
    for run in runs:
        run.check_unchanged()
    return Entry(label, path, config, config.evaluation.scored, tuple(map(_member, runs)))


def _member(run: RunDirectory) -> Member:
    verdict = Verdict.read(run)  # refuses a run whose evidence is damaged
    policy = run.result().get("policy")
    if not isinstance(policy, str) or not policy:
        raise StoreError(f"'{run.result_file}' is damaged: it names no agent", "delete it and resume the run")
    found = _evaluations(run.path, [(run.results, policy)])
    if start := run.start(policy):
        found = tuple(beside_the_start(run, found, verdict, *start))
    return Member(run.path.name, found, effort(run.path), tuple(map(str, verdict.evaluation.flags)))


def _evaluations(path: Path, results: Iterable[tuple[Results, str]]) -> tuple[Evaluation, ...]:
    found = tuple(flagged(one, LATER) for one in read_results(results))
    if not found:
        raise StoreError(
            f"'{path}' has not been evaluated", f"'bcl attack {shlex.quote(str(path))} --suite paper' does it"
        )
    return found


def common_starts(entries: Sequence[Entry], levels: Levels) -> list[Starts | None]:
    """Both, where all that was evaluated on these levels has both: the paper's first. Else none: what is alike decides."""
    both: list[Starts] = ["game", "varied"]
    members = [member for entry in entries for member in entry.members if member.on(levels)]
    return [*both] if all(member.on(levels, starts) for member in members for starts in both) else [None]


def evaluated_alike(entries: Sequence[Entry], levels: Levels, starts: Starts | None) -> dict[str, list[Evaluation]]:
    """By entry that was evaluated on these levels, one evaluation per member, all under the same conditions, chosen by
    `_sharing`."""
    members = [(entry.label, member.on(levels, starts)) for entry in entries for member in entry.members]
    absent = {label for label, evaluations in members if not evaluations}
    pools = [(label, evaluations) for label, evaluations in members if label not in absent]
    if not pools:
        return {}
    every = [evaluations for _, evaluations in pools]
    tries = [(like, seed) for evaluations in every for like in evaluations for seed in (like.seed, None)]
    picks = [pick for like, seed in tries if (pick := _alike(every, like, seed))]
    if not picks:
        names = " and ".join(f"'{entry.path}'" for entry in entries)
        way_out = "give 'bcl attack' the same --suite, --eps and --episodes for each"
        raise ConfigError(f"{names} were not evaluated alike", way_out)
    best = max(picks, key=_sharing)
    chosen = dict[str, list[Evaluation]]()
    for (label, _), one in zip(pools, best, strict=True):
        chosen.setdefault(label, []).append(one)
    return chosen


def _alike(pools: Sequence[Sequence[Evaluation]], like: Evaluation, seed: int | None) -> list[Evaluation]:
    """The evaluation of every member that shares most with `like`; empty where a member has none with that seed."""
    shared = {*like.cells}
    picked = []
    for evaluations in pools:
        fitting = [one for one in evaluations if one.conditions == like.conditions and seed in (None, one.seed)]
        if not fitting:
            return []
        picked.append(max(fitting, key=lambda one: (len(shared & one.cells.keys()), len(one.cells))))
        shared &= picked[-1].cells.keys()
    return picked


def _sharing(alike: Sequence[Evaluation]) -> tuple[int, int, bool, int]:
    """Sort key. Episodes come before attacks: a short evaluation with more attacks on fewer episodes must not replace a verdict."""
    shared = set.intersection(*({*one.cells} for one in alike))
    one_seed = len({one.seed for one in alike}) == 1
    return alike[0].episodes, len(shared), one_seed, sum(len(one.cells) for one in alike)
