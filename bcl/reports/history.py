"""How an agent came about: runs, decisions and learning curves, read from the folders of a run's stages."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bcl.experiment.paced import PACED_RUN
from bcl.experiment.phases import clock_after, decisions, rules_of
from bcl.experiment.run import read_config, stage_folders
from bcl.experiment.work import DIVERGED, METRICS, RESULT
from bcl.recipes import Stage
from bcl.reports.data import Bar, BarState, Curve, Panel, Rise, Skip, Timeline
from bcl.reports.style import short_eps
from bcl.runs import store

MOST_POINTS = 150  # of a curve; more cannot be told apart in a panel
EPISODES_A_POINT = 10  # at least, where the run has enough of them
FEWEST_POINTS = 4


def read_timeline(run: Path) -> Timeline | None:
    """All stages one after the other; none before the first row of metrics."""
    reported = store.read_json(run / RESULT).get("policy") if (run / RESULT).exists() else None
    bars, skips, panels, rises = list[Bar](), list[Skip](), list[Panel](), list[Rise]()
    target, began = None, 0.0
    for _, stage, folder in stage_folders(run):
        if stage.strategy == "none":
            eps = 0.0 if stage.loss == "standard" else read_config(folder).curriculum.target
            rows, name = store.read_metrics(folder / METRICS), folder.name[2:]
            if rows:
                bars.append(_bar(folder, name, (0, 1, 1), eps, (began, began + training_seconds(rows)), True, reported))
                panels.append(Panel(name, (_curve(1, True, rows),), phase=False))
        elif stage.strategy == "paced":
            if rows := store.read_metrics(folder / PACED_RUN / METRICS):
                every = -(-len(rows) // MOST_POINTS)
                seconds = tuple(began + time for time in _times(rows)[::every])
                rises.append(Rise(seconds, tuple(row["eps"] for row in rows[::every])))
                panels.append(Panel(folder.name[2:] + ", paced", (_curve(1, True, rows),), phase=False))
                target = read_config(folder).curriculum.target
        else:
            more = _read_curriculum(stage, folder, began, reported)
            bars, skips, panels = bars + more[0], skips + more[1], panels + more[2]
            target = None if stage.strategy == "open" else read_config(folder).curriculum.target
        began = max(
            [began, *(bar.end for bar in bars), *(skip.at for skip in skips), *(rise.seconds[-1] for rise in rises)]
        )
    if not panels:
        return None
    return Timeline(tuple(bars), tuple(skips), tuple(panels), target, tuple(rises))


def kept_folder(stage_folder: Path, phase: int) -> Path:
    """Where the agent lies that a phase handed on; the stage's own folder is the bootstrap's."""
    kept = {made["decision"]["phase"]["index"]: made["decision"]["kept"] for made in decisions(stage_folder)}
    for index in sorted((i for i in kept if i <= phase), reverse=True):
        if isinstance(kept[index], int):
            return stage_folder / "phases" / f"{index:03d}" / f"run{kept[index]}"
    return stage_folder


def training_seconds(rows: Sequence[dict[str, Any]]) -> float:
    """The time a run trained, from its rows of metrics."""
    return _times(rows)[-1] if rows else 0.0


def _times(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of training up to each row."""
    steps = np.diff([0.0, *(row["step"] for row in rows)])
    rates = [row.get("steps_per_second") for row in rows]
    return np.cumsum([count / rate if rate else 0.0 for count, rate in zip(steps, rates, strict=True)]).tolist()


def _read_curriculum(
    stage: Stage, folder: Path, began: float, reported: str | None
) -> tuple[list[Bar], list[Skip], list[Panel]]:
    bars, skips, panels, spent = list[Bar](), list[Skip](), list[Panel](), 0.0
    made = {one["decision"]["phase"]["index"]: one for one in decisions(folder)}
    if not made:
        return bars, skips, panels
    eps = rules_of(stage, read_config(folder), made[0]["decision"]["phase"]["eps"]).eps
    for path in sorted((folder / "phases").glob("[0-9]*")):
        index, decided = int(path.name), made.get(int(path.name))
        candidates = {c["run"]: c.get("met") for c in decided["decision"]["candidates"]} if decided else None
        kept = decided["decision"]["kept"] if decided else None  # of a phase under way, nobody knows
        numbers = sorted(int(run.name[3:]) for run in path.glob("run[0-9]*"))
        trained = {k: rows for k in numbers if (rows := store.read_metrics(path / f"run{k}" / METRICS))}
        curves, last, first, beside = [], spent, 0.0, False
        for place, (k, rows) in enumerate(trained.items(), 1):
            seconds, end = training_seconds(rows), clock_after(path, k)
            first = first or seconds
            needed = candidates is None or k in candidates
            if decided and not needed:  # it trained beside the others until they had decided, or was done by then
                end = decided["seconds"]
                start = spent if beside else max(spent, end - seconds)
            else:
                # One after the other, a run begins where the one before ended; side by side, it took longer than that, or
                # ends, as its time is kept in their order, with the one before: then it began with the first.
                beside = end is not None and place > 1 and end - last < seconds / 2 and seconds > first / 2
                start = last if end is None else spent if beside else max(spent, min(last, end - seconds))
                last = end = start + seconds if end is None else end
            which, span = (index, place, len(trained)), (began + start, began + end)
            chosen = None if kept is None else k == kept
            bar = _bar(path / f"run{k}", f"phase {index}", which, eps[index], span, chosen, reported)
            missed = candidates is not None and candidates.get(k) is False
            bars.append(replace(bar, missed=missed) if needed else replace(bar, state="not needed"))
            curves.append(_curve(k, k == kept, rows))
        if curves:
            low, high = short_eps(eps[index - 1]), short_eps(eps[index])
            title = f"phase {index}: {low.removesuffix('/255') if '/' in high else low} to {high}"
            panels.append(Panel(title, tuple(curves), phase=True))
        if decided:
            spent = decided["seconds"]
            skips += _skips(decided["decision"], eps, began + spent)
    return bars, skips, panels


def _skips(decision: dict[str, Any], eps: tuple[float, ...], at: float) -> Iterator[Skip]:
    """From what the agent was trained up to, to the largest budget that it was robust to and that training leaves out."""
    index, following = decision["phase"]["index"], decision["next"]
    if following is None:
        robust = [t["eps"] for t in decision["tried"] if t["robust"] and t["by"] == "score" and t["eps"] > eps[index]]
        following = eps.index(max(robust)) + 1 if robust and eps[-1] in robust else index + 1
    if following > index + 1:
        yield Skip(at, eps[index], eps[following - 1], following - index - 1)


def _bar(
    folder: Path,
    name: str,
    place: tuple[int, int, int],
    eps: float,
    span: tuple[float, float],
    kept: bool | None,
    reported: str | None,
) -> Bar:
    done = store.read_json(folder / RESULT) if (folder / RESULT).exists() else {}
    state: BarState = "undecided" if kept is None else "kept" if kept else "not kept"
    state = "diverged" if DIVERGED in done else state if done else "unfinished"
    return Bar(name, *place, eps, *span, state, bool(reported) and done.get("policy") == reported)


def _curve(run: int, kept: bool, rows: Sequence[dict[str, Any]]) -> Curve:
    def points(name: str) -> list[tuple[float, float, float]]:
        return [(row["step"], row[name], row.get("episodes") or 1.0) for row in rows if row.get(name) is not None]

    return Curve(run, kept, *_pooled(points("return")), *_pooled(points("return_attacked")))


def _pooled(points: Sequence[tuple[float, float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Steps and returns of (step, mean return, episodes), averaged over stretches with enough episodes.

    Games that start together end in the order of their length, and long ones are not like short ones: a row of metrics with one
    late episode says little.
    """
    if not points:
        return (), ()
    total = sum(episodes for *_, episodes in points)
    enough = max(total / MOST_POINTS, min(EPISODES_A_POINT, total / FEWEST_POINTS))
    stretches, left = [np.empty((0, 3))], total
    for point in points:
        if stretches[-1][:, 2].sum() >= enough <= left:
            stretches.append(np.empty((0, 3)))
        stretches[-1] = np.vstack([stretches[-1], point])
        left -= point[2]
    means = [np.average(stretch[:, :2], axis=0, weights=stretch[:, 2]) for stretch in stretches]
    steps, returns = np.transpose(means).tolist()
    return tuple(steps), tuple(returns)
