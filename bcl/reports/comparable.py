"""What can be compared: runs, repeats and policy files with the scores that lie beside them, and which were judged alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bcl.config import Config, EvaluationConfig, preset_for, resolve
from bcl.errors import ConfigError, StoreError, WeightsError
from bcl.evaluation import Evaluation, read_evaluations
from bcl.evaluation.evaluation import Levels
from bcl.games import Game
from bcl.policies.files import is_policy, load
from bcl.reports.collect import judged_policy
from bcl.reports.history import Effort, effort
from bcl.runs.directory import EVALS, RunDirectory, runs_of


@dataclass(frozen=True)
class Entry:
    """What was given: a run, its repeats, or a policy file."""

    label: str
    path: Path
    config: Config | None
    """Of a run."""
    members: tuple[tuple[str, tuple[Evaluation, ...]], ...]
    """Each agent's name and evaluations; several where there are repeats."""
    scored: tuple[float, ...]
    """Budgets of the final score."""
    efforts: tuple[Effort, ...]
    flags: tuple[tuple[str, ...], ...] = ()
    """Of a run's verdict, by member."""

    @property
    def game(self) -> Game:
        """That its first agent was judged on."""
        return self.members[0][1][0].game


def read_entry(path: Path, label: str) -> Entry:
    """A finished run, finished repeats, or a policy file."""
    if is_policy(path):
        policy = load(path)
        if policy.spec.game is None:
            raise WeightsError(f"'{path}' does not say which game it plays", "save it with a game in its spec")
        preset = preset_for(policy.spec.game)
        usual = resolve(preset).evaluation if preset else EvaluationConfig()
        member = _member(path.name, judged_policy(path, policy), path)
        return Entry(label, path, None, (member,), usual.scored, ())
    runs = runs_of(path)
    config = runs[0].config
    if not all(run.finished for run in runs):
        raise StoreError(f"'{path}' is not finished", f"'bcl resume {path}' does what is left")
    for run in runs:
        run.check_unchanged()
    verdicts = [_verdict(run) for run in runs]
    members = tuple(
        _member(run.path.name, [(run.path, agent)], run.path) for run, (agent, _) in zip(runs, verdicts, strict=True)
    )
    efforts = tuple(effort(run.path) for run in runs)
    return Entry(label, path, config, members, config.evaluation.scored, efforts, tuple(flags for _, flags in verdicts))


def _verdict(run: RunDirectory) -> tuple[str, tuple[str, ...]]:
    """A run's agent and its flags."""
    data = run.result()
    policy, flags = data.get("policy"), data.get("flags", [])
    if not isinstance(policy, str) or not policy or not isinstance(flags, list):
        raise StoreError(f"'{run.result_file}' is damaged: it names no agent", "delete it and resume the run")
    return policy, tuple(map(str, flags))


def _member(name: str, results: Sequence[tuple[Path, str]], path: Path) -> tuple[str, tuple[Evaluation, ...]]:
    found = [judged for folder, policy in results for judged in read_evaluations(folder / EVALS, policy)]
    if not found:
        raise StoreError(f"'{path}' has not been judged", f"'bcl attack {path} --suite paper' does it")
    return name, tuple(found)


def judged_alike(entries: Sequence[Entry], levels: Levels) -> dict[str, list[Evaluation]]:
    """For every entry that was judged on these levels, one evaluation per member, all under the same conditions, chosen as
    `_sharing` says. Empty: no entry was, in all its repeats."""
    pools = {
        entry.label: [[judged for judged in evaluations if judged.levels == levels] for _, evaluations in entry.members]
        for entry in entries
    }
    pools = {label: members for label, members in pools.items() if all(members)}
    every = [members for pool in pools.values() for members in pool]
    if not every:
        return {}
    common = set.intersection(*({judged.conditions for judged in members} for members in every))
    if not common:
        names = " and ".join(f"'{entry.path}'" for entry in entries)
        raise ConfigError(
            f"{names} were not judged alike", "give 'bcl attack' the same --suite, --eps and --episodes for each"
        )
    candidates = [judged for members in every for judged in members if judged.conditions in common]
    picks = [pick for one in candidates for seed in (one.seed, None) if (pick := _alike(pools, one, seed))]
    return max(picks, key=_sharing)


def _alike(pools: dict[str, list[list[Evaluation]]], like: Evaluation, seed: int | None) -> dict[str, list[Evaluation]]:
    """Of every member what shares most with `like`, then most of it all; empty where one has nothing with that seed."""
    shared, picked = {*like.cells}, dict[str, list[Evaluation]]()
    for label, pool in pools.items():
        for members in pool:
            fitting = [one for one in members if one.conditions == like.conditions and seed in (None, one.seed)]
            if not fitting:
                return {}
            most = max(fitting, key=lambda one: (len(shared & one.cells.keys()), len(one.cells)))
            shared &= most.cells.keys()
            picked.setdefault(label, []).append(most)
    return picked


def _sharing(alike: dict[str, list[Evaluation]]) -> tuple[int, int, bool, int]:
    """By what an evaluation is chosen. Episodes come before attacks: a quick try of more attacks on fewer episodes must not
    displace a run's verdict."""
    everyone = [judged for members in alike.values() for judged in members]
    shared = set.intersection(*({*judged.cells} for judged in everyone))
    return (
        everyone[0].episodes,
        len(shared),
        len({judged.seed for judged in everyone}) == 1,
        sum(len(judged.cells) for judged in everyone),
    )
