"""Where a run stands, read from its files: the same for its own live view and for somebody in another terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bcl.config import Config
from bcl.errors import StoreError
from bcl.experiment.learned import doubt
from bcl.experiment.paced import PACED_RUN
from bcl.experiment.phases import decisions, phase_line, rules_of
from bcl.experiment.run import check_unchanged, read_config, stage_folders
from bcl.experiment.work import METRICS, PROGRESS, RESULT, TRAINING
from bcl.learners.task import Metrics
from bcl.quantities import format_eps
from bcl.recipes import Stage
from bcl.runs import store


@dataclass(frozen=True)
class Piece:
    """A piece of work under way."""

    name: str
    """Such as `vanilla`, or `phase 3 up to 4/255, run 2 of 3`."""
    doing: str
    """`training`, or the attack and budget being played."""
    done: int
    of: int
    row: Metrics
    """The last row of metrics, where it trains."""


@dataclass(frozen=True)
class Status:
    """A run at one moment."""

    config: Config
    state: Literal["finished", "at work", "stopped"]
    owner: str
    """The process at work, if one is."""
    lines: tuple[str, ...]
    """Stages and phases that are finished, and where the curriculum is."""
    pieces: tuple[Piece, ...]


def status(run: Path) -> Status:
    """Where a run stands."""
    store.resume_run(run, lambda stored: [])
    check_unchanged(run)
    config, owner = read_config(run), store.owner(run)
    lines = [line for _, stage, folder in stage_folders(run) for line in _stage_lines(stage, folder)]
    since = (run / "lock").stat().st_mtime if owner else 0.0  # of a stopped run, where its work was cut
    state: Literal["finished", "at work", "stopped"] = "at work" if owner else "stopped"
    finished = (run / RESULT).exists()
    return Status(config, "finished" if finished else state, owner or "", tuple(lines), tuple(pieces(run, since)))


def pieces(run: Path, since: float) -> Iterator[Piece]:
    """What has told of progress after a time (of the file system's clock), and has not ended."""
    for path in sorted(run.rglob(f"*{PROGRESS}")):
        try:
            if path.stat().st_mtime < since:
                continue
            told = store.read_json(path)
            rows = store.read_metrics(path.parent / METRICS) if told["doing"] == TRAINING else []
        except (FileNotFoundError, StoreError):
            if path.exists():
                raise
            continue  # it ended as we looked
        yield Piece(told["name"], told["doing"], told["done"], told["of"], (rows or [{}])[-1])


def training_left(run: Path, under_way: Sequence[Piece]) -> tuple[int, int] | None:
    """Steps trained so far, and how many there can be in all: budgets may be skipped, and runs not needed. None where there
    is no end (an open-ended curriculum), or nothing left to train."""
    done, most = sum(piece.done for piece in under_way if piece.doing == TRAINING), 0
    for _, stage, folder in stage_folders(run):
        config, finished = read_config(folder), (folder / RESULT).exists()
        steps, trained = config.learner(stage.loss).steps, len([*folder.glob(f"phases/*/run*/{RESULT}")])
        if stage.strategy in ("none", "paced"):
            done, most = done + finished * steps, most + steps
            continue
        if not finished:
            if stage.strategy == "open":
                return None
            made, c = decisions(folder), config.curriculum
            rules = rules_of(stage, config, made[0]["decision"]["phase"]["eps"] if made else c.start)
            phase = made[-1]["decision"]["next"] or len(rules.eps) if made else 1
            here = len([*folder.glob(f"phases/{phase:03d}/run*/{RESULT}")])
            runs = (len(rules.eps) - phase) * rules.runs - here
            most += steps * (min(runs, c.max_runs - trained) if c.max_runs else runs)
        done, most = done + trained * steps, most + trained * steps
    return (done, most) if done < most else None


def incumbent(run: Path) -> str:
    """The best agent of the curriculum at work, in a few words; empty where none is known."""
    for _, stage, folder in reversed(stage_folders(run)):
        if stage.strategy != "none" and (made := decisions(folder)) and not (folder / RESULT).exists():
            best_phase = made[-1]["decision"]["best_phase"]
            best = next(one["decision"] for one in made if one["decision"]["phase"]["index"] == best_phase)
            kept = next(c for c in best["candidates"] if c["run"] == best["kept"])
            scores = {float(eps): score for eps, score in kept["scores"].items()}
            words = [f"nominal {scores[0.0]:.4g}"] if 0.0 in scores else []
            if (largest := max(scores, default=0.0)) > 0:
                words.append(f"{min(scores.values()):.4g} within {format_eps(largest)}")
            return ", ".join(words)
    return ""


def _stage_lines(stage: Stage, folder: Path) -> Iterator[str]:
    name = folder.name[2:]
    if stage.strategy == "none":
        if (folder / RESULT).exists():
            _, words = doubt(folder) or ("", "")
            yield "; ".join(filter(None, (f"{name}: trained", words)))
        return
    if stage.strategy == "paced":
        if (folder / RESULT).exists():
            about = store.read_json(folder / RESULT)
            yield f"{name}: paced, it is {about.get('kept')}, {about.get('stopped')}"
        elif rows := store.read_metrics(folder / PACED_RUN / METRICS):
            largest = max(row["eps"] for row in rows)
            yield f"{name}: paced, eps {rows[-1]['eps']:.3g} now, {largest:.3g} at most"
        return
    made, seconds = decisions(folder), 0.0
    for one in made:
        budgets = rules_of(stage, read_config(folder), made[0]["decision"]["phase"]["eps"]).eps
        yield f"{name}: {phase_line(one['decision'], budgets, one['seconds'] - seconds)}"
        seconds = one["seconds"]
