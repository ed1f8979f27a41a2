"""Where a run stands, whether its stages learned, and where its time went, read from its files: for its own live view
and for other processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bcl.attacks import Attack, attacks_named
from bcl.config import Config
from bcl.curriculum_rules import INCUMBENT
from bcl.errors import StoreError, counted
from bcl.evaluation.certify import USUAL_LENGTH
from bcl.evaluation.evaluation import all_scores
from bcl.evaluation.plan import network_passes
from bcl.experiment.phases import budgets_of, phase_line, rules_of
from bcl.experiment.verdict import NO_LEARNING, UNKNOWN_LEARNING, choosing_attacks, plans_of
from bcl.experiment.worker import TRAINING
from bcl.learners.metrics import Metrics
from bcl.learners.pacing import increments_at, rise_steps
from bcl.recipes import ONE_RUN
from bcl.runs import store
from bcl.runs.directory import Piece, RunDirectory, StageFolder, TrainingFolder
from bcl.runs.results import Flag
from bcl.settings import format_eps, format_return

RunState = Literal["finished", "at work", "stopped"]
ENOUGH = 100  # episodes: the first of many copies to end are its shortest, and say little about the others
SIGMAS = 3.0  # a rise counts above this many standard errors
# Of a GPU, by benchmarks/results/evaluate-h200-cells.json; of a CPU, what training shows.
GPU_PASSES = 5_000  # a second, through the network that attacks look at
GPU_STARTS = 12  # of Multi, in the time of one pass
Part = tuple[float, float, float]  # mean return, population deviation, episodes


@dataclass(frozen=True)
class Status:
    """A run at one moment."""

    config: Config
    state: RunState
    owner: str
    """The process at work, if one is."""
    lines: tuple[str, ...]
    """Stages and phases that are finished, and where the curriculum is."""
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Work:
    """Of a run: what was done, and how much it can be in all. Budgets may be skipped, and runs not needed."""

    steps: int
    """Agent steps of training."""
    most_steps: int
    passes: float
    """Through the network in a step, over all scores that choose agents or make the verdict."""
    most_passes: float
    at_most: bool = False
    """Some of it may turn out not to be needed."""

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.steps + other.steps,
            self.most_steps + other.most_steps,
            self.passes + other.passes,
            self.most_passes + other.most_passes,
            self.at_most or other.at_most,
        )

    def seconds(self, speed: float, pass_speed: float) -> tuple[float, float]:
        """What was done and the whole, at so many steps and passes a second."""
        return self.steps / speed + self.passes / pass_speed, self.most_steps / speed + self.most_passes / pass_speed


@dataclass(frozen=True)
class Times:
    """Seconds of wall time of one curriculum: training, judging while nothing trained, and training that was not
    used."""

    wall: float
    training: float
    """In which a run trained that a decision names."""
    unused_runs: int
    unused: float
    """Of training that no decision names."""

    @property
    def judging(self) -> float:
        """In which no run trained that counts; a run trains from before it starts its games."""
        return max(0.0, self.wall - self.training)

    @property
    def judging_share(self) -> float:
        return self.judging / self.wall if self.wall else 0.0

    def __str__(self) -> str:
        words = [f"{self.wall:.0f} s", f"{self.judging_share:.0%} of them judging while nothing trained"]
        if self.unused_runs:
            words.append(f"{counted(self.unused_runs, 'run')} trained but not used ({self.unused:.0f} s)")
        return ", ".join(words)


def status(path: Path) -> Status:
    run = RunDirectory.open(path)
    run.check_unchanged()
    owner = store.owner(path)
    state: RunState = "finished" if run.finished else "at work" if owner else "stopped"
    lines = tuple(line for stage in run.stages() for line in _stage_lines(stage))
    if run.finished:
        return Status(run.config, state, owner or "", lines, ())
    since = run.locked_since() if owner else 0.0  # of a stopped run, the work that was under way when it stopped
    return Status(run.config, state, owner or "", lines, tuple(pieces(path, since)))


def pieces(run: Path, since: float) -> Iterator[Piece]:
    """Work that wrote its progress after a time (of the file system's clock), and has not ended."""
    for path in RunDirectory(run).progress_files():
        try:
            if path.stat().st_mtime < since:
                continue
            found = Piece.read(path)
            rows = TrainingFolder(path.parent).metrics() if found.doing == TRAINING else []
        except (FileNotFoundError, StoreError):
            if path.exists():
                raise
            continue  # it ended in the meantime
        yield replace(found, row=rows[-1]) if rows else found


def work_of(run: Path, under_way: Sequence[Piece]) -> Work | None:
    """What was done of a run, and how much it can be in all. None where there is no end: an open-ended curriculum to
    which no limit was given."""
    steps = sum(piece.done for piece in under_way if piece.doing == TRAINING)
    evaluated = sum(piece.done / max(piece.of, 1) for piece in under_way if piece.doing != TRAINING)  # agents
    most_steps = 0
    scores = {results.path: all_scores(results.scores) for results in RunDirectory(run).all_results()}
    at_once = GPU_STARTS if _on_gpu(run) else 1
    played = {folder: sum(network_passes(score.attack, at_once) for score in found) for folder, found in scores.items()}
    stages = RunDirectory(run).stages()
    config = stages[-1].config
    attacks = attacks_named(config.evaluation.suite) if RunDirectory(run).has_defence else ()
    starts = 1 if RunDirectory(run).about().get("init") else sum(not stage.own for stage in stages)  # evaluated too
    verdict = _agent_passes(attacks, len({*config.evaluation.eps, config.curriculum.target}), at_once)
    most_passes = (1 + starts) * len(plans_of(config, "evaluation")) * verdict
    now = verdict  # what an agent costs that is evaluated now
    at_most = False
    for stage in stages:
        trained, left, agents, budgets = _of_stage(stage)
        if left is None:
            return None
        learner = stage.config.learner(stage.loss)
        steps += trained * learner.steps
        most_steps += (trained + left) * learner.steps
        at_most = at_most or (left > 0 and stage.strategy not in ONE_RUN)
        if stage.finished and agents:
            most_passes += sum(count for folder, count in played.items() if folder.is_relative_to(stage.path))
        elif agents:
            now = _agent_passes(choosing_attacks(stage.config), budgets, at_once)
            most_passes += agents * now
    passes = min(sum(played.values()) + evaluated * now, most_passes)
    if RunDirectory(run).finished:
        return Work(steps, steps, passes, passes)
    return Work(steps, most_steps, passes, most_passes, at_most)


def _of_stage(stage: StageFolder) -> tuple[int, int | None, int, int]:
    """Its training runs that ended and, at most, those to come; how many agents it chooses from, and at how many
    budgets each is judged. None to come: it has no end."""
    if stage.strategy in ONE_RUN:
        ended = stage.finished or stage.paced_run.finished  # of the latter, agents may still be chosen from
        agents = _candidates(stage) if stage.strategy == "paced" else 0
        return int(ended), 1 - ended, agents, len(stage.config.evaluation.scored)
    trained = sum(run.finished for phase in stage.phases() for run in phase.runs().values())
    left = 0 if stage.finished else _runs_left(stage, trained)
    return trained, left, 1 + trained + (left or 0), 2  # the phase's budget, and the one before it


def _agent_passes(attacks: Sequence[Attack], budgets: int, starts_at_once: int) -> int:
    """In a step of every score of one agent."""
    return 1 + budgets * sum(network_passes(attack, starts_at_once) for attack in attacks)


def _on_gpu(run: Path) -> bool:
    return str(RunDirectory(run).provenance.worker_device).startswith("cuda")


def _candidates(stage: StageFolder) -> int:
    """Agents that a paced stage chooses from, at most: its start, its last one, and one per increment that was held."""
    if stage.paced_run.finished:
        return 2 + len(stage.paced_run.snapshots())
    c = stage.config.curriculum
    steps = stage.config.learner(stage.loss).steps
    first = c.start + c.gentle_from * c.gentle_below
    return 2 + increments_at(c, first + c.increment * steps / rise_steps(c, steps))


class Speeds(NamedTuple):
    """How fast a run works, by what it has told."""

    steps: float
    """Agent steps a second of the last training run that has told them."""
    passes: float
    """About how many there will be a second: those of `Work`, made as often as its episodes had steps."""
    now: bool
    """The training run is of a stage that has not ended."""


def has_updates(row: Metrics) -> bool:
    """Whether it tells of training, and not only of play that fills the memory, which is faster."""
    return bool(row and row.get("updates", 1))


def speeds(run: Path) -> Speeds | None:
    """On a CPU one pass for all copies takes as long as acting; on a GPU what acting takes is mostly waiting for other
    work. None: nothing has trained yet."""
    told = [*islice(_trainings(run), 2)]
    length = max((_length(*one) for one in told), default=USUAL_LENGTH)  # a training begins with play that explores
    for stage, rows in told:
        for row in reversed(rows):
            if (speed := row.get("steps_per_second")) and has_updates(row):
                acting = stage.config.learner(stage.loss).num_envs * (row.get("share_act") or 1.0)
                passes = (GPU_PASSES if _on_gpu(run) else speed / acting) / length
                return Speeds(speed, passes, not stage.finished)
    return None


def _length(stage: StageFolder, rows: Sequence[Metrics]) -> float:
    """About how many steps an episode has."""
    half = len(rows) // 2  # the later rows are of how it plays now
    steps = (rows[-1]["step"] or 0) - ((rows[half - 1]["step"] or 0) if half else 0)
    episodes = sum(row.get("episodes") or 0 for row in rows[half:])
    length = steps / episodes if episodes else USUAL_LENGTH
    if episodes < stage.config.learner(stage.loss).num_envs:  # most copies are still in one
        length = min(length, USUAL_LENGTH)
    return min(length, stage.config.evaluation.max_steps)


def _trainings(run: Path) -> Iterator[tuple[StageFolder, list[Metrics]]]:
    """The rows of every training run that has some, the last first."""
    trainings = [*RunDirectory(run).trainings()]
    for stage in reversed(RunDirectory(run).stages()):
        for training in reversed(trainings):
            if training.path.is_relative_to(stage.path) and (rows := training.metrics()):
                yield stage, rows


def _runs_left(stage: StageFolder, trained: int) -> int | None:
    """Of a curriculum, at most; none: it is open-ended, and nothing limits it or not known yet by how many runs."""
    c = stage.config.curriculum
    made = stage.decisions()
    limits: list[int] = []
    if stage.strategy != "open":
        rules = rules_of(stage.config, stage.strategy, made[0].decision.phase.eps if made else c.start)
        phase = made[-1].decision.next or len(rules.eps) if made else 1
        here = sum(run.finished for run in stage.phase(phase).runs().values())
        limits.append((len(rules.eps) - phase) * rules.runs - here)
    if c.max_runs:
        limits.append(c.max_runs - trained)
    judged = sum(one.run != INCUMBENT for decided in made for one in decided.decision.candidates)
    if c.max_hours and judged:  # by the hours that these took
        limits.append(ceil(judged * 3600 * c.max_hours / made[-1].seconds) - trained)
    return max(0, min(limits)) if limits else None


def incumbent(run: Path) -> str:
    """The best agent of the curriculum at work, in a few words; empty where none is known."""
    for stage in reversed(RunDirectory(run).stages()):
        if stage.strategy != "none" and not stage.finished and (made := stage.decisions()):
            best_phase = made[-1].decision.best_phase
            best = next(one.decision for one in made if one.decision.phase.index == best_phase)
            kept = best.candidate(best.kept)
            scores = kept.scores if kept else {}
            words = [f"nominal {format_return(scores[0.0])}"] if 0.0 in scores else []
            if (largest := max(scores, default=0.0)) > 0:
                words.append(f"{format_return(min(scores.values()))} within {format_eps(largest)}")
            return ", ".join(words)
    return ""


def _pace_in_words(row: Metrics) -> str:
    """What the last check of a paced budget found; empty before the first."""
    if (met := row.get("met")) is None:
        return ""
    names = {"nominal_threshold": "clean", "attacked_threshold": "attacked"}
    needed = [f"{format_return(wanted)} {name}" for key, name in names.items() if (wanted := row.get(key)) is not None]
    return f"; its last check {'met' if met else 'missed'} {' and '.join(needed)}"


def _stage_lines(stage: StageFolder) -> Iterator[str]:
    if stage.strategy == "none":
        if stage.finished:
            flag = learning_flag(stage)
            yield f"{stage.name}: trained" + (f"; {flag.message}" if flag else "")
    elif stage.strategy == "paced":
        if stage.finished:
            outcome = stage.outcome()
            yield f"{stage.name}: paced, it is {outcome.kept}, {outcome.stopped}"
        elif rows := stage.paced_run.metrics():
            largest = max(row["eps"] for row in rows)
            yield f"{stage.name}: paced, eps {rows[-1]['eps']:.3g} now, {largest:.3g} at most{_pace_in_words(rows[-1])}"
    elif made := stage.decisions():
        eps = budgets_of(stage)
        before = 0.0
        for one in made:
            yield f"{stage.name}: {phase_line(one.decision, eps, one.seconds - before)}"
            before = one.seconds
        if stage.finished and (times := times_of(stage)):
            yield f"{stage.name}: {times}"


def times_of(stage: StageFolder) -> Times | None:
    """Of a curriculum, by what is stored; none: there is no clock, or one of version 0.1."""
    wall = stage.wall_seconds()
    spans = [[*map(stage.on_clock, run.span)] for run in stage.training_runs()]
    known = [(began, ended) for began, ended in spans if began is not None and ended is not None]
    if wall is None or len(known) < len(spans):
        return None
    unused = [seconds for _, seconds in stage.unused_training()]
    return Times(wall, _covered(known), len(unused), sum(unused))


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds that lie in at least one span."""
    covered = 0.0
    until = 0.0
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return covered


def learning_flag(run: TrainingFolder) -> Flag | None:
    """A flag about a finished stage from fresh weights whose last episodes were no better than its
    first, or of which that cannot be told; else none.

    A stage that trains on from an agent begins with good returns, and is not expected to raise them.
    """
    if not run.finished or run.parent:
        return None
    if not store.exists(run.metrics_file):
        return Flag(UNKNOWN_LEARNING, f"its {run.metrics_file.name} is missing, so whether it learned cannot be told")
    rows = run.metrics()
    found = first_and_last(rows)
    if found is None:
        known = _known(rows)  # good episodes are long, and few
        if len(known) > 1 and rose(known[0], _pooled(known[1:])):
            return None
        return Flag(UNKNOWN_LEARNING, "it has too few episodes or rows of metrics to tell whether it learned")
    if rose(*found):
        return None
    (first, _, before), (last, _, after) = found
    start, end = (counted(int(number), "episode") for number in (before, after))
    what = (
        f"returns did not rise ({format_return(first)} in its first {start}, {format_return(last)} in its last {end})"
    )
    return Flag(NO_LEARNING, what)


def rose(first: Part, last: Part) -> bool:
    """Whether the mean return grew by more than chance."""
    before, before_sd, before_episodes = first
    after, after_sd, after_episodes = last
    return after - before > SIGMAS * (before_sd**2 / before_episodes + after_sd**2 / after_episodes) ** 0.5


def first_and_last(rows: Sequence[dict[str, Any]]) -> tuple[Part, Part] | None:
    """`ENOUGH` episodes from each end of a run, a quarter of all where these are few; none: they cannot be told
    apart."""
    known = _known(rows)
    wanted = min(ENOUGH, sum(part[2] for part in known) / 4)
    head = _until(wanted, known)
    tail = _until(wanted, known[::-1])
    if not head or len(head) + len(tail) > len(known):
        return None
    return _pooled(head), _pooled(tail)


def _known(rows: Sequence[dict[str, Any]]) -> list[Part]:
    parts: list[Any] = [(row.get("return"), row.get("return_sd"), row.get("episodes")) for row in rows]
    return [part for part in parts if all(isinstance(number, int | float) for number in part)]


def _until(episodes: float, parts: Sequence[Part]) -> Sequence[Part]:
    """The first parts that have so many episodes together."""
    count = 0.0
    for number, part in enumerate(parts, 1):
        count += part[2]
        if count >= episodes:
            return parts[:number]
    return parts


def _pooled(parts: Sequence[Part]) -> Part:
    episodes = sum(count for *_, count in parts)
    mean = sum(part_mean * count for part_mean, _, count in parts) / episodes
    squares = sum((sd**2 + part_mean**2) * count for part_mean, sd, count in parts) / episodes
    return mean, max(squares - mean**2, 0.0) ** 0.5, episodes
