"""Scores, one for each attack and budget, and evaluations: the scores of one agent under equal conditions."""

import dataclasses
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcl import stats
from bcl.attacks import (
    Attack,
    Learned,
    LowestScored,
    attack_from_dict,
    attack_label,
    attack_labels,
    attack_to_dict,
    rank,
)
from bcl.errors import counted
from bcl.evaluation.plan import MEANING, Conditions, Levels, Starts, levels_of, name_of
from bcl.games import AtariGame, Game, game_to_dict
from bcl.result import Result, Table
from bcl.runs.results import ScoresFolder
from bcl.runs.store import fitting
from bcl.settings import format_eps, format_error, format_return, typed_values

if TYPE_CHECKING:
    from bcl.evaluation.breaking import Breaking
    from bcl.runs.results import Flag

Key = tuple[Attack | None, float]
"""Attack and budget."""
# Rows of tables.
AT_EXACTLY = "worst at exactly"
WITHIN = "worst within"


@dataclass(frozen=True)
class Score:
    """Returns per episode and what is needed to trust, repeat or doubt them."""

    attack: Attack | None
    """None: nominal play."""
    eps: float
    returns: tuple[float, ...]
    """Undiscounted raw returns; in the order of `protocol`."""
    lengths: tuple[int, ...]
    """Agent steps per episode."""
    changed: float
    """Share of steps in which the attack changed the action."""
    max_perturbation: float
    """Largest change of any element."""
    zero_gradient: float
    """Share of sampled states whose gradient of the cross-entropy is exactly zero in every element."""
    seed: int
    protocol: str
    """`fixed`: episodes per copy fixed beforehand; `first`: the first finished, as the reference does on Procgen."""
    precision: str = "full"
    """In which the attack searched: `half` or `full`; actions are always decided in full precision."""
    stochastic: bool = False
    """The policy gave two different answers to one observation."""
    courses: int | None = None
    """How many different ones the episodes are, by when rewards came and what was seen then; none: not counted."""
    prefixes: tuple[int, ...] = ()
    """Random actions before each episode, drawn from `seed`; empty: they begin as the game has them begin."""
    instead: str = ""
    """Of a learned adversary: the myopic attack that was stronger than its director, and was played in its place."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return stats.mean(self.returns)

    @property
    def sem(self) -> float:
        """Standard error of the mean, as the paper reports it."""
        return stats.sem(self.returns)

    @property
    def has_error(self) -> bool:
        """Whether there are enough episodes for a standard error to be shown."""
        return len(self.returns) >= stats.MIN_FOR_INTERVAL

    @property
    def interval(self) -> stats.Interval | None:
        """95 % interval of the mean over its episodes."""
        return stats.mean_interval([self.returns])

    @property
    def label(self) -> str:
        """Its attack and budget, for people."""
        return attack_label(self.attack) + (f" at {format_eps(self.eps)}" if self.eps else "")

    def __str__(self) -> str:
        """The mean, with its standard error where there are enough episodes for one."""
        error = f" ± {format_error(self.sem)}" if self.has_error else ""
        return f"{format_return(self.mean)}{error}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with a summary. `attack` is for people; `adversary` is what it is rebuilt from."""
        interval = stats.iqm_interval(self.returns)
        return {
            **vars(self),
            "attack": shown(self.attack),
            "adversary": self.attack and attack_to_dict(self.attack),
            "mean": self.mean,
            "sem": self.sem,
            "episodes": len(self.returns),
            "iqm": stats.iqm(self.returns),
            "iqm_interval": interval and dataclasses.astuple(interval),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "a stored score") -> "Score":
        """The inverse of `to_dict`; `source` names the data in an error."""
        with fitting(source, "delete it to have it played again"):
            names = {field.name for field in dataclasses.fields(cls)} - {"attack"}
            values = typed_values(cls, {name: data[name] for name in names})
            if not values["returns"]:
                raise ValueError("it has no returns")
            if not 0 <= values["eps"] <= 1:
                raise ValueError(f"its budget is {values['eps']:g}")
            adversary = data["adversary"]
            return cls(attack=None if adversary is None else attack_from_dict(adversary), **values)


def shown(attack: Attack | None) -> str:
    """All of an attack, in words."""
    return "none" if attack is None else repr(attack)


@dataclass(frozen=True)
class Worst:
    """The worst of several scores."""

    eps: float
    """The budget of the score with the lowest mean."""
    attack: Attack | None
    """Its attack; none where no attack left less."""
    mean: float
    sem: float
    episode_minimum: float | None
    """Mean over episodes of the lowest return in any of the scores; none where their episodes cannot be paired."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"attack": shown(self.attack)}


def lowest(scores: Iterable[Score]) -> Score:
    """That with the lowest mean; of equals the one at the largest budget."""
    return min(scores, key=lambda s: (s.mean, -s.eps))


def worst(scores: Sequence[Score]) -> dict[float, Worst]:
    """Per budget above 0, the worst attack at exactly this budget: the paper's number."""
    return {eps: _worst_of([s for s in scores if s.eps == eps]) for eps in _budgets(scores)}


def worst_within(scores: Sequence[Score]) -> dict[float, Worst]:
    """Per budget above 0, the worst of all played up to it, without attack too: it never rises with the budget."""
    return {eps: _worst_of([s for s in scores if s.eps <= eps]) for eps in _budgets(scores)}


def _budgets(scores: Sequence[Score]) -> list[float]:
    return sorted({s.eps for s in scores if s.eps > 0})


def _worst_of(scores: Sequence[Score]) -> Worst:
    found = lowest(scores)
    paired = all(s.protocol == "fixed" and s.seed == found.seed for s in scores)
    paired = paired and len({(len(s.returns), s.prefixes) for s in scores}) == 1
    minimum = stats.mean([min(r) for r in zip(*(s.returns for s in scores), strict=True)]) if paired else None
    return Worst(found.eps, found.attack, found.mean, found.sem, minimum)


@dataclass(frozen=True)
class Start:
    """An agent that the recipe's own stages began from, evaluated alike."""

    name: str
    """Its stage, such as `vanilla`; `--init` where it was given."""
    file: str
    """Its path, with that of the run as it was given."""
    scores: list[Score]

    @cached_property
    def within(self) -> dict[float, Score | Worst]:
        """Without attack, and the worst within each budget."""
        return {s.eps: s for s in self.scores if s.eps == 0} | worst_within(self.scores)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "file": self.file, "scores": [score.to_dict() for score in self.scores]}


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """The scores of an agent under every attack at every budget, and the reasons to distrust them."""

    game: Game = field(compare=False)  # as it was played; a verdict without its file of scores knows only the run's
    scores: Sequence[Score]
    """Nominal play first; never empty."""
    agent: str = field(default="", compare=False)
    """Where it was found, or its fingerprint."""
    flags: "Sequence[Flag]" = ()
    """Reasons to distrust the scores (docs/flags.md)."""
    floor: Score | None = None
    """With `sanity`: play in which every action is the one with the lowest action score."""
    folder: Path | None = None
    """Where the scores lie, so that asking again plays only what is missing; none for an agent in memory."""
    began_from: Sequence[Start] = ()
    """Of a run: the same scores of the agents that its training began from, the last one first."""
    missing: Sequence[str] = ()
    """Files of such agents that are not there, so that these are not compared."""
    breaking: "Breaking | None" = None
    """With `find_eps`: the smallest budget of each attack that breaks the agent."""
    lower: Sequence[str] = field(default=(), compare=False)
    """What other evaluations that are stored have below the worst within a budget."""
    note: str = ""
    """In a report: where the scores come from."""
    meaning: int = field(default=MEANING, compare=False)
    """Of the scores, see `bcl.evaluation.plan.MEANING`."""
    unlimited: "Evaluation | None" = None
    """With `env_set` both: the same on unlimited levels, with flags of its own."""

    @property
    def evaluations(self) -> "list[Evaluation]":
        """This one, then that of unlimited levels where there is one."""
        return [self, *([self.unlimited] if self.unlimited else [])]

    @property
    def episodes(self) -> int:
        """Of every score."""
        return len(self.scores[0].returns)

    @property
    def seed(self) -> int:
        """Of games and attacks."""
        return self.scores[0].seed

    @property
    def protocol(self) -> str:
        """Which episodes count."""
        return self.scores[0].protocol

    @cached_property
    def cells(self) -> dict[Key, Score]:
        """The scores by attack and budget."""
        return {(score.attack, score.eps): score for score in self.scores}

    @property
    def attacks(self) -> list[Attack]:
        """Without nominal play, in the order of the scores."""
        return list(dict.fromkeys(s.attack for s in self.scores if s.attack))

    @cached_property
    def labels(self) -> dict[Attack | None, str]:
        """A short name of every attack, none of which two have."""
        return attack_labels(s.attack for s in self.scores)

    @property
    def budgets(self) -> list[float]:
        """Ascending; 0 is nominal play."""
        return sorted({s.eps for s in self.scores})

    @property
    def partial(self) -> list[float]:
        """Budgets above 0 at which not every attack was played."""
        return [eps for eps in self.budgets if eps and not all((attack, eps) in self.cells for attack in self.attacks)]

    @property
    def levels(self) -> Levels:
        """See `levels_of`."""
        return levels_of(self.game)

    @property
    def starts(self) -> Starts:
        """How its episodes begin."""
        return "varied" if self.scores[0].prefixes else "game"

    @property
    def adversaries(self) -> list[str]:
        """What stands behind the scores of each learned adversary, for people."""
        found = []
        for attack in self.attacks:
            if isinstance(attack, Learned):
                line = f"{self.labels[attack]}: a director trained for {attack.training:,} agent steps at each budget"
                line += " (on images ten times as many)"
                others = [s for s in self.scores if s.attack == attack and s.instead]
                stronger = ", ".join(f"{s.instead} at {format_eps(s.eps)}" for s in others)
                found.append(f"{line}; stronger than it, and played instead: {stronger}" if stronger else line)
        return found

    @property
    def nominal(self) -> Score | None:
        """Without attack; none where that was not played."""
        return self.cells.get((None, 0.0))

    @cached_property
    def worst(self) -> dict[float, Worst]:
        """The worst attack at exactly each budget above 0, as in the paper's tables."""
        return worst(self.scores)

    @cached_property
    def worst_within(self) -> dict[float, Worst]:
        """The worst case within each budget above 0, play without attack included."""
        return worst_within(self.scores)

    @property
    def start(self) -> Start | None:
        """Of a run: what the recipe's own stages began from."""
        return next(iter(self.began_from), None)

    def beside(self, eps: float, shown: Callable[[Score], str]) -> str:
        """What the agents that training began from have within a budget, as it follows the agent's own."""
        found = [(one.name, shown(lowest(s for s in one.scores if s.eps <= eps))) for one in self.began_from]
        return f" (start: {', '.join(f'{name} {score}' for name, score in found)})" if found else ""

    def further_flags(self, others: "Iterable[Evaluation]") -> "list[Flag]":
        """Flags of other evaluations of this agent alone, on no fewer episodes and the same levels and starts."""
        found = dict.fromkeys(flag.name for flag in self.flags)
        further = []
        for other in others:
            if (other.levels, other.starts) == (self.levels, self.starts) and other.episodes >= self.episodes:
                where = f"({counted(other.episodes, 'episode')}, evaluation seed {other.seed})"
                new = [flag for flag in other.flags if flag.name not in found]
                further += [dataclasses.replace(flag, message=f"{flag.message} {where}") for flag in new]
                found |= dict.fromkeys(flag.name for flag in new)
        return further

    def lower_elsewhere(self, others: "Iterable[Evaluation]") -> list[str]:
        """The lowest within each budget of other evaluations of this agent on the same levels and starts, of episodes
        that may be as long, where below this one's; for people."""
        mine = (self.levels, self.starts, self._longest)
        alike = [other for other in others if (other.levels, other.starts, other._longest) == mine]
        scores = [score for other in alike for score in other.scores if score.eps > 0]
        found = dict[Score, None]()  # in the order of their budgets
        for eps, known in self.worst_within.items():
            within = [s for s in scores if s.eps <= eps]
            if within and lowest(within).mean < known.mean:
                found[lowest(within)] = None
        return [f"{format_return(s.mean)} under {s.label}{self._otherwise(s)}" for s in found]

    @property
    def _longest(self) -> int | None:
        """Steps at which episodes are cut off; none: by the game itself."""
        return getattr(self.game, "max_steps", None)

    def _otherwise(self, score: Score) -> str:
        """How a score of another evaluation was played, where that matters for what it says of this one."""
        if len(score.returns) < self.episodes:
            return f" ({counted(len(score.returns), 'episode')})"
        return "" if score.seed == self.scores[0].seed else " (other episodes)"

    @cached_property
    def conditions(self) -> str:
        """What must be equal in one table. Atari agents may have different pipelines, each with its `life_reset`."""
        facts = dataclasses.asdict(self.game)
        facts.pop("processes", None)
        if isinstance(self.game, AtariGame):
            own_life_reset = self.game.life_reset == (self.game.pipeline == "v1")
            facts = {name: facts[name] for name in ("id", "max_steps", "noop_max", "first_noops")}
            facts["own_life_reset"] = own_life_reset
        return json.dumps([facts, self.protocol, self.episodes, self.starts == "varied", self.meaning])

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `bcl attack --json` prints."""
        return {
            "game": game_to_dict(self.game),
            "policy": self.agent,
            "scores": [score.to_dict() for score in self.scores],
            "worst": {format_eps(eps): lowest.to_dict() for eps, lowest in self.worst.items()},
            "worst_within": {format_eps(eps): lowest.to_dict() for eps, lowest in self.worst_within.items()},
            "lower": [*self.lower],
            "floor": self.floor and self.floor.to_dict(),
            "flags": [dataclasses.asdict(flag) for flag in self.flags],
            "breaking": self.breaking and self.breaking.to_dict(),
            "began_from": [start.to_dict() for start in self.began_from],
            "unlimited": self.unlimited and self.unlimited.to_dict(),
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        """One per score; of two sets of levels each says of which it is."""
        for s in self.scores:
            row = {"attack": self.labels[s.attack], "eps": s.eps, "mean": s.mean, "sem": s.sem, "changed": s.changed}
            yield ({"unlimited_levels": False} if self.unlimited else {}) | row
        if self.unlimited:
            yield from ({"unlimited_levels": True} | row for row in self.unlimited._rows())

    def __repr__(self) -> str:
        return f"Evaluation({self.agent} on {self.game.id}, {counted(len(self.scores), 'score')})"

    @property
    def title(self) -> str:
        """Of a table of the scores."""
        starts = " with varied starts" if self.starts == "varied" else ""
        played = f"{counted(self.episodes, 'episode')}{starts}, seed {self.seed}"
        return f"{name_of(self.game)}: mean return ± standard error, {played}"

    def table(self) -> Table:
        """Attacks down, budgets across; below the worst at exactly each budget, the worst case within it, and that of
        what training began from."""
        columns: dict[float | None, str] = {eps: format_eps(eps) for eps in self.budgets}
        shown: dict[tuple[Attack | None, float | None], str] = {(s.attack, s.eps): str(s) for s in self.scores}
        if self.breaking:
            columns[None] = "breaks at"
            found = zip(self.breaking.attacks, self.breaking.budgets, strict=True)
            shown |= {(attack, None): self.breaking.shown(eps) for attack, eps in found}
        labels = attack_labels(attack for attack, _ in shown)
        rows = [(label, *(shown.get((attack, at), "") for at in columns)) for attack, label in labels.items()]
        totals = []
        if max(self.budgets) > 0:
            totals.append((AT_EXACTLY, *_lowest(self.scores, columns, operator.eq)))
            totals.append((WITHIN, *_lowest(self.scores, columns, operator.le)))
        totals += [(f"start ({one.name})", *_lowest(one.scores, columns, operator.le)) for one in self.began_from]
        header = ("attack", *columns.values())
        return Table(self.title, header, tuple(rows), tuple(self._notes), tuple(totals), bold=WITHIN)

    @property
    def _notes(self) -> list[str]:
        notes = [*self.adversaries, *(f"not compared with '{file}', which is missing" for file in self.missing)]
        return [*notes, f"other evaluations gave less: {', '.join(self.lower)}"] if self.lower else notes

    def _tables(self) -> list[Table]:
        tables = [(one.table(), one.flags) for one in self.evaluations]
        return [dataclasses.replace(t, notes=(*t.notes, *(f"flag {flag}" for flag in raised))) for t, raised in tables]

    def __str__(self) -> str:
        """A line per score, then the worst at exactly each budget and within it, then doubts; then the same on
        unlimited levels."""
        lines = [self.title]
        for s in self.scores:
            at = f" at {format_eps(s.eps)}" if s.eps else ""
            lines.append(f"{self.labels[s.attack]}{at}: {s}")
        for eps, least in self.worst_within.items():
            start = self.beside(eps, lambda score: format_return(score.mean))
            lines.append(f"{AT_EXACTLY} {format_eps(eps)}: {format_return(self.worst[eps].mean)}")
            lines.append(f"{WITHIN} {format_eps(eps)}: {format_return(least.mean)}{start}")
        lines += [str(self.breaking)] if self.breaking else []
        lines += [*self._notes, *(f"flag {flag}" for flag in self.flags)]
        return "\n".join([*lines, *([str(self.unlimited)] if self.unlimited else [])])


def _lowest(
    scores: Sequence[Score], budgets: Iterable[float | None], counts: Callable[[float, float], bool]
) -> Iterator[str]:
    """Of the scores whose budget counts at each of these."""
    for eps in budgets:
        counting = [s for s in scores if eps is not None and counts(s.eps, eps)]
        yield str(lowest(counting)) if counting else ""


def read_evaluations(folder: ScoresFolder, agent: str) -> list[Evaluation]:
    """The evaluations of an agent, by its fingerprint (empty: of any), whose scores lie in a folder.

    Two scores belong to one evaluation if nothing but the attack and its budget differs. Left out are the floor of
    `--sanity` and its budget of 1, which test the attack. A score that cannot be read is refused: it may be the worst.
    """
    found: dict[tuple[Conditions, str], list[Score]] = {}
    for conditions, score in _stored(folder, agent):
        if score.eps < 1 and not isinstance(score.attack, LowestScored):
            found.setdefault((conditions, score.precision), []).append(score)
    return [
        Evaluation(conditions.plan.game, ordered(scores), conditions.agent, meaning=conditions.meaning)
        for (conditions, _), scores in found.items()
    ]


def ordered(scores: Iterable[Score]) -> list[Score]:
    """Budgets ascending, at each the paper's attacks first; each score once."""
    once = {(score.attack, score.eps): score for score in scores}
    return sorted(once.values(), key=lambda s: (s.eps, rank(s.attack), repr(s.attack)))


def read_scores(folder: ScoresFolder, conditions: Conditions) -> dict[Key, Score]:
    """The scores that were played under these conditions, by attack and budget."""
    stored = _stored(folder, conditions.agent)
    return {(score.attack, score.eps): score for found, score in stored if found == conditions}


def all_scores(folder: ScoresFolder, agent: str = "") -> list[Score]:
    """Under whatever conditions; of any agent, or of one."""
    return [score for _, score in _stored(folder, agent)]


def longest_episodes(folder: ScoresFolder, agent: str) -> dict[float, int]:
    """Steps of an agent's longest episode by budget, of all its scores that are stored."""
    found: dict[float, int] = {}
    for score in all_scores(folder, agent):
        found[score.eps] = max([found.get(score.eps, 0), *score.lengths])
    return found


def append_score(folder: ScoresFolder, conditions: Conditions, score: Score, part: int | None = None) -> None:
    """Store one more; `part`: which of several processes that share the work."""
    folder.append(score.to_dict() | conditions.to_dict(), part)


def _stored(folder: ScoresFolder, agent: str) -> Iterator[tuple[Conditions, Score]]:
    for source, row in folder.read(agent):
        score = Score.from_dict(row, f"the score in {source}")
        yield Conditions.from_row(row, f"the score in {source}"), score
