"""Runs side by side, in numbers. Draws and writes nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bcl import stats
from bcl.attacks import Attack, attack_label
from bcl.attacks.suites import SUITES
from bcl.errors import ConfigError
from bcl.evaluation import Evaluation, Score, flags
from bcl.evaluation.evaluation import Levels
from bcl.evaluation.flags import clearly_lower
from bcl.evaluation.score import lowest, shown
from bcl.games import AtariGame
from bcl.reports.comparable import Entry, judged_alike, read_entry
from bcl.reports.published import Result, results, row_for
from bcl.runs.directory import Repeats
from bcl.settings import format_eps

Attacks = dict[float, tuple[Attack | None, ...]]  # by budget
Pick = Callable[[Evaluation, Attacks, float], Score | None]


@dataclass(frozen=True)
class Median:
    """The median run at one budget. A run alone is its own median."""

    attack: str
    """With the lowest mean."""
    eps: float
    """What it used of the budget."""
    mean: float
    sem: float
    interval: stats.Interval | None
    """Of the mean over its episodes."""


@dataclass(frozen=True)
class OverRepeats:
    """All repeats at one budget."""

    mean: float
    """Of the runs' means, each its own worst within the budget."""
    interval: stats.Interval | None


@dataclass(frozen=True)
class Cell:
    """A row at one budget."""

    eps: float
    median: Median
    """The worst within the budget."""
    exactly: Median
    """The worst attack at exactly this budget: the paper's number."""
    over_repeats: OverRepeats
    runs: tuple[tuple[float, ...], ...]
    """Returns per episode of every run, each its own worst within the budget."""


@dataclass(frozen=True)
class Row:
    """An entry in numbers."""

    label: str
    members: tuple[str, ...]
    median: str
    """The run with the median score."""
    score: float | None
    """Its nominal return + mean over the scored budgets of the worst within each; none where one was not judged."""
    paper_score: float | None
    """As the paper has it: of the worst attack at exactly each."""
    flags: tuple[str, ...]
    """Reasons to distrust the median run's scores: those of its verdict, then those of the scores compared."""
    cells: dict[float, Cell]
    """By budget; those that were judged."""
    published: Result | None


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
    eps: tuple[float, ...]
    """Empty where nobody was judged at any."""


@dataclass(frozen=True)
class Block:
    """Agents of one game, judged alike."""

    game: str
    levels: Levels
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
    def budgets(self) -> list[float]:
        """Ascending; 0 is nominal play."""
        return sorted(self.attacks)

    @property
    def usual_attacks(self) -> list[Attack | None]:
        """For titles: those that count at every budget above 0, or, where there is none, at any."""
        attacked = {eps: names for eps, names in self.attacks.items() if eps}
        common = _everywhere(attacked, [*attacked])
        return list(dict.fromkeys(common or (attack for names in attacked.values() for attack in names)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; budgets, which are keys here, are numbers in lists."""
        data = asdict(self)
        data["attacks"] = [{"eps": eps, "attacks": [*map(shown, attacks)]} for eps, attacks in self.attacks.items()]
        for row in data["rows"]:
            row["cells"] = [*row["cells"].values()]
            for cell in row["cells"]:
                cell["run_means"] = [stats.mean(returns) for returns in cell.pop("runs")]
        return data


@dataclass(frozen=True)
class Comparison:
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
        from bcl.reports.tables import as_markdown, tables

        return "\n\n".join(map(as_markdown, tables(self)))

    def _repr_html_(self) -> str:
        from bcl.reports.tables import as_html, tables

        return "".join(map(as_html, tables(self)))


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


def _blocks(entries: Sequence[Entry]) -> list[Block]:
    """The blocks of one game. The median of repeats is by the score summed over its blocks, as the paper has it."""
    wanted = {judged.levels: None for entry in entries for _, evaluations in entry.members for judged in evaluations}
    found = {levels: judged_alike(entries, levels) for levels in sorted(wanted, reverse=True)}  # train before eval
    chosen = {levels: alike for levels, alike in found.items() if alike}
    totals: dict[str, list[float]] = {}
    for alike in chosen.values():
        attacks = _shared_attacks(alike)
        for label, members in alike.items():
            scores = [_score(judged, attacks, _scored(entries, attacks)) for judged in members]
            before = totals.get(label, [0.0] * len(scores))
            totals[label] = [a + b for a, b in zip(before, scores, strict=True)]
    medians = {label: stats.median_run(scores) for label, scores in totals.items()}
    return [_block(entries, levels, alike, medians) for levels, alike in chosen.items()]


def _shared_attacks(alike: dict[str, list[Evaluation]]) -> Attacks:
    """By budget, what all of those agents faced who were judged at it."""
    everyone = [judged for members in alike.values() for judged in members]
    shared = {}
    for eps in sorted({eps for judged in everyone for _, eps in judged.cells}):
        sets = [[a for a, at in judged.cells if at == eps] for judged in everyone]
        sets = [attacks for attacks in sets if attacks]
        attacks = tuple(a for a in sets[0] if all(a in others for others in sets))
        if attacks:
            shared[eps] = attacks
    return shared


def _everywhere(attacks: Attacks, budgets: Sequence[float]) -> tuple[Attack | None, ...]:
    """The attacks that were played at all of these budgets."""
    if not budgets:
        return ()
    return tuple(attack for attack in attacks[budgets[0]] if all(attack in attacks[eps] for eps in budgets))


def _exactly(judged: Evaluation, attacks: Attacks, eps: float) -> Score | None:
    """Under the worst of the attacks that count at a budget; none where the agent was not judged at it."""
    scores = [judged.cells[attack, eps] for attack in attacks[eps] if (attack, eps) in judged.cells]
    return lowest(scores) if scores else None


def _within(judged: Evaluation, attacks: Attacks, eps: float) -> Score | None:
    """The worst of what counts at all budgets up to it; none where the agent was not judged at it."""
    found = [score for at in attacks if at <= eps and (score := _exactly(judged, attacks, at))]
    return lowest(found) if _exactly(judged, attacks, eps) else None


def _scored(entries: Sequence[Entry], attacks: Attacks) -> tuple[float, ...]:
    """The budgets of the final score, or what was judged of them; none where they have no attack in common."""
    scored = tuple(eps for eps in entries[0].scored if eps in attacks)
    return scored if _everywhere(attacks, scored) else ()


def _score(judged: Evaluation, attacks: Attacks, scored: tuple[float, ...], worst: Pick = _within) -> float:
    """As far as it was judged, under attacks that all its budgets have."""
    nominal = judged.cells.get((None, 0.0))
    counted = {None, *_everywhere(attacks, scored)}
    alike = {eps: tuple(attack for attack in names if attack in counted) for eps, names in attacks.items()}
    attacked = [score.mean for eps in scored if (score := worst(judged, alike, eps))]
    return (nominal.mean if nominal else 0.0) + (stats.mean(attacked) if attacked else 0.0)


def _block(
    entries: Sequence[Entry], levels: Levels, alike: dict[str, list[Evaluation]], medians: dict[str, int]
) -> Block:
    attacks = _shared_attacks(alike)
    present = [entry for entry in entries if entry.label in alike]
    scored = _scored(entries, attacks)
    rows = [_row(entry, alike[entry.label], attacks, scored, medians[entry.label], levels) for entry in present]
    first = alike[present[0].label][0]
    notes = [f"{entry.label} was not judged on these levels" for entry in entries if entry.label not in alike]
    notes += _atari_conditions(alike)
    notes += _uneven(attacks, scored)
    for row in rows:
        notes += _hurt_more(row.label, alike[row.label][medians[row.label]], attacks)
        notes += _fewer_budgets(row, attacks)
    missing = _missing(present, alike, attacks)
    if missing and (apart := [format_eps(eps) for eps in missing.eps if eps not in attacks]):
        notes.append(f"at {', '.join(apart)} no attack was faced by all; judge each by --suite {missing.suite}")
    quick = [entry.label for entry in present if entry.config and entry.config.budget == "small"]
    notes += [f"{label} is a quick look, not the paper's protocol" for label in quick]
    nominal = [label for label, members in alike.items() if not any(eps for one in members for _, eps in one.cells)]
    notes += [f"{label} was judged by nominal play alone" for label in nominal if missing and missing.eps]
    baseline, *others = rows
    improvements = [_improvement(row, baseline, eps) for row in others for eps in attacks]
    return Block(
        game=first.game.id,
        levels=levels,
        episodes=first.episodes,
        protocol=first.protocol,
        attacks=attacks,
        scored=scored,
        rows=tuple(rows),
        improvements=tuple(filter(None, improvements)),
        notes=tuple(notes),
        missing=missing,
    )


def _improvement(row: Row, over: Row, eps: float) -> Improvement | None:
    if eps not in row.cells or eps not in over.cells:
        return None
    runs = row.cells[eps].runs, over.cells[eps].runs
    return Improvement(row.label, over.label, eps, stats.improvement(*runs), stats.improvement_interval(*runs))


def _atari_conditions(alike: dict[str, list[Evaluation]]) -> Iterator[str]:
    """In what Atari evaluations of one table may differ: the pipeline, and v1's moves after a lost life."""
    games = {label: [j.game for j in members if isinstance(j.game, AtariGame)] for label, members in alike.items()}
    pipelines = sorted({game.pipeline for played in games.values() for game in played})
    if len(pipelines) > 1:
        yield f"seen through different pipelines ({', '.join(pipelines)})"
    if moved := [label for label, played in games.items() if any(game.life_reset for game in played)]:
        yield f"after a lost life NOOP, FIRE and action 2 were played, and their rewards dropped: {', '.join(moved)}"


def _uneven(attacks: Attacks, scored: tuple[float, ...]) -> Iterator[str]:
    """Where a number is over other attacks than the title names."""
    common = _everywhere(attacks, [eps for eps in attacks if eps])
    every = {attack for eps, names in attacks.items() if eps for attack in names}
    rest = {eps: tuple(a for a in names if a not in common) for eps, names in attacks.items() if eps}
    for names in dict.fromkeys(rest.values()):
        at = ", ".join(format_eps(eps) for eps, there in rest.items() if there == names)
        listed = ", ".join(map(attack_label, names))
        if names and common:
            yield f"at {at} the worst is also over {listed}"
        elif names and {*names} != every:
            yield f"at {at} the worst is over {listed} alone"
    counted = _everywhere(attacks, scored)
    if counted and any({*attacks[eps]} != {*counted} for eps in scored):
        yield f"the score is over {', '.join(map(attack_label, counted))}, which all its budgets have"


def _hurt_more(label: str, judged: Evaluation, attacks: Attacks) -> Iterator[str]:
    """What an agent has where an attack that not all faced hurt it more than those that count."""
    found = dict[Score, None]()
    for eps in attacks:
        if shown := _within(judged, attacks, eps):
            own = lowest(s for s in judged.cells.values() if s.eps <= eps)
            if clearly_lower(own, shown, judged.cells.get((None, 0.0))):
                found[own] = None
    for own in found:
        what = f"{own.mean:.4g} at {format_eps(own.eps)} under {attack_label(own.attack)}"
        yield f"{label} has {what}, which not all faced"


def _fewer_budgets(row: Row, budgets: Iterable[float]) -> Iterator[str]:
    """Where an agent was not judged at budgets that count for others at larger ones."""
    lacking = [format_eps(eps) for eps in budgets if eps not in row.cells and eps < max(row.cells, default=0.0)]
    if lacking:
        yield f"{row.label} was not judged at {', '.join(lacking)}: within larger budgets it may have less"


def _missing(entries: Sequence[Entry], alike: dict[str, list[Evaluation]], attacks: Attacks) -> Missing | None:
    """Where a budget has no attack that all faced, or an agent no budget: the largest suite that somebody faced, and the
    first agent that did not."""
    everyone = [
        (entry.label, name, judged)
        for entry in entries
        for (name, _), judged in zip(entry.members, alike[entry.label], strict=True)
    ]
    budgets = sorted({eps for *_, judged in everyone for _, eps in judged.cells if eps})
    apart = [eps for eps in budgets if eps not in attacks]
    if not apart and all(any(eps for _, eps in judged.cells) for *_, judged in everyone):
        return None
    suites = {name: {*suite} for name, suite in SUITES.items()}
    wanted = apart or budgets
    for name in sorted(suites, key=lambda name: -len(suites[name])):
        lacking = [
            (label, member, eps)
            for label, member, judged in everyone
            for eps in wanted
            if not suites[name] <= {attack for attack, at in judged.cells if at == eps}
        ]
        if len(lacking) < len(everyone) * len(wanted):
            label, member, _ = lacking[0]
            return Missing(label, member, name, tuple(wanted))
    label, member, _ = next((one for one in everyone if not any(eps for _, eps in one[2].cells)), everyone[0])
    return Missing(label, member, "paper", tuple(wanted))


def _row(
    entry: Entry,
    members: Sequence[Evaluation],
    attacks: Attacks,
    scored: tuple[float, ...],
    median: int,
    levels: Levels,
) -> Row:
    cells, judged = {}, flags(members[median].scores)
    raised = [*(entry.flags[median] if entry.flags else ()), *map(str, judged)]
    for eps in attacks:
        found = [score for judged in members if (score := _within(judged, attacks, eps))]
        exactly = _exactly(members[median], attacks, eps)
        if len(found) < len(members) or exactly is None:
            continue
        runs = tuple(score.returns for score in found)
        everyone = OverRepeats(stats.mean([score.mean for score in found]), stats.mean_interval(runs))
        cells[eps] = Cell(eps, _median(found[median]), _median(exactly), everyone, runs)
    whole = bool(scored) and {0.0, *scored} <= cells.keys()
    return Row(
        label=entry.label,
        members=tuple(name for name, _ in entry.members),
        median=entry.members[median][0],
        score=_score(members[median], attacks, scored) if whole else None,
        paper_score=_score(members[median], attacks, scored, _exactly) if whole else None,
        flags=tuple(dict.fromkeys(raised)),
        cells=cells,
        published=row_for([row for row in results(entry.game.id) if row.levels == levels], entry.config),
    )


def _median(score: Score) -> Median:
    return Median(shown(score.attack), score.eps, score.mean, score.sem, stats.mean_interval([score.returns]))
