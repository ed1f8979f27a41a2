"""The run directory: all its paths, and every fact that is stored in it. Nobody else joins paths inside a run.

    config.toml  run.json            the settings; version, commit, command, machine, seed, stages, format
    init/                            the agent to start from, where one was given
    stages/1-vanilla/                a training run
    stages/3-at/phases/003/          a phase of a curriculum: run1/, run2/, ... and decision.json
    best/policy.safetensors          the agent to report; evals/, certs/, breaking/ hold its results
    result.json                      the verdict, written last

Several runs that differ in their seed alone lie in one folder with repeats.json (`Repeats`).
"""

import hashlib
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bcl import recipes
from bcl.config import Config, config_from_dict, config_from_toml, override
from bcl.curriculum_rules import INCUMBENT, Decision
from bcl.errors import StoreError
from bcl.recipes import Stage
from bcl.runs import store
from bcl.runs.store import Json
from bcl.settings import difference, to_toml

FORMAT = 2  # of run directories; those of version 0.1 have no number
POLICY, RESULT, METRICS, CONFIG = "policy.safetensors", "result.json", "metrics.jsonl", "config.toml"
EVALS, CERTS, PROGRESS = "evals", "certs", "progress.json"
COPY_AGAIN = "copy the run again with all its files"
REPORTED = (RESULT, METRICS, "decision.json", "clock*.json", "time-after*.json")  # files in the folders of stages
# What a creation makes, of a run or of repeats.
_MADE = re.compile(r"(seed\d+/)?(lock|run\.json|init/policy\.safetensors|(stages/[^/]+/)?config\.toml)")


@dataclass(frozen=True)
class Agent:
    """A trained policy, by where it lies."""

    file: Path
    evals: Path
    """The folder of its scores."""
    fingerprint: str
    """Empty: its training diverged, and there is no file."""
    phase: int = 0
    """In which it was trained; 0: before the curriculum."""


@dataclass(frozen=True)
class ResultFolder:
    """A folder whose work is done once its result.json is there."""

    path: Path

    @property
    def result_file(self) -> Path:
        """See `result`."""
        return self.path / RESULT

    @property
    def finished(self) -> bool:
        """Whether it has a result."""
        return self.result_file.exists()

    def result(self) -> Json:
        """What came out; empty before the work has ended."""
        return store.read_if_there(self.result_file)

    @property
    def evals(self) -> Path:
        """The folder of its agent's scores."""
        return self.path / EVALS

    def lock(self, say: Callable[[str], None] = lambda _: None) -> AbstractContextManager[None]:
        """Hold the folder for this process."""
        return store.lock(self.path, say)

    def owner(self) -> str | None:
        """Who holds it, as it presented itself; none if nobody does."""
        return store.owner(self.path)


@dataclass(frozen=True)
class TrainingFolder(ResultFolder):
    """One training run: its agent, metrics and result; while it is under way, its checkpoint and progress."""

    @property
    def policy(self) -> Path:
        """The agent that was trained."""
        return self.path / POLICY

    @property
    def metrics_file(self) -> Path:
        """See `metrics`."""
        return self.path / METRICS

    @property
    def checkpoint(self) -> Path:
        """There while the run is under way."""
        return self.path / "checkpoint.pt"

    @property
    def progress(self) -> Path:
        """There while the run, or the evaluation after it, is under way."""
        return self.path / PROGRESS

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Store the result, which says that the run has ended; its checkpoint goes."""
        store.write_json(self.result_file, facts)
        store.remove(self.checkpoint)

    @property
    def diverged(self) -> bool:
        """Whether it ended without an agent."""
        return "diverged" in self.result()

    def agent(self, phase: int = 0) -> Agent:
        """What a run that has ended left."""
        return Agent(self.policy, self.evals, str(self.result().get("policy")), phase)

    def metrics(self) -> list[Json]:
        """A row per `log_steps`."""
        return store.read_metrics(self.metrics_file)

    def steps(self) -> int:
        """How many were trained."""
        rows = self.metrics()
        return int(rows[-1]["step"]) if rows else 0

    def seconds(self) -> float:
        """Spent training, as stored; before the end, and of version 0.1, by the rates in its metrics."""
        stored = self.result().get("seconds")
        return float(stored) if isinstance(stored, int | float) else training_seconds(self.metrics())

    def snapshot(self, increments: int) -> Path:
        """The agent that held a paced budget so many increments above its start."""
        return self.path / "snapshots" / f"{increments:03d}.safetensors"

    def snapshots(self) -> dict[int, Path]:
        """Those that were kept, by their increments."""
        return {int(path.stem): path for path in sorted((self.path / "snapshots").glob("*.safetensors"))}

    def forget(self) -> None:
        """Delete what a cancelled run left: its checkpoint can be gigabytes."""
        store.sweep(self.path)
        store.remove(self.checkpoint)
        store.remove(self.progress)


def training_seconds(rows: Sequence[Json]) -> float:
    """The time a run trained, from its rows of metrics."""
    return times(rows)[-1] if rows else 0.0


def times(rows: Sequence[Json]) -> list[float]:
    """Seconds of training up to each row of metrics."""
    found = list[float]()
    seconds, step = 0.0, 0.0
    for row in rows:
        rate = row.get("steps_per_second")
        seconds += (row["step"] - step) / rate if rate else 0.0
        step = row["step"]
        found.append(seconds)
    return found


@dataclass(frozen=True)
class StoredDecision:
    """A decision and when it was made, in seconds on the clock of its stage."""

    decision: Decision
    seconds: float


@dataclass(frozen=True)
class PhaseFolder:
    """A phase of a curriculum."""

    path: Path
    index: int

    def run(self, number: int) -> TrainingFolder:
        """One of its runs, from 1."""
        return TrainingFolder(self.path / f"run{number}")

    def runs(self) -> dict[int, TrainingFolder]:
        """Those that were begun, by number."""
        numbers = sorted(int(path.name[3:]) for path in self.path.glob("run[0-9]*"))
        return {number: self.run(number) for number in numbers}

    def keep(self, decision: Decision, seconds: Callable[[], float]) -> float:
        """Store the decision, and give the time at which it was first made; refuse one that differs from what is stored."""
        path = self.path / "decision.json"
        stored = store.once(path, lambda: {"decision": asdict(decision), "seconds": seconds()})
        made = _decision(path, stored)
        if replace(made.decision, stop=decision.stop) != decision:  # its wording may be of another version
            what = f"'{path}' holds another decision than the results beside it lead to"
            raise StoreError(what, "restore what was changed by hand, or delete that file and the phases after it")
        for number, run in self.runs().items():
            if not decision.candidate(number):
                run.forget()
        return made.seconds

    def out_of_time(self, run: int, reason: str | None) -> str | None:
        """The reason to stop as it was when it was first asked for: on resuming, the clock must not undo what was in time."""
        path = self.path / f"time-after-run{run}.json"
        stop = store.once(path, lambda: {"stop": reason}).get("stop")
        return None if stop is None else str(stop)

    def clock_after(self, run: int) -> float | None:
        """Of version 0.1: seconds on the stage's clock when a run was trained and evaluated."""
        seconds = store.read_if_there(self.path / f"clock-after-run{run}.json").get("seconds")
        return float(seconds) if isinstance(seconds, int | float) else None


@dataclass(frozen=True)
class StageFolder(TrainingFolder):
    """A stage of a recipe: one training run, or a curriculum of phases."""

    number: int
    stage: Stage
    own: bool
    """Whether it is one of the recipe's own, not of its bootstrap."""

    @property
    def name(self) -> str:
        """Such as `vanilla`."""
        return stage_name(self.stage)

    @property
    def config(self) -> Config:
        """The settings of this stage."""
        return read_config(self.path)

    @property
    def run(self) -> Path:
        """The run directory that it is a stage of."""
        return self.path.parents[1]

    @property
    def median(self) -> TrainingFolder:
        """The agent that repeats go on from, where they share one."""
        return TrainingFolder(self.path / "median")

    @property
    def paced_run(self) -> TrainingFolder:
        """The one training run of a stage whose budget paces itself."""
        return TrainingFolder(self.path / "run")

    @property
    def clock(self) -> Path:
        """See `Clock`."""
        return self.path / "clock.json"

    def once(self, work: Callable[[], Mapping[str, Any]]) -> Json:
        """The result, made if it is not there."""
        return store.once(self.result_file, work)

    def phase(self, index: int) -> PhaseFolder:
        """A phase, from 0, which is the bootstrap."""
        return PhaseFolder(self.path / "phases" / f"{index:03d}", index)

    def phases(self) -> list[PhaseFolder]:
        """Those that were begun."""
        return [self.phase(int(path.name)) for path in sorted((self.path / "phases").glob("[0-9]*"))]

    def decisions(self) -> list[StoredDecision]:
        """What was decided so far, phase by phase."""
        made = list[StoredDecision]()
        for path in sorted((self.path / "phases").glob("*/decision.json")):
            stored = _decision(path, store.read_json(path))
            expected = made[-1].decision.next if made else 0
            if stored.decision.phase.index != expected:
                what = f"the decision before '{path}' is missing"
                raise StoreError(
                    what, "restore it, or delete result.json of this stage and of the run, and resume that"
                )
            made.append(stored)
        return made

    def best_so_far(self, phase: int) -> TrainingFolder:
        """Where the agent lies that a phase handed on; the stage's own folder is the bootstrap's."""
        kept = {made.decision.phase.index: made.decision.kept for made in self.decisions()}
        for index in sorted((i for i in kept if i <= phase), reverse=True):
            number = kept[index]
            if number != INCUMBENT:
                return self.phase(index).run(number)
        return self

    def training_runs(self) -> list[TrainingFolder]:
        """Those that count: all but what trained beside a run that was good enough."""
        if self.stage.strategy == "none":
            return [self]
        if self.stage.strategy == "paced":
            return [self.paced_run]
        made = [one.decision for one in self.decisions()]
        return [self.phase(d.phase.index).run(c.run) for d in made for c in d.candidates if c.run != INCUMBENT]


class Clock:
    """Seconds spent on a stage by all processes that worked on it, each counted up to its last `keep`.

    It also stores when each of these processes began, so that times of day can be told on it.
    """

    def __init__(self, stage: StageFolder) -> None:
        self._path = stage.clock
        stored = store.read_if_there(self._path)
        seconds = stored.get("seconds")
        self._before = float(seconds) if isinstance(seconds, int | float) else 0.0
        self._sessions = [*stored.get("sessions", []), [time.time(), self._before]]
        self._began = time.monotonic()
        self.keep()

    def seconds(self) -> float:
        """So far."""
        return self._before + time.monotonic() - self._began

    def keep(self) -> float:
        """Store the seconds so far."""
        spent = self.seconds()
        store.write_json(self._path, {"seconds": spent, "sessions": self._sessions})
        return spent


def time_on_clock(stage: StageFolder) -> Callable[[object], float | None]:
    """Gives for a time of day the seconds on the clock of a stage; none where that is not stored, as in version 0.1."""
    sessions = store.read_if_there(stage.clock).get("sessions", [])

    def at(moment: object) -> float | None:
        before = [(began, seconds) for began, seconds in sessions if isinstance(moment, float) and began <= moment]
        return before[-1][1] + moment - before[-1][0] if before and isinstance(moment, float) else None

    return at


@dataclass(frozen=True)
class RunDirectory(ResultFolder):
    """A run, whose result is its verdict; `path` may hold none yet."""

    @staticmethod
    def open(path: Path) -> "RunDirectory":
        """A run that can be read and continued; anything else is refused."""
        run = RunDirectory(path)
        _config_text(path)
        if not (path / "run.json").exists():
            if (path / "stages").exists():
                raise StoreError(f"'{path}' has no run.json", COPY_AGAIN)
            raise StoreError(f"'{path}' is a part of a run", "give the run's own directory")
        return run

    @staticmethod
    def create(
        path: Path, stages: Sequence[tuple[Stage, Config]], about: Mapping[str, Any], init: bytes | None = None
    ) -> "RunDirectory":
        """Make the directory from the settings of every stage, its provenance and the agent to start from. run.json is
        written first and config.toml last."""
        last = stages[-1][1]
        files = {f"init/{POLICY}": init} if init else {}
        listed = []
        for number in trained_stages(last.recipe, len(stages), init is not None):
            stage, config = stages[number - 1]
            files[f"stages/{number}-{stage_name(stage)}/{CONFIG}"] = to_toml(config).encode()
            facts = {"loss": stage.loss, "strategy": stage.strategy, "shares_median": stage.shares_median}
            listed.append({"number": number, "own": number > len(stages) - _own_stages(last.recipe), **facts})
        if source := recipes.find_recipe(last.recipe).source:
            files[f"stages/{last.recipe}.toml"] = source.encode()
        files[CONFIG] = to_toml(last).encode()
        settings = {name: _digest(data) for name, data in files.items() if name.endswith(".toml")}
        make_room(path)
        store.write_json(path / "run.json", {**about, "format": FORMAT, "stages": listed, "settings": settings})
        for name, data in files.items():
            store.write_bytes(path / name, data)
        return RunDirectory(path)

    @property
    def exists(self) -> bool:
        """Whether a run was made here."""
        return (self.path / CONFIG).exists()

    @property
    def config(self) -> Config:
        """The settings of the last stage."""
        return read_config(self.path)

    def check_settings(self, flags: Mapping[str, Any]) -> None:
        """Refuse settings other than those the run was started with."""
        config = self.config
        if names := difference(config, config_from_dict(override(tomllib.loads(_config_text(self.path)), flags))):
            what = f"'{self.path}' was started with other settings ({', '.join(names)})"
            raise StoreError(what, "resume it without them, or give another --out")

    def about(self) -> Json:
        """Version, commit, command, machine and seed."""
        facts = store.read_json(self.path / "run.json", COPY_AGAIN)
        if facts.get("format", 1) not in (1, FORMAT):
            raise StoreError(f"'{self.path}' was made by a later version of bcl", "update bcl")
        return facts

    def stages(self) -> list[StageFolder]:
        """Those that are or will be trained; an agent to start from stands for all but the recipe's own."""
        about = self.about()
        if "stages" in about:
            return [self._stage(**facts) for facts in about["stages"]]
        config = self.config
        found = [stage for stage, _ in recipes.stages_of(config.recipe, config.algo, "", config.bootstrap)]
        numbers = trained_stages(config.recipe, len(found), about.get("init") is not None)
        first_own = len(found) - _own_stages(config.recipe) + 1
        return [self._folder(number, found[number - 1], number >= first_own) for number in numbers]

    def _stage(self, number: int, own: bool, **facts: Any) -> StageFolder:
        return self._folder(number, Stage(**facts), own)

    def _folder(self, number: int, stage: Stage, own: bool) -> StageFolder:
        return StageFolder(self.path / "stages" / f"{number}-{stage_name(stage)}", number, stage, own)

    @property
    def init(self) -> TrainingFolder:
        """Of the agent to start from, where one was given (`about` says so)."""
        return TrainingFolder(self.path / "init")

    def start(self) -> tuple[str, Agent] | None:
        """The agent that the recipe's own stages begin from, with its name; none: they begin with fresh weights, or it is
        not trained yet."""
        # By the record: a run that was copied without its weights can still be told about.
        if given := self.about().get("init"):
            return "--init", Agent(self.init.policy, self.init.evals, str(given))
        before = [stage for stage in self.stages() if not stage.own]
        return (before[-1].name, before[-1].agent()) if before and before[-1].finished else None

    @property
    def best(self) -> Path:
        """The agent to report, once the run has ended."""
        return self.path / "best" / POLICY

    @property
    def certs(self) -> Path:
        """The folder of its certificates."""
        return self.path / CERTS

    @property
    def breaking(self) -> Path:
        """The folder of the search for the smallest budget that breaks it."""
        return self.path / "breaking"

    @property
    def report(self) -> Path:
        """Where the report goes unless somebody says otherwise."""
        return self.path / "report.html"

    def once(self, work: Callable[[], Mapping[str, Any]]) -> Json:
        """The verdict, made if it is not there, with digests of all that reports read of the stages."""
        return store.once(self.result_file, lambda: {**work(), "files": self._digests()})

    def _digests(self) -> dict[str, str]:
        found = sorted(path for pattern in REPORTED for path in (self.path / "stages").rglob(pattern))
        return {path.relative_to(self.path).as_posix(): _digest(path.read_bytes()) for path in found}

    def check_unchanged(self) -> None:
        """Refuse settings that were edited since the run was started, and files of a finished run that are not as it left
        them, or not there."""
        way_out = f"delete '{self.result_file}' and resume the run to go on with what is there"
        self._check_digests(self.about().get("settings"), "was started", "start a new run with other settings")
        self._check_digests(self.result().get("files"), "ended", way_out)

    def _check_digests(self, digests: Mapping[str, str] | None, since: str, way_out: str) -> None:
        for name, digest in (digests or {}).items():
            path = self.path / name
            if not path.exists():
                raise StoreError(f"'{path}' is missing", f"restore it, or {way_out}")
            if _digest(path.read_bytes()) != digest:
                raise StoreError(f"'{path}' was changed since the run {since}", f"restore it, or {way_out}")

    def check_device(self, device: str) -> None:
        """Refuse another kind of device: scores of one are not the other's."""
        started_on = self.about().get("worker_device")
        if started_on not in (None, device):
            raise StoreError(f"'{self.path}' was started on {started_on}", f"take --device {started_on}")

    def locked_since(self) -> float:
        """When its owner took the lock."""
        return (self.path / "lock").stat().st_mtime

    def progress_files(self) -> list[Path]:
        """Of all work under way, or cut by a kill."""
        return sorted(self.path.rglob(f"*{PROGRESS}"))

    def trainings(self) -> Iterator[TrainingFolder]:
        """All training runs that have metrics."""
        for path in sorted(self.path.rglob(METRICS)):
            yield TrainingFolder(path.parent)

    @property
    def repeats(self) -> "Repeats | None":
        """Those that it is one of."""
        group = Repeats(self.path.absolute().parent)
        return group if group.exists else None


@dataclass(frozen=True)
class Repeats(ResultFolder):
    """A folder of runs that differ in their seed, whose result are final scores, median and IQM; `path` may hold none."""

    @property
    def exists(self) -> bool:
        """Whether there are any."""
        return self._file.is_file()

    @property
    def _file(self) -> Path:
        return self.path / "repeats.json"

    def write(self, names: Sequence[str]) -> None:
        """Name the runs, once all of them were made."""
        store.write_json(self._file, {"runs": [*names]})

    def runs(self) -> list[RunDirectory]:
        """Empty: it is no folder of repeats."""
        names = store.read_json(self._file, COPY_AGAIN).get("runs") if self.exists else None
        return [RunDirectory(self.path / str(name)) for name in names] if isinstance(names, list) else []

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Store what `result` gives."""
        store.write_json(self.result_file, summary)

    def shown(self) -> RunDirectory:
        """The median; before all have ended, the first that has not."""
        runs = self.runs()
        if median := self.result().get("median"):
            return RunDirectory(self.path / str(median))
        return next((run for run in runs if not run.finished), runs[0])


def runs_of(path: Path) -> list[RunDirectory]:
    """The repeats, or the run itself."""
    return Repeats(path).runs() or [RunDirectory(path)]


def read_config(folder: Path) -> Config:
    """The configuration that lies in a run, or in a stage of it; a recipe that lies with it is known from here on."""
    text = _config_text(folder)
    for recipe in (folder / "stages").glob("*.toml"):
        recipes.take_recipe(recipe)
    try:
        return config_from_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"'{folder / CONFIG}' is damaged: {error}", "restore it, or start a new run") from None


def check_new(path: Path) -> None:
    """Refuse a directory that holds something already; what a killed creation left does not count."""
    with store.clear_errors(path):
        left = path.is_dir() and all(_is_leftover(one, path) for one in path.rglob("*"))
        new = left or not path.exists()
    if not new:
        raise StoreError(f"'{path}' exists already", "give another --out")


def make_room(path: Path) -> None:
    """`check_new`, and delete what a killed creation left, which may have been that of another run."""
    check_new(path)
    with store.clear_errors(path):
        for inside in path.iterdir() if path.exists() else ():
            if re.fullmatch(r"stages|init|seed\d+", inside.name):
                shutil.rmtree(inside)
    store.sweep(path)


def stage_name(stage: Stage) -> str:
    """As folders and messages call it."""
    return "vanilla" if stage.loss == "standard" else stage.loss


def trained_stages(recipe: str, stages: int, init: bool) -> range:
    """Which of so many stages are trained, counted from 1: an agent to start from stands for all but the recipe's own."""
    return range(stages - _own_stages(recipe) + 1 if init else 1, stages + 1)


def _own_stages(recipe: str) -> int:
    return max(len(recipes.find_recipe(recipe).stages), 1)


def _config_text(folder: Path) -> str:
    path = folder / CONFIG
    with store.clear_reads(path):
        try:
            return path.read_bytes().decode()
        except (FileNotFoundError, NotADirectoryError):
            cut = (folder / "run.json").exists()
            hint = (
                "its creation was cut short: run 'bcl train' again" if cut else "it has no config.toml; check the path"
            )
            raise StoreError(f"'{folder}' is not a run directory", hint) from None


def _decision(path: Path, stored: Json) -> StoredDecision:
    try:
        return StoredDecision(Decision.from_dict(stored["decision"]), float(stored["seconds"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreError(f"'{path}' does not hold a decision", store.MADE_AGAIN) from None


def _is_leftover(path: Path, directory: Path) -> bool:
    """Whether it is what a killed creation leaves in its directory: of a run all but the last file, config.toml. The first
    is run.json; without one, files of these names are somebody else's."""
    if store.TEMPORARY.fullmatch(path.name) or (path.is_dir() and not path.is_symlink()):
        return True
    made = _MADE.fullmatch(path.relative_to(directory).as_posix())
    begun = made is not None and (made[2] == "lock" or (directory / (made[1] or "") / "run.json").exists())
    return begun and path != directory / CONFIG


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
