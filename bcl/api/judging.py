"""bcl.evaluate and bcl.certify, which `bcl attack` and `bcl certify` call."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from bcl.api import Where, given, several, whole
from bcl.api.agents import Target, judged, paper_starts, pick_device
from bcl.api.workers import Workers
from bcl.attacks import Attack, attack_by_name
from bcl.attacks import suite as attacks_of
from bcl.attacks.names import attack_label
from bcl.bounds import Method
from bcl.errors import ConfigError, MissingExtra, StoreError, counted
from bcl.evaluation import (
    Breaking,
    Cell,
    Certificate,
    Flag,
    Plan,
    Score,
    Worst,
    affordable_method,
    cell_file,
    cells,
    find_breaking,
    flags,
    game_for_evaluation,
    run_certificates,
    run_floor,
    run_suite,
    worse_than_start,
    worst,
    worst_within,
)
from bcl.evaluation.breaking import BREAKING
from bcl.evaluation.suite import CERTS, PARTS, Starts, certificate_file
from bcl.experiment import Start, worker
from bcl.experiment.learned_adversary import ready
from bcl.games import Game, game_to_dict
from bcl.policies import Policy, files
from bcl.reports.tables import Table, as_html
from bcl.runs import store
from bcl.runs.executors import Job
from bcl.settings import format_eps, parse_eps

Progress = Callable[[int, int], None]
Budgets = float | str | Sequence[float | str]
Suite = Literal["quick", "paper", "strong", "learned"]


class Onlooker(Protocol):
    """Told how far the work is."""

    def start(self, units: int) -> object:
        """So many scores or certificates will be made."""
        ...

    def begin(self, label: str) -> Progress:
        """One begins; the result is told how much of how much is done, of the whole work."""
        ...

    def finished(self, line: str) -> object:
        """One is done, and this is what came out."""
        ...


class Nobody:
    """An onlooker who hears nothing."""

    def start(self, units: int) -> None:
        """Nothing."""

    def begin(self, label: str) -> Progress:
        """Nothing."""
        return lambda done, of: None

    def finished(self, line: str) -> None:
        """Nothing."""


NOBODY = Nobody()


@dataclass(frozen=True)
class Evaluation:
    """How an agent does under every attack at every budget, and what to think of it."""

    agent: str
    game: Game
    episodes: int
    seed: int
    scores: list[Score]
    """Nominal play first."""
    floor: Score | None
    """With `sanity`: play in which every action is the one the policy scores lowest."""
    flags: list[Flag]
    """Reasons to distrust the scores (docs/flags.md)."""
    folder: Path | None
    """Where every score lies, so that asking again plays only what is missing; none for an agent in memory."""
    start: Start | None = None
    """Of a run: the same scores of the agent that its training began from."""
    breaking: Breaking | None = None
    """With `find_eps`: the smallest budget of each attack that breaks the agent."""

    @property
    def nominal(self) -> Score:
        """Without attack."""
        return self.scores[0]

    @property
    def worst(self) -> dict[float, Worst]:
        """The worst attack at exactly each budget above 0, as in the paper's tables."""
        return worst(self.scores)

    @property
    def worst_within(self) -> dict[float, Worst]:
        """The worst case within each budget above 0: smaller budgets count too, and so does play without attack."""
        return worst_within(self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `bcl attack --json` prints."""
        return {
            "game": game_to_dict(self.game),
            "policy": self.agent,
            "scores": [score.to_dict() for score in self.scores],
            "worst": {format_eps(eps): asdict(lowest) for eps, lowest in self.worst.items()},
            "worst_within": {format_eps(eps): asdict(lowest) for eps, lowest in self.worst_within.items()},
            "floor": self.floor and self.floor.to_dict(),
            "flags": [asdict(flag) for flag in self.flags],
            "breaking": self.breaking and self.breaking.to_dict(),
            "start": self.start and self.start.to_dict(),
        }

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row per score."""
        rows = [
            {"attack": _attack(s), "eps": s.eps, "mean": s.mean, "sem": s.sem, "changed": s.changed}
            for s in self.scores
        ]
        return _frame(rows)

    def __repr__(self) -> str:
        return f"Evaluation({self.agent} on {self.game.id}, {counted(len(self.scores), 'score')})"

    def _repr_html_(self) -> str:
        budgets = sorted({score.eps for score in self.scores})
        cells = {(_attack(score), score.eps): str(score) for score in self.scores}
        cells |= {("worst within", eps): f"{lowest.mean:.4g}" for eps, lowest in self.worst_within.items()}
        rows = [(name, *(cells.get((name, eps), "") for eps in budgets)) for name in dict.fromkeys(n for n, _ in cells)]
        title = f"{self.game.id}: mean return ± standard error, {counted(self.episodes, 'episode')}, seed {self.seed}"
        notes = tuple(f"flag {flag.name}: {flag.message}" for flag in self.flags)
        return as_html(Table(title, ("attack", *map(format_eps, budgets)), tuple(rows), notes))

    def __str__(self) -> str:
        """A line per score, then the worst case within each budget, then doubts."""
        lines = [f"{self.game.id}: mean return ± standard error, {counted(self.episodes, 'episode')}, seed {self.seed}"]
        lines += [f"{_label(score)}: {score}" for score in self.scores]
        began = worst_within(self.start.scores) if self.start else {}
        for eps, lowest in self.worst_within.items():
            start = f" (its start: {began[eps].mean:.4g})" if eps in began else ""
            lines.append(f"worst within {format_eps(eps)}: {lowest.mean:.4g}{start}")
        lines += [str(self.breaking)] if self.breaking else []
        return "\n".join([*lines, *(f"flag {flag.name}: {flag.message}" for flag in self.flags)])


@dataclass(frozen=True)
class Certification:
    """What was proven about an agent at every budget."""

    agent: str
    game: Game
    certificates: list[Certificate]
    folder: Path | None
    """Where each lies, so that nothing is proven twice; none for an agent in memory."""
    method: Method
    why: str
    """Why this method, where none was asked for."""

    @property
    def by(self) -> str:
        """The method, and why it was taken."""
        return f"{self.method} ({self.why})" if self.why else self.method

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row per budget."""
        rows = [
            {"method": c.method, "eps": c.eps, "acr": c.acr, "gwc": c.gwc, "nominal": c.nominal}
            for c in self.certificates
        ]
        return _frame(rows)

    def __repr__(self) -> str:
        return f"Certification({self.agent} on {self.game.id}, {counted(len(self.certificates), 'budget')})"

    def _repr_html_(self) -> str:
        header = ("eps", "actions proven (ACR)", "greedy worst case (GWC)", "nominal")
        rows = [(format_eps(c.eps), f"{c.acr:.1%}", f"{c.gwc:.4g}", f"{c.nominal:.4g}") for c in self.certificates]
        return as_html(Table(f"{self.game.id}: certificates by {self.by}", header, tuple(rows)))

    def __str__(self) -> str:
        """The method, then a line per budget."""
        return "\n".join([f"{self.game.id}: certificates by {self.by}", *map(_proven, self.certificates)])


def named_attack(attack: Any) -> Attack:
    """An attack by name, or as it is."""
    if callable(attack):
        return cast(Attack, attack)
    return attack_by_name(given("attacks", attack, str, "give a name such as 'pgd-30', or an attack such as RIFGSM()"))


def evaluate(
    agent: Policy | Where,
    *,
    suite: Suite | str | None = None,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    eps: Budgets | None = None,
    episodes: int | None = None,
    seed: int = 0,
    env_set: Literal["train", "eval"] | None = None,
    protocol: Literal["fixed", "first"] = "fixed",
    precision: Literal["fast", "full"] = "fast",
    num_envs: int = 0,
    starts: Starts | None = None,
    device: str = "auto",
    sanity: bool = False,
    parallel: int = 1,
    find_eps: bool = False,
    threshold: float | None = None,
    onlooker: Onlooker = NOBODY,
) -> Evaluation:
    """Judge a run, a policy file or a policy under attack, as `bcl attack` does; its options are these.

    Attacks are those of a suite, by default `quick`, or `attacks`, by name or as they are. Budgets and episodes are by
    default the game's; with `find_eps` only budgets that are given are played, beside those of the search. Of a run, the agent
    that its training began from is judged too; of a policy file, that file alone. `parallel` processes share the scores, each
    with its share of the cores: worth it on a CPU, for agents in files.
    """
    budgets = _budgets(eps)
    chosen = _chosen(suite, attacks)
    if threshold is not None and not find_eps:
        raise ConfigError("a threshold was given but no search for a budget", "add --find-eps")
    seed, num_envs = whole("seed", seed), whole("num_envs", num_envs)
    Workers(parallel=whole("parallel", parallel)).worker_device()  # refuses less than 1
    with judged(agent, device) as target:
        count = target.defaults.episodes if episodes is None else whole("episodes", episodes)
        starts = _starts(starts, target.defaults.starts)
        noops = paper_starts(seed, count, num_envs) if starts == "game" else 0
        game = game_for_evaluation(target.game, env_set, target.defaults.max_steps, noops)
        plan = Plan(game, count, seed, protocol, precision, num_envs, starts)
        compared = cells(chosen, budgets or (() if find_eps else target.defaults.eps))
        wanted = [*compared, *([Cell(attack_by_name("pgd-30"), 1.0)] if sanity else [])]
        onlooker.start(len(wanted) + (len(compared) if target.start else 0))
        folder, parts = _writable(target.results / "evals"), 2 if target.start else 1
        scores = _play(target.policy, plan, wanted, folder, Part(onlooker, 0, parts), parallel)
        start = _of_start(target, plan, compared, Part(onlooker, 1, parts), parallel)
        progress = onlooker.begin("the lowest-scored action") if sanity else None
        floor = run_floor(target.policy, plan, folder, progress) if progress else None
        kept = None if isinstance(agent, Policy) else folder
        doubts = flags(scores, floor) + (worse_than_start(scores, start.scores, start.file) if start else [])
        search = target.results / BREAKING
        breaking = find_breaking(target.policy, plan, chosen, search, threshold, onlooker.begin) if find_eps else None
        found = Evaluation(target.name, game, count, seed, scores, floor, doubts, kept, start, breaking)
        store.write_json(folder / "verdict.json", found.to_dict())  # of the latest call; cells have files of their own
    return found


@dataclass(frozen=True)
class Part:
    """One of several parts of the whole work, as an onlooker hears of it."""

    onlooker: Onlooker
    number: int
    of: int
    whose: str = ""

    def begin(self, label: str) -> Progress:
        """See Onlooker."""
        report = self.onlooker.begin(self.whose + label)
        return lambda done, of: report(self.number * of + done, self.of * of)


def _play(policy: Policy, plan: Plan, wanted: Sequence[Cell], folder: Path, part: Part, parallel: int) -> list[Score]:
    device = next(policy.parameters()).device.type
    identity = files.fingerprint(policy)
    missing = [cell for cell in wanted if not cell_file(folder, cell, plan, identity, device).exists()]
    if parallel > 1 and len(missing) > 1:
        content, shares = files.to_bytes(policy), [missing[i::parallel] for i in range(min(parallel, len(missing)))]
        orders = [(number, "attack", content, plan, tuple(share), device) for number, share in enumerate(shares)]
        jobs = [Job(folder, worker.evaluate, order) for order in orders]
        _in_processes(jobs, parallel, part.begin(f"{len(missing)} scores"))
    scores = []
    train = ready(policy, plan, folder, part.begin)
    for score in run_suite(policy, plan, wanted, folder, part.begin, train):
        scores.append(score)
        part.onlooker.finished(f"{part.whose}{_label(score)}: {score}")
    return scores


def _in_processes(jobs: Sequence[Job], parallel: int, report: Progress) -> None:
    """Jobs of this machine, numbered in one folder; how far they are is read from the files in which they tell it."""
    shares, began = dict[Path, float](), time.time()

    def tick() -> None:
        for number, job in enumerate(jobs):
            path = job.folder / worker.progress_file(number)
            with contextlib.suppress(FileNotFoundError, StoreError):
                if path.stat().st_mtime >= began:
                    told = store.read_json(path)
                    shares[path] = told["done"] / told["of"]
                continue
            if path in shares:
                shares[path] = 1.0  # it was there, and ended
        report(round(PARTS * sum(shares.values())), PARTS * len(jobs))

    dispatcher = Workers(parallel=parallel).dispatcher(lambda: False, tick, lambda line: None)
    for _ in dispatcher.executor.run(jobs, dispatcher.interrupted, dispatcher.tick):
        pass


def _of_start(target: Target, plan: Plan, wanted: Sequence[Cell], part: Part, parallel: int) -> Start | None:
    """The agent that a run's training began from, judged as the one that came out."""
    if target.start is None:
        return None
    name, agent = target.start
    policy = files.load(agent.file, next(target.policy.parameters()).device)
    part = dataclasses.replace(part, whose=f"start ({name}): ")
    return Start(name, str(agent.file), _play(policy, plan, wanted, agent.evals, part, parallel), [])


def certify(
    agent: Policy | Where,
    *,
    eps: Budgets | None = None,
    method: Method | Literal["auto"] = "auto",
    episodes: int | None = None,
    seed: int = 0,
    env_set: Literal["train", "eval"] | None = None,
    device: str = "auto",
    parallel: int = 1,
    onlooker: Onlooker = NOBODY,
) -> Certification:
    """Prove what no attack can change, at every budget, as `bcl certify` does; its options are these.

    `auto` takes the tightest method that the network leaves affordable, and the result says which. `parallel` processes share
    the budgets.
    """
    budgets = _budgets(eps)
    seed = whole("seed", seed)
    Workers(parallel=whole("parallel", parallel)).worker_device()  # refuses less than 1
    with judged(agent, device) as target:
        count = target.defaults.episodes if episodes is None else whole("episodes", episodes)
        game = game_for_evaluation(target.game, env_set, target.defaults.max_steps, paper_starts(seed, count))
        plan = Plan(game, count, seed, num_envs=count)
        budgets = budgets or list(target.defaults.eps)
        method, why = affordable_method(target.policy) if method == "auto" else (method, "")
        onlooker.start(len(budgets))
        folder, proofs = _writable(target.results / CERTS), []
        missing = [b for b in budgets if not certificate_file(folder, method, b, plan, target.policy).exists()]
        if parallel > 1 and len(missing) > 1:
            content, where = files.to_bytes(target.policy), pick_device(device)
            orders = [(number, content, plan, budget, method, where) for number, budget in enumerate(missing)]
            jobs = [Job(folder, worker.certify, order) for order in orders]
            _in_processes(jobs, parallel, onlooker.begin(f"{method} at {counted(len(jobs), 'budget')}"))
        for proof in run_certificates(target.policy, plan, budgets, method, folder, onlooker.begin):
            proofs.append(proof)
            onlooker.finished(_proven(proof))
    kept = None if isinstance(agent, Policy) else folder
    return Certification(target.name, game, proofs, kept, method, why)


def _writable(folder: Path) -> Path:
    """The folder for results; one that cannot be written is refused before the work."""
    try:
        store.try_to_write(folder / "result")
    except StoreError as error:
        raise StoreError(error.message, "results lie with the agent: copy it to where you may write") from None
    return folder


def _budgets(eps: Budgets | None) -> list[float]:
    """Empty: the game's."""
    return [] if eps is None else [parse_eps(e) for e in several("eps", eps)]


def _starts(asked: Starts | None, usual: Starts) -> Starts:
    if asked not in (None, *get_args(Starts)):
        raise ConfigError(f"starts = {asked!r:.60} does not fit", f"one of {', '.join(get_args(Starts))}")
    return asked or usual


def _chosen(suite: str | None, attacks: str | Attack | Sequence[str | Attack] | None) -> list[Attack]:
    if attacks is None:
        return list(
            attacks_of("quick" if suite is None else given("suite", suite, str, "give its name, such as 'paper'"))
        )
    if suite is not None:
        raise ConfigError("both a suite and single attacks were given", "give one of the two")
    return [named_attack(attack) for attack in several("attacks", attacks)]


def _frame(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingExtra("a data frame needs pandas", "pip install pandas") from None
    return pandas.DataFrame(rows)


def _attack(score: Score) -> str:
    return attack_label(score.attack) if score.eps else "no attack"


def _label(score: Score) -> str:
    return f"{_attack(score)} at {format_eps(score.eps)}" if score.eps else _attack(score)


def _proven(proof: Certificate) -> str:
    return f"{proof.method} at {format_eps(proof.eps)}: ACR {proof.acr:.1%}, GWC {proof.gwc:.4g}"
