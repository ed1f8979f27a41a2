"""What is evaluated, and how it is played and proven, in one process or several."""

import contextlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bcl import zoo
from bcl.api import Budgets, Where, misfit, path_of, several, text
from bcl.api.agents import load, pick_device
from bcl.api.evaluating import ProgressListener
from bcl.api.workers import Workers
from bcl.attacks import Attack, attack_by_name, lacks_source, suite
from bcl.attacks.suites import with_name
from bcl.bounds import Method
from bcl.config import EvaluationConfig, evaluation_defaults
from bcl.errors import ConfigError, StoreError, WeightsError, counted
from bcl.evaluation import (
    Breaking,
    Cell,
    Certificate,
    Evaluation,
    Plan,
    Score,
    Start,
    flags,
    read_certificates,
    read_evaluations,
    worse_than_start,
)
from bcl.evaluation.plan import Conditions, Starts, game_for_evaluation
from bcl.evaluation.play import Progress
from bcl.evaluation.suite import PARTS, missing_cells, read_certified, run_suite
from bcl.experiment import worker
from bcl.experiment.learned_adversary import ready
from bcl.games import REFERENCE_NOOPS, Game
from bcl.policies import Policy, files
from bcl.runs import store
from bcl.runs.directory import Agent, Piece, RunDirectory
from bcl.runs.executors import Job, Watch
from bcl.runs.results import CertificatesFolder, Results, RowsFolder, ScoresFolder
from bcl.settings import parse_eps


@dataclass(frozen=True)
class Target:
    """A policy to be evaluated."""

    policy: Policy
    game: Game
    defaults: EvaluationConfig
    results: Results
    name: str
    """Where it was found."""
    began_from: Sequence[tuple[str, Agent]] = ()
    """Of a run: the agents that its training began from, with their names, as far as they are there."""
    missing: Sequence[str] = ()
    """Files of those that are not there."""
    kept: bool = True
    """Whether `results` stay; those of an agent in memory do not."""
    published: Sequence[tuple[Results, str]] = ()
    """Of an agent of the zoo: the results it was published with, and the fingerprint of who played them."""

    @property
    def published_proofs(self) -> tuple[Certificate, ...]:
        """Certificates that it was published with."""
        found = [read_certificates(results.certificates, player) for results, player in self.published]
        return tuple(proof for proofs in found for _, proof in proofs)

    @property
    def stored(self) -> list[Evaluation]:
        """All evaluations of it that are stored."""
        own = self.results, files.fingerprint(self.policy)
        return [one for results, player in (own, *self.published) for one in read_evaluations(results.scores, player)]

    def game_to_play(
        self, env_set: str | None, seed: int, episodes: int, num_envs: int = 0, starts: Starts = "game"
    ) -> Game:
        """The game as it is evaluated; with seed 0 and one episode per copy, up to 20, with the reference's starts."""
        one_each = 0 < episodes <= len(REFERENCE_NOOPS) and num_envs in (0, episodes)
        noops = episodes if seed == 0 and one_each and starts == "game" else 0
        return game_for_evaluation(self.game, env_set, self.defaults.max_steps, noops)

    def games_to_play(
        self, env_set: str | None, seed: int, episodes: int, num_envs: int = 0, starts: Starts = "game"
    ) -> list[Game]:
        """The same, of `both` the training levels and then the unlimited ones."""
        sets = ("train", "eval") if env_set == "both" else (env_set,)
        games = [self.game_to_play(levels, seed, episodes, num_envs, starts) for levels in sets]
        if len({*games}) < len(games):
            what = f"'{self.name}' was trained on unlimited levels, so that there is no other set"
            raise ConfigError(what, "leave out --env-set both")
        return games


@contextlib.contextmanager
def evaluated(agent: Policy | Where, device: str) -> Iterator[Target]:
    """A run's best policy, a policy file, or an agent in memory, on its own device unless one is named."""
    if not isinstance(agent, Policy):
        hint = "give a run, a policy file, zoo:NAME or a policy (bcl.wrap makes one of a module)"
        yield _target_of_path(path_of("agent", agent, hint), device)
        return
    with tempfile.TemporaryDirectory(prefix="bcl-") as temporary:
        policy = agent if device == "auto" else agent.to(pick_device(device))
        yield replace(_target_of_policy(policy, Results(Path(temporary)), "an agent in memory"), kept=False)


def _target_of_path(path: Path, device: str) -> Target:
    policy = load(path, pick_device(device))
    run = RunDirectory(path)
    results = run.results if path.is_dir() else files.results_of(path)
    if not run.exists:
        target = _target_of_policy(policy, results, str(path))
        return _as_published(target, agent) if (agent := zoo.find(path)) else target
    began_from = run.began_from(trained=files.fingerprint(policy))
    known = [one for one in began_from if store.exists(one[1].file)]
    missing = [str(start.file) for _, start in began_from if not store.exists(start.file)]
    config = run.config
    defaults = config.evaluation
    if run.reached > 0:  # its verdict's budget, which may not be one of the game's
        defaults = replace(defaults, eps=tuple(sorted({*defaults.eps, run.reached})))
    return Target(policy, config.game, defaults, results, str(path), known, missing)


def _as_published(target: Target, agent: zoo.ZooAgent) -> Target:
    """With an agent's published results, and by default their budgets and episodes, so that they are repeated."""
    budgets = tuple(parse_eps(eps) for eps in agent.returns if eps != "0")
    defaults = replace(target.defaults, eps=budgets, episodes=agent.episodes)
    return replace(target, defaults=defaults, published=[(agent.results, agent.judged)])


def _target_of_policy(policy: Policy, results: Results, name: str) -> Target:
    if policy.spec.game is None:
        raise WeightsError(f"'{name}' does not say which game it plays", "save it with a game in its spec")
    return Target(policy, policy.spec.game, evaluation_defaults(policy.spec.game), results, name)


def certified_episodes(target: Target, env_set: str | None, count: int, seed: int | None) -> tuple[Plan, str]:
    """What certificates are played on, one episode per copy; without a seed those of the agent's last evaluation, where
    that has as many. Then whether they are the same."""
    rows = [row for _, row in target.results.scores.read(files.fingerprint(target.policy))]
    last = Conditions.from_row(rows[-1], "the last score").plan if rows else None
    starts = target.defaults.starts
    if seed is None:
        seed, starts = (last.seed, last.starts) if last else (0, starts)
    plan = Plan(target.game_to_play(env_set, seed, count, starts=starts), count, seed, num_envs=count, starts=starts)
    if last is None:
        return plan, ""
    if (last.seed, last.starts, last.episodes, last.copies(), last.game) == (seed, starts, count, count, plan.game):
        return plan, "these are the episodes of the agent's last evaluation"
    return plan, f"the agent's last evaluation is of {counted(last.episodes, 'episode')}, seed {last.seed}"


@dataclass(frozen=True)
class Evaluator:
    """Makes scores and certificates that are missing, and tells a listener."""

    plan: Plan
    listener: ProgressListener
    parallel: int
    """Processes that share the work."""
    agents: int = 1
    """How many are played one after the other."""

    def scores(
        self,
        policy: Policy,
        wanted: Sequence[Cell],
        folder: ScoresFolder,
        number: int = 0,
        whose: str = "",
        published: tuple[Certificate, ...] = (),
    ) -> list[Score]:
        """The scores of an agent; `number`: how many agents were played before it, `whose`: what they are called,
        `published`: certificates beside those of the folder."""

        def begin(label: str) -> Progress:
            report = self.listener.begin(whose + label)
            return lambda done, of: report(number * of + done, self.agents * of)

        device = policy.device.type
        missing = missing_cells(folder, self.plan.conditions(files.fingerprint(policy), device), wanted)
        if self.parallel > 1 and len(missing) > 1:
            content = files.to_bytes(policy)
            shares = [missing[i :: self.parallel] for i in range(min(self.parallel, len(missing)))]
            orders = [("attack", content, self.plan, tuple(share), device, published) for share in shares]
            self._in_processes(folder, worker.evaluate, orders, begin(f"{len(missing)} scores"))
        scores = []
        trained = ready(policy, self.plan, folder, lambda label: self.listener.prepare(whose + label))
        found = run_suite(policy, self.plan, wanted, folder, begin, trained, published=published)
        for cell, score in zip(wanted, found, strict=True):
            scores.append(score)
            self.listener.finished(f"{whose}{score.label}{cell.where}: {score}")
        return scores

    def starts(self, target: Target, wanted: Sequence[Cell]) -> list[Start]:
        """What the training of a run began from, evaluated as the agent that came out."""
        found = []
        for number, (name, agent) in enumerate(target.began_from, 1):
            policy = files.load(agent.file, target.policy.device)
            scores = self.scores(policy, wanted, agent.results.scores, number, whose=f"start ({name}): ")
            found.append(Start(name, str(agent.file), scores))
        return found

    def prove_in_processes(
        self, policy: Policy, wanted: Sequence[float], method: Method, folder: CertificatesFolder
    ) -> None:
        """Missing certificates, where several processes share the work."""
        stored = read_certified(folder, self.plan, policy, method)[1]
        missing = [eps for eps in dict.fromkeys(wanted) if eps not in stored]
        if self.parallel > 1 and len(missing) > 1:
            content = files.to_bytes(policy)
            orders = [(content, self.plan, eps, method, policy.device.type) for eps in missing]
            report = self.listener.begin(f"{method} at {counted(len(missing), 'budget')}")
            self._in_processes(folder, worker.certify, orders, report)

    def _in_processes(
        self, folder: RowsFolder, work: Callable[..., None], orders: Sequence[tuple[Any, ...]], report: Progress
    ) -> None:
        """Jobs of this machine, whose rows are then joined."""
        jobs = [Job(folder.path, work, (number, *order)) for number, order in enumerate(orders)]
        shares = dict[Path, float]()
        began = time.time()

        def tick() -> None:
            for number in range(len(jobs)):
                path = folder.progress(number)
                with contextlib.suppress(FileNotFoundError, StoreError):
                    if path.stat().st_mtime >= began:
                        told = Piece.read(path)
                        shares[path] = told.done / told.of
                    continue
                if path in shares:
                    shares[path] = 1.0  # it was there, and ended
            report(round(PARTS * sum(shares.values())), PARTS * len(jobs))

        for _ in Workers(parallel=self.parallel).make_executor().run(jobs, Watch(tick=tick)):
            pass
        folder.gather()


def with_flags(
    target: Target,
    games: Sequence[Game],
    scores: Sequence[Score],
    floors: Sequence[Score],
    began_from: Sequence[Start],
    breaking: Breaking | None,
) -> Evaluation:
    """The first game's evaluation, which holds that of unlimited levels where these are the second; scores are in the
    order of `on_each`, and there are no floors without `sanity`."""
    kept = target.results.scores.path if target.kept else None
    stored = target.stored
    found = []
    for number, game in enumerate(games):
        own = slice(number, None, len(games))
        ours = scores[own]
        starts = [replace(start, scores=start.scores[own]) for start in began_from]
        floor = floors[number] if floors else None
        raised = flags(ours, floor)
        for start in starts:
            raised += worse_than_start(ours, start.scores, start.file)
        one = Evaluation(game, ours, target.name, raised, floor, kept, starts, target.missing, breaking)
        found.append(replace(one, lower=one.lower_elsewhere(stored)))
    return replace(found[0], unlimited=found[1]) if len(found) > 1 else found[0]


def budgets(eps: Budgets | None) -> list[float]:
    """Those that were given; empty: the game's."""
    return [] if eps is None else [parse_eps(e) for e in several("eps", eps)]


def chosen_attacks(name: str | None, attacks: str | Attack | Sequence[str | Attack] | None) -> list[Attack]:
    """Those of a suite, or single ones."""
    if attacks is None:
        return list(suite("quick" if name is None else text("suite", name, "give its name, such as 'paper'")))
    if name is not None:
        raise ConfigError("both a suite and single attacks were given", "give one of the two")
    found = [named_attack(attack) for attack in several("attacks", attacks)]
    for attack in filter(lacks_source, found):
        warnings.warn(
            f"the source of {attack} cannot be read, so it is played again each time; put it into a file of its own",
            stacklevel=3,
        )
    return found


def named_attack(attack: Any, name: str = "attacks") -> Attack:
    """An attack by name, or as it is."""
    hint = "give a name such as 'pgd-30', or an attack such as RIFGSM()"
    if isinstance(attack, type):
        raise misfit(name, attack, hint)
    if callable(attack):
        return with_name(attack, getattr(attack, "__name__", type(attack).__name__))
    return attack_by_name(text(name, attack, hint))
