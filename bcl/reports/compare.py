"""Runs, repeats and policy files side by side, in numbers: which of their evaluations have the same conditions, and
what these say. Draws and writes nothing."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bcl import stats
from bcl.attacks import Attack, attack_labels
from bcl.attacks.suites import SUITES, attacks_named
from bcl.config import Config, evaluation_defaults
from bcl.errors import ConfigError, StoreError
from bcl.evaluation import Evaluation, Score, Worst, lowest, worst, worst_within
from bcl.evaluation.evaluation import shown
from bcl.evaluation.flags import clearly_lower
from bcl.evaluation.plan import LEVELS, Levels, Starts
from bcl.experiment.verdict import Verdict
from bcl.games import AtariGame, Game
from bcl.policies.files import is_policy
from bcl.reports.collect import LATER, beside_the_starts, flagged, load_with_game, read_results, results_of_policy
from bcl.reports.history import Effort, effort
from bcl.reports.published import PublishedRow, result_for
from bcl.reports.tables import as_markdown, tables
from bcl.result import Result, Table
from bcl.runs.directory import Repeats, RunDirectory, runs_of
from bcl.runs.results import Flag, Results
from bcl.settings import format_eps, format_return

Attacks = dict[float, tuple[Attack | None, ...]]  # by budget
CHEAPEST_FIRST = ("quick", "pgd-30", "paper", "strong", "learned")  # what agents can be evaluated by


@dataclass(frozen=True)
class Member:
    """One agent."""

    name: str
    evaluations: tuple[Evaluation, ...]
    effort: Effort | None = None
    """Of a run."""
    flags: tuple[Flag, ...] = ()
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


@dataclass(frozen=True)
class ReturnAtBudget:
    """A row at one budget."""

    eps: float
    median: Score
    """The worst within the budget, of the median run. A run alone is its own median."""
    exactly: Score
    """Its worst attack at exactly this budget: the paper's number."""
    runs: tuple[tuple[float, ...], ...]
    """Returns per episode of every run, each its own worst within the budget."""

    @property
    def mean(self) -> float:
        """Of the means of all repeats."""
        return stats.mean([*map(stats.mean, self.runs)])

    @property
    def interval(self) -> stats.Interval | None:
        """Of that mean."""
        return stats.mean_interval(self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "eps": self.eps,
            "median": _measured(self.median),
            "exactly": _measured(self.exactly),
            "over_repeats": {"mean": self.mean, "interval": self.interval and asdict(self.interval)},
            "run_means": [*map(stats.mean, self.runs)],
        }


@dataclass(frozen=True)
class Row:
    """An entry in numbers."""

    label: str
    members: tuple[str, ...]
    median: str
    """The run with the median score."""
    score: float | None
    """Its nominal return + mean over the scored budgets of the worst within each; none where one was not evaluated."""
    paper_score: float | None
    """As the paper has it: of the worst attack at exactly each."""
    flags: tuple[Flag, ...]
    """Reasons to distrust the median run's scores: those of its verdict, then those of the scores compared, then
    those of other evaluations on no fewer episodes."""
    cells: dict[float, ReturnAtBudget]
    """By budget; those that were evaluated."""
    published: PublishedRow | None


@dataclass(frozen=True)
class Improvement:
    """P(`row` returns more than `over`) at one budget."""

    row: str
    over: str
    eps: float
    probability: float
    interval: stats.Interval | None


@dataclass(frozen=True)
class Missing:
    """What to play next, so that more can be compared."""

    row: str
    member: str
    suite: str
    """Or an attack."""
    eps: tuple[float, ...]
    """Empty where no agent was evaluated at any."""

    @property
    def options(self) -> tuple[str, str]:
        """Of `bcl attack`."""
        return "--suite" if self.suite in SUITES else "--attack", self.suite


@dataclass(frozen=True)
class Block:
    """Agents of one game, evaluated alike."""

    game: str
    levels: Levels
    starts: Starts
    episodes: int
    protocol: str
    attacks: Attacks
    """By budget: the attacks that every row has there; the worst of them counts."""
    scored: tuple[float, ...]
    rows: tuple[Row, ...]
    improvements: tuple[Improvement, ...]
    """Of every row over the first."""
    notes: tuple[str, ...]
    missing: Missing | None
    """None where all faced some attack at every budget they have."""

    @property
    def title(self) -> str:
        """Its game, levels and starts."""
        starts = "with varied starts" if self.starts == "varied" else ""
        return " ".join(filter(None, (self.game, LEVELS.get(self.levels), starts)))

    @property
    def budgets(self) -> list[float]:
        """Ascending; 0 is nominal play."""
        return sorted(self.attacks)

    @property
    def usual_attacks(self) -> list[Attack | None]:
        """For titles: those that count at every budget above 0, or, where there is none, at any."""
        attacked = [names for eps, names in self.attacks.items() if eps]
        every = dict.fromkeys(attack for names in attacked for attack in names)
        return [*(_in_all(attacked) or every)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; budgets, which are keys here, are numbers in lists."""
        data = asdict(self)
        data["attacks"] = [{"eps": eps, "attacks": [*map(shown, attacks)]} for eps, attacks in self.attacks.items()]
        for row, plain in zip(self.rows, data["rows"], strict=True):
            plain["flags"] = [*map(str, row.flags)]
            plain["cells"] = [cell.to_dict() for cell in row.cells.values()]
        return data


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Everything that is printed or drawn."""

    blocks: tuple[Block, ...]
    entries: tuple[Entry, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: all numbers of the tables, unrounded; what `bcl compare --format json` prints."""
        runs = [
            {"agent": entry.label, "path": str(entry.path), "repeats": [asdict(one) for one in entry.efforts]}
            for entry in self.entries
            if entry.efforts
        ]
        return {"blocks": [block.to_dict() for block in self.blocks], "runs": runs}

    def __repr__(self) -> str:
        return f"Comparison({', '.join(entry.label for entry in self.entries)})"

    def __str__(self) -> str:
        """Its tables as markdown."""
        return "\n\n".join(map(as_markdown, tables(self)))

    def _rows(self) -> Iterator[dict[str, Any]]:
        """One per agent and budget; `exactly` is the mean at exactly the budget, `mean` the worst within it."""
        for block in self.blocks:
            labels = attack_labels(attack for names in block.attacks.values() for attack in names)
            for row in block.rows:
                about = {"game": block.game, "levels": block.levels, "starts": block.starts, "agent": row.label}
                for eps, cell in row.cells.items():
                    worst = {"mean": cell.median.mean, "sem": cell.median.sem, "exactly": cell.exactly.mean}
                    yield about | {"eps": eps, **worst, "attack": labels[cell.median.attack]}

    def _tables(self) -> list[Table]:
        return tables(self)


def compare_agents(paths: Sequence[Path]) -> Comparison:
    """Every game in a block of its own, Procgen's sets of levels too."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("a run was given twice", "give each once")
    names = [_short_name(path) for path in paths]
    labels = names if len({*names}) == len(names) else [str(path) for path in paths]
    entries = tuple(map(read_entry, paths, labels))
    blocks = []
    for game in dict.fromkeys(entry.game.id for entry in entries):
        blocks += _blocks([entry for entry in entries if entry.game.id == game])
    return Comparison(tuple(blocks), entries)


def _short_name(path: Path) -> str:
    parent = path.resolve().parent
    return f"{parent.name}/{path.name}" if Repeats(parent).exists else path.resolve().name


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
    policy = run.fingerprint
    if not policy:
        raise StoreError(f"'{run.result_file}' is damaged: it names no agent", "delete it and resume the run")
    found = _evaluations(run.path, [(run.results, policy)])
    found = tuple(beside_the_starts(found, verdict, run.began_from(policy)))
    return Member(run.path.name, found, effort(run.path), tuple(verdict.evaluation.flags))


def _evaluations(path: Path, results: Iterable[tuple[Results, str]]) -> tuple[Evaluation, ...]:
    found = tuple(flagged(one, LATER) for one in read_results(results))
    if not found:
        raise StoreError(f"'{path}' has not been evaluated", f"'bcl attack {shlex.quote(str(path))}' does it")
    return found


def common_starts(entries: Sequence[Entry], levels: Levels) -> list[Starts | None]:
    """Both, where all that was evaluated on these levels has both: the paper's first. Else none: what is alike
    decides."""
    both: list[Starts] = ["game", "varied"]
    members = [member for entry in entries for member in entry.members if member.on(levels)]
    return [*both] if all(member.on(levels, starts) for member in members for starts in both) else [None]


def evaluated_alike(entries: Sequence[Entry], levels: Levels, starts: Starts | None) -> dict[str, list[Evaluation]]:
    """By entry that was evaluated on these levels, one evaluation per member, all under the same conditions."""
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
        way_out = "give 'bcl attack' the same --suite, --eps, --episodes and --starts for each"
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
    """Sort key. Episodes come before attacks: a short evaluation with more attacks on fewer episodes must not replace a
    verdict."""
    shared = set.intersection(*({*one.cells} for one in alike))
    one_seed = len({one.seed for one in alike}) == 1
    return alike[0].episodes, len(shared), one_seed, sum(len(one.cells) for one in alike)


def _blocks(entries: Sequence[Entry]) -> list[Block]:
    """Of one game. The median of repeats is by the score summed over its levels, as the paper has it; by the game's own
    starts, where there is a block of varied ones too."""
    levels = {evaluation.levels for entry in entries for member in entry.members for evaluation in member.evaluations}
    found = list[_Alike]()
    first = list[_Alike]()  # of each set of levels
    for one in sorted(levels, reverse=True):  # train before eval
        chosen = [evaluated_alike(entries, one, starts) for starts in common_starts(entries, one)]
        blocks = [_Alike(entries, members) for members in chosen if members]
        found += blocks
        first += blocks[:1]
    medians = {}
    for label in (entry.label for entry in entries):
        scores = [[*map(one.score, one.members[label])] for one in first if label in one.members]
        medians[label] = stats.median_run([*map(sum, zip(*scores, strict=True))]) if scores else 0
    return [one.block(medians) for one in found]


class _Alike:
    """Agents of one game and one set of levels that were evaluated alike, and the attacks that count for them."""

    def __init__(self, entries: Sequence[Entry], members: dict[str, list[Evaluation]]) -> None:
        self.members = members  # by the label of their entry
        self.first, *_ = self.everyone = [evaluation for several in members.values() for evaluation in several]
        self.entries = [entry for entry in entries if entry.label in members]
        self.absent = [entry.label for entry in entries if entry.label not in members]
        self.attacks: Attacks = {}
        for eps in sorted({eps for evaluation in self.everyone for _, eps in evaluation.cells}):
            faced = [[attack for attack, at in evaluation.cells if at == eps] for evaluation in self.everyone]
            if shared := _in_all([*filter(None, faced)]):  # by those who were evaluated at this budget
                self.attacks[eps] = shared
        # The budgets of the final score, or what was evaluated of them; none where they have no attack in common.
        scored = tuple(eps for eps in entries[0].scored if eps in self.attacks)
        self.counted = _in_all([self.attacks[eps] for eps in scored])
        self.scored = scored if self.counted else ()

    def counting(self, evaluation: Evaluation) -> list[Score]:
        """The scores under attacks that count at their budget."""
        return [score for score in evaluation.scores if score.attack in self.attacks.get(score.eps, ())]

    def score(self, evaluation: Evaluation, worst: Callable[[list[Score]], dict[float, Worst]] = worst_within) -> float:
        """As far as it was evaluated, under attacks that all its budgets have."""
        lowest = worst([score for score in self.counting(evaluation) if score.attack in (None, *self.counted)])
        attacked = [lowest[eps].mean for eps in self.scored if eps in lowest]
        return (evaluation.nominal.mean if evaluation.nominal else 0.0) + (stats.mean(attacked) if attacked else 0.0)

    def block(self, medians: dict[str, int]) -> Block:
        """In numbers; `medians`: of every entry, which of its members has the median score."""
        rows = [self._row(entry, medians[entry.label]) for entry in self.entries]
        missing = self._missing()
        notes = [f"{label} was not evaluated on these levels" for label in self.absent]
        if not set.intersection(*({one.seed for one in members} for members in self.members.values())):
            notes.append("they played different episodes; 'bcl attack' of each plays the same ones")
        notes += [*self._atari_conditions(), *self._uneven()]
        for row in rows:
            notes += self._hurt_more(row.label, self.members[row.label][medians[row.label]])
            largest = max(row.cells, default=0.0)
            if lacking := [format_eps(eps) for eps in self.attacks if eps not in row.cells and eps < largest]:
                what = f"{row.label} was not evaluated at {', '.join(lacking)}"
                notes.append(f"{what}: within larger budgets it may have less")
        if missing and (apart := [format_eps(eps) for eps in missing.eps if eps not in self.attacks]):
            way = " ".join(missing.options)
            notes.append(f"at {', '.join(apart)} no attack was faced by all; evaluate each by {way}")
        quick = [entry.label for entry in self.entries if entry.config and entry.config.size == "small"]
        notes += [f"{label} is a quick look, not the paper's protocol" for label in quick]
        for label, members in self.members.items():
            if missing and missing.eps and not any(any(one.budgets) for one in members):
                notes.append(f"{label} was evaluated by nominal play alone")
        return Block(
            game=self.first.game.id,
            levels=self.first.levels,
            starts=self.first.starts,
            episodes=self.first.episodes,
            protocol=self.first.protocol,
            attacks=self.attacks,
            scored=self.scored,
            rows=tuple(rows),
            improvements=tuple(one for row in rows[1:] for one in _improvements(row, rows[0])),
            notes=tuple(notes),
            missing=missing,
        )

    def _row(self, entry: Entry, median: int) -> Row:
        members = self.members[entry.label]
        member = entry.members[median]
        further = members[median].further_flags(member.evaluations)
        raised = [*member.flags, *members[median].flags, *further]
        counting = [*map(self.counting, members)]
        cells = {}
        for eps in self.attacks:
            if all(any(s.eps == eps for s in scores) for scores in counting):
                within = [lowest(s for s in scores if s.eps <= eps) for scores in counting]
                exactly = lowest(s for s in counting[median] if s.eps == eps)
                cells[eps] = ReturnAtBudget(eps, within[median], exactly, tuple(score.returns for score in within))
        whole = bool(self.scored) and {0.0, *self.scored} <= cells.keys()
        return Row(
            label=entry.label,
            members=tuple(member.name for member in entry.members),
            median=entry.members[median].name,
            score=self.score(members[median]) if whole else None,
            paper_score=self.score(members[median], worst) if whole else None,
            flags=tuple(dict.fromkeys(raised)),
            cells=cells,
            published=result_for(entry.config, self.first.levels),
        )

    def _atari_conditions(self) -> Iterator[str]:
        """In what Atari evaluations of one table may differ: the pipeline, and v1's moves after a lost life."""
        pipelines = set[str]()
        moved = list[str]()
        for label, members in self.members.items():
            games = [one.game for one in members if isinstance(one.game, AtariGame)]
            pipelines |= {game.pipeline for game in games}
            moved += [label] if any(game.life_reset for game in games) else []
        if len(pipelines) > 1:
            yield f"seen through different pipelines ({', '.join(sorted(pipelines))})"
        if moved:
            what = "after a lost life NOOP, FIRE and action 2 were played, and their rewards dropped"
            yield f"{what}: {', '.join(moved)}"

    def _uneven(self) -> Iterator[str]:
        """Where a number is over other attacks than the title names."""
        attacked = {eps: names for eps, names in self.attacks.items() if eps}
        common = _in_all([*attacked.values()])
        labels = attack_labels(attack for names in attacked.values() for attack in names)
        every = {*labels}
        rest = {eps: tuple(attack for attack in names if attack not in common) for eps, names in attacked.items()}
        for names in filter(None, dict.fromkeys(rest.values())):
            at = ", ".join(format_eps(eps) for eps, there in rest.items() if there == names)
            listed = ", ".join(labels[attack] for attack in names)
            if common:
                yield f"at {at} the worst is also over {listed}"
            elif {*names} != every:
                yield f"at {at} the worst is over {listed} alone"
        if any({*self.attacks[eps]} != {*self.counted} for eps in self.scored):
            counted = ", ".join(labels[attack] for attack in self.counted)
            yield f"the score is over {counted}, which all its budgets have"

    def _hurt_more(self, label: str, evaluation: Evaluation) -> Iterator[str]:
        """Where an attack that not all faced hurt an agent more than those that count."""
        found = dict[Score, None]()
        counting = self.counting(evaluation)
        for eps in dict.fromkeys(score.eps for score in counting):
            own = lowest(s for s in evaluation.scores if s.eps <= eps)
            if clearly_lower(own, lowest(s for s in counting if s.eps <= eps), evaluation.nominal):
                found[own] = None
        for own in found:
            what = f"{format_return(own.mean)} at {format_eps(own.eps)} under {evaluation.labels[own.attack]}"
            yield f"{label} has {what}, which not all faced"

    def _missing(self) -> Missing | None:
        """The suite or attack that all faced after the fewest scores more, and the first agent that lacks some of
        them."""
        by_agent = {
            (entry.label, member.name): one
            for entry in self.entries
            for member, one in zip(entry.members, self.members[entry.label], strict=True)
        }
        budgets = sorted({eps for one in self.everyone for eps in one.budgets if eps})
        apart = [eps for eps in budgets if eps not in self.attacks]
        nominal = [agent for agent, one in by_agent.items() if not any(one.budgets)]
        if not apart and not nominal:
            return None
        wanted = tuple(apart or budgets)
        if not wanted:
            return Missing(*nominal[0], CHEAPEST_FIRST[0], ())
        lacking = {
            name: [
                agent
                for agent, one in by_agent.items()
                for attack in attacks_named(name)
                for eps in wanted
                if (attack, eps) not in one.cells
            ]
            for name in CHEAPEST_FIRST
        }
        cheapest = min(lacking, key=lambda name: len(lacking[name]))
        return Missing(*lacking[cheapest][0], cheapest, wanted)


def _in_all(played: Sequence[Sequence[Attack | None]]) -> tuple[Attack | None, ...]:
    """The attacks that all of these have."""
    first, *others = played or [()]
    return tuple(attack for attack in first if all(attack in other for other in others))


def _improvements(row: Row, over: Row) -> Iterator[Improvement]:
    for eps in row.cells:
        if eps in over.cells:
            runs = row.cells[eps].runs, over.cells[eps].runs
            yield Improvement(row.label, over.label, eps, stats.improvement(*runs), stats.improvement_interval(*runs))


def _measured(score: Score) -> dict[str, Any]:
    interval = score.interval
    attack = {"attack": shown(score.attack), "eps": score.eps}
    return attack | {"mean": score.mean, "sem": score.sem, "interval": interval and asdict(interval)}
