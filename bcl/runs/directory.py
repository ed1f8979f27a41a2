"""The run directory: all its paths, and every fact that is stored in it. No other module joins paths inside a run.

    config.toml  run.json       the settings; version, commit, command, machine, seed, stages, format
    init/                       the agent to start from, where one was given
    stages/1-vanilla/           a training run
    stages/3-at/phases/003/     a phase of a curriculum: run1/, run2/, ... and decision.json
    best/policy.safetensors     the agent to report; `bcl.runs.results` knows where its results lie
    result.json                 the verdict, written last

Several runs that differ in their seed alone lie in one folder with repeats.json (`Repeats`).
"""

import functools
import hashlib
import re
import shlex
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bcl import recipes
from bcl.config import Config, Stages, config_from_dict, config_from_toml, override
from bcl.curriculum_rules import INCUMBENT, Decision
from bcl.errors import ConfigError, StoreError
from bcl.recipes import Stage
from bcl.runs import store
from bcl.runs.results import PROGRESS, RESULT, Flag, Results
from bcl.runs.store import Json
from bcl.settings import difference, plain, to_toml, typed_values

FORMAT = 2  # of run directories; those of version 0.1 have no number
CONFIG = "config.toml"
RUN = "run.json"
REPEATS = "repeats.json"
AHEAD = "ahead.json"
UNUSED = "unused.json"  # of training that no decision used
UNUSED_BEFORE = "in-vain.json"  # the same file of earlier versions
POLICY = "policy.safetensors"
COPY_AGAIN = "copy the run again with all its files"
MOST_NAMED = 5  # settings, in a refusal
# Files in the folders of stages that reports read.
REPORTED = (RESULT, "metrics.jsonl", "decision.json", "clock*.json", "time-after*.json", UNUSED, UNUSED_BEFORE)
_OF_STAGE = ("loss", "strategy", "shares_median", "same_teacher")  # what run.json holds of a stage
# What a creation makes, of a run or of repeats.
_MADE = re.compile(r"(seed\d+/)?(lock|run\.json|init/policy\.safetensors|(stages/[^/]+/)?config\.toml)")


@dataclass(frozen=True)
class Agent:
    """A trained policy, by where it lies."""

    file: Path
    results: Results
    fingerprint: str
    """Empty: its training diverged, and there is no file."""
    phase: int = 0
    """In which it was trained; 0: before the curriculum."""


@dataclass(frozen=True)
class Outcome:
    """What a curriculum hands on."""

    policy: str
    """The agent's fingerprint."""
    reached: float
    """The budget that the agent was trained up to, or found robust at."""
    stopped: str
    """Why the curriculum stopped."""
    kept: str
    """Which of its agents this is."""
    flags: tuple[Flag, ...] = ()
    final_score: float | None = None
    """By which the median of the repeats is taken, where they share one."""
    run: str = ""
    """Of a median: the repeat that it is from."""


@dataclass(frozen=True)
class Piece:
    """A piece of work under way."""

    name: str
    """Such as `vanilla`, or `phase 3 up to 4/255, run 2 of 3`."""
    doing: str
    """`training`, or the attack and budget being played."""
    done: int
    of: int
    row: Json = field(default_factory=dict)
    """The last row of metrics, where it trains."""
    under_way: Sequence[Json] = ()
    """What is known of the scores that are being played (`bcl.evaluation.UnderWay`)."""

    @classmethod
    def read(cls, path: Path) -> "Piece":
        """What `write` told."""
        told = store.read_json(path)
        with store.fitting(f"'{path}'", "it is written anew by the next command"):
            under_way = tuple(told.get("under_way", ()))
            return cls(told["name"], told["doing"], told["done"], told["of"], under_way=under_way)

    def write(self, path: Path) -> None:
        """Tell those who watch how far it is; the row has a file of its own."""
        told = {"name": self.name, "doing": self.doing, "done": self.done, "of": self.of}
        store.write_json(path, told | ({"under_way": self.under_way} if self.under_way else {}))


@dataclass(frozen=True)
class Provenance:
    """How a run was started; none: that is not stored."""

    version: str | None
    commit: str | None
    command: str | None
    worker_device: str | None
    init: str | None
    """Fingerprint of the agent that was given to start from."""
    date: str | None
    machine: Mapping[str, Any]


class WorkFolder:
    """A folder whose work is done once its result.json is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result_file = path / RESULT
        self.results = Results(path)  # of its agent
        self.tensorboard = path / "tensorboard"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkFolder) and self.path == other.path

    @property
    def finished(self) -> bool:
        return store.exists(self.result_file)

    def result(self) -> Json:
        """What came out; empty before the work has ended."""
        return store.read_if_there(self.result_file)

    @property
    def fingerprint(self) -> str:
        """Of the agent that came out; empty before the work has ended, and where that diverged."""
        return str(self.result().get("policy") or "")

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Store the result, which says that the work has ended."""
        store.write_json(self.result_file, facts)


class TrainingFolder(WorkFolder):
    """One training run: its agent, metrics and result, or its checkpoint."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.policy = path / POLICY
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.progress = path / PROGRESS
        self.ahead_file = path / AHEAD
        self.wandb_file = path / "wandb.json"

    def finish(self, facts: Mapping[str, Any]) -> None:
        super().finish(facts)
        store.remove(self.checkpoint)

    def agent(self, phase: int = 0) -> Agent:
        return Agent(self.policy, self.results, self.fingerprint, phase)

    @property
    def diverged(self) -> bool:
        return "diverged" in self.result()

    @property
    def parent(self) -> str:
        """Fingerprint of the agent that it trained from; empty: fresh weights."""
        return str(self.result().get("parent") or "")

    @property
    def span(self) -> tuple[Any, Any]:
        """When it began and ended, in seconds of the time of day; none where that is not stored, as in version 0.1."""
        stored = self.result()
        return stored.get("began"), stored.get("ended")

    def outcome(self, hint: str = "delete it and resume the run") -> Outcome:
        """Of a curriculum, or of the median of its repeats; `hint`: what to do where that cannot be read."""
        stored = self.result()
        with store.fitting(f"'{self.result_file}'", hint):
            facts: Json = {"run": "", "final_score": None} | stored
            values = {name: facts[name] for name in ("policy", "reached", "stopped", "kept", "final_score", "run")}
            flags = tuple(map(Flag.from_stored, facts["flags"]))
            return Outcome(**typed_values(Outcome, values), flags=flags)

    def metrics(self) -> list[Json]:
        rows = store.read_metrics(self.metrics_file)
        for number, row in enumerate(rows, 1):
            if row.get("step") is None or not all(isinstance(value, float | int | None) for value in row.values()):
                what = f"line {number} of '{self.metrics_file}' does not fit (it must hold numbers, step among them)"
                raise StoreError(what, "delete that line")
        return rows

    def steps(self) -> int:
        rows = self.metrics()
        return int(rows[-1]["step"]) if rows else 0

    def seconds(self) -> float:
        """Spent training, as stored; before the end, and of version 0.1, by the rates in its metrics."""
        stored = self.result().get("seconds")
        return float(stored) if isinstance(stored, int | float) else [0.0, *times(self.metrics())][-1]

    def snapshot(self, increments: int) -> Path:
        """The agent that held a paced budget so many increments above its start."""
        return self.path / "snapshots" / f"{increments:03d}.safetensors"

    def snapshots(self) -> dict[int, Path]:
        return {int(path.stem): path for path in sorted((self.path / "snapshots").glob("*.safetensors"))}

    def began_ahead(self) -> str | None:
        """Fingerprint of the agent it trains from before the curriculum asked for it; none: it was asked for."""
        return store.read_if_there(self.ahead_file).get("parent")

    def forget(self) -> None:
        """Delete what a cancelled run left: its checkpoint can be gigabytes."""
        store.sweep(self.path)
        store.remove(self.checkpoint)
        store.remove(self.progress)


def times(rows: Sequence[Json]) -> list[float]:
    """Seconds of training up to each row of metrics."""
    found = list[float]()
    seconds = 0.0
    step = 0.0
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
    path: Path
    index: int

    def run(self, number: int) -> TrainingFolder:
        """One of its runs, from 1."""
        return TrainingFolder(self.path / f"run{number}")

    def runs(self) -> dict[int, TrainingFolder]:
        numbers = sorted(int(path.name[3:]) for path in self.path.glob("run[0-9]*"))
        return {number: self.run(number) for number in numbers}

    def keep(self, decision: Decision, seconds: Callable[[], float]) -> float:
        """Store the decision and return when it was first made; refuse one that differs from the stored one."""
        path = self.path / "decision.json"
        made = _decision(path, store.once(path, lambda: {"decision": asdict(decision), "seconds": seconds()}))
        if replace(made.decision, stop=decision.stop) != decision:  # its wording may be of another version
            what = f"'{path}' holds another decision than the results beside it lead to"
            raise StoreError(what, "restore what was changed by hand, or delete that file and the phases after it")
        for number, run in self.runs().items():
            if not decision.candidate(number):
                run.forget()
        return made.seconds

    def out_of_time(self, run: int, reason: str | None) -> str | None:
        """The reason to stop as first given: on resuming, the clock must not undo what was in time."""
        return store.once(self.path / f"time-after-run{run}.json", lambda: {"stop": reason}).get("stop")

    def clock_after(self, run: int) -> float | None:
        """Of version 0.1: seconds on the stage's clock when a run was trained and evaluated."""
        return store.read_if_there(self.path / f"clock-after-run{run}.json").get("seconds")


class StageFolder(TrainingFolder):
    """A stage of a recipe: one training run, or a curriculum of phases."""

    def __init__(self, run: Path, number: int, stage: Stage, own: bool) -> None:
        self.name = "vanilla" if stage.loss == "standard" else stage.loss
        super().__init__(run / "stages" / f"{number}-{self.name}")
        self.run = run
        self.number = number
        self.loss = stage.loss
        self.strategy = stage.strategy
        self.shares_median = stage.shares_median
        self.same_teacher = stage.same_teacher
        self.own = own  # one of the recipe's own, not of its bootstrap
        self.median = TrainingFolder(self.path / "median")  # the agent that repeats go on from
        self.paced_run = TrainingFolder(self.path / "run")  # of a stage whose budget paces itself
        self.clock = self.path / "clock.json"
        self._discarded = self.path / "discarded"

    @functools.cached_property
    def config(self) -> Config:
        return read_config(self.path)

    def phase(self, index: int) -> PhaseFolder:
        """A phase, from 0, which is the bootstrap."""
        return PhaseFolder(self.path / "phases" / f"{index:03d}", index)

    def phases(self) -> list[PhaseFolder]:
        return [self.phase(int(path.name)) for path in sorted((self.path / "phases").glob("[0-9]*"))]

    def decisions(self) -> list[StoredDecision]:
        made = list[StoredDecision]()
        for path in sorted((self.path / "phases").glob("*/decision.json")):
            stored = _decision(path, store.read_json(path))
            if stored.decision.phase.index != (made[-1].decision.next if made else 0):
                hint = "restore it, or delete result.json of this stage and of the run, and resume that"
                raise StoreError(f"the decision before '{path}' is missing", hint)
            made.append(stored)
        return made

    def kept_by(self, phase: int) -> TrainingFolder:
        """Where the agent lies that a phase handed on; the stage's own folder is the bootstrap's."""
        for made in reversed(self.decisions()):
            index = made.decision.phase.index
            kept = made.decision.kept
            if index <= phase and kept != INCUMBENT:
                return self.phase(index).run(kept)
        return self

    def training_runs(self) -> list[TrainingFolder]:
        """Those that count: all but what trained beside a run that was good enough."""
        if self.strategy == "none":
            return [self]
        if self.strategy == "paced":
            return [self.paced_run]
        made = [one.decision for one in self.decisions()]
        return [self.phase(d.phase.index).run(c.run) for d in made for c in d.candidates if c.run != INCUMBENT]

    def begun_ahead(self) -> list[TrainingFolder]:
        """Training runs that were begun ahead and that the curriculum has not asked for yet."""
        return [TrainingFolder(path.parent) for path in sorted(self.path.glob(f"phases/*/run*/{AHEAD}"))]

    def discard(self, run: TrainingFolder) -> float:
        """Delete a training run that was begun ahead and is not used; store and return the seconds that it trained."""
        seconds = run.seconds()
        self.clear_discarded()
        run.path.rename(self._discarded)  # at once: what a kill leaves of a deletion must not be taken for a run
        unused = {"run": self._inside(run), "seconds": seconds}
        store.write_json(self._unused_file, {"runs": [*self._given_up(), unused]})
        self.clear_discarded()
        return seconds

    def clear_discarded(self) -> None:
        """Delete what a kill left of a deletion."""
        shutil.rmtree(self._discarded, ignore_errors=True)

    def unused_training(self) -> list[tuple[str, float]]:
        """Folder and seconds of training that no decision used: another run was good enough, or the guess wrong."""
        with store.fitting(f"'{self._unused_file}'"):
            found = [(str(one["run"]), float(one["seconds"])) for one in self._given_up()]
        for made in self.decisions():
            for number, run in self.phase(made.decision.phase.index).runs().items():
                if not made.decision.candidate(number):
                    found.append((self._inside(run), run.seconds()))
        return found

    @property
    def _unused_file(self) -> Path:
        before = self.path / UNUSED_BEFORE
        return before if store.exists(before) else self.path / UNUSED

    def _given_up(self) -> list[Json]:
        return list(store.read_if_there(self._unused_file).get("runs", []))

    def _inside(self, run: TrainingFolder) -> str:
        return run.path.relative_to(self.path).as_posix()

    def wall_seconds(self) -> float | None:
        """On its clock; none: it has none."""
        seconds = store.read_if_there(self.clock).get("seconds")
        return None if seconds is None else float(seconds)

    def on_clock(self, moment: Any) -> float | None:
        """The seconds on its clock (`Clock`) at a time of day; none where that is not stored, as in version 0.1."""
        sessions = store.read_if_there(self.clock).get("sessions", [])
        with store.fitting(f"'{self.clock}'"):
            before = [one for one in sessions if moment is not None and one[0] <= moment]
            return float(before[-1][1] + moment - before[-1][0]) if before else None


class Clock:
    """Seconds spent on a stage by all processes, each up to its last `keep`, and when each of them began."""

    def __init__(self, stage: StageFolder) -> None:
        self._path = stage.clock
        stored = store.read_if_there(self._path)
        self._before = float(stored.get("seconds", 0.0))
        self._sessions = [*stored.get("sessions", []), (time.time(), self._before)]
        self._began = time.monotonic()
        self.keep()

    def seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    def keep(self) -> float:
        spent = self.seconds()
        store.write_json(self._path, {"seconds": spent, "sessions": self._sessions})
        return spent


class RunDirectory(WorkFolder):
    """A run, whose result is its verdict; `path` may hold none yet."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.init = TrainingFolder(path / "init")  # the agent to start from; `about` says whether there is one
        self.best = path / "best" / POLICY

    @staticmethod
    def open(path: Path) -> "RunDirectory":
        """A run that can be read and continued; anything else is refused."""
        _config_text(path)
        if not store.exists(path / RUN):
            if store.exists(path / "stages"):
                raise StoreError(f"'{path}' has no {RUN}", COPY_AGAIN)
            raise StoreError(f"'{path}' is a part of a run", "give the run's own directory")
        return RunDirectory(path)

    @staticmethod
    def around(file: Path) -> "RunDirectory | None":
        """The run that a file lies in."""
        return next((RunDirectory(folder) for folder in file.parents if store.exists(folder / RUN)), None)

    @staticmethod
    def inside(folder: Path) -> list["RunDirectory"]:
        """The runs in a folder, by name; a run's own stages are none."""
        runs = [RunDirectory(file.parent) for file in sorted(folder.glob(f"*/{RUN}"))]
        return [run for run in runs if run.exists]

    @staticmethod
    def create(path: Path, stages: Stages, about: Mapping[str, Any], init: bytes | None = None) -> "RunDirectory":
        """Make it from settings, provenance and the agent to start from; run.json comes first, config.toml last."""
        run = RunDirectory(path)
        recipe = recipes.find_recipe(stages[-1][1].recipe)
        trained = trained_stages(recipe, stages, init is not None)
        files = {run.init.policy: init} if init else {}
        for number, (stage, config), own in trained:
            files[StageFolder(path, number, stage, own).path / CONFIG] = to_toml(config).encode()
        if recipe.source:
            files[path / "stages" / f"{stages[-1][1].recipe}.toml"] = recipe.source.encode()
        files[path / CONFIG] = to_toml(stages[-1][1]).encode()
        settings = {run.name_of(file): _digest(data) for file, data in files.items() if file.suffix == ".toml"}
        listed = [
            {"number": number, "own": own} | {name: getattr(stage, name) for name in _OF_STAGE}
            for number, (stage, _), own in trained
        ]
        make_room(path)
        store.write_json(path / RUN, {**about, "format": FORMAT, "stages": listed, "settings": settings})
        for file, data in files.items():
            store.write_bytes(file, data)
        return run

    @property
    def exists(self) -> bool:
        return store.exists(self.path / CONFIG)

    @functools.cached_property
    def config(self) -> Config:
        """The settings of the last stage."""
        return read_config(self.path)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings other than those the run was started with."""
        config = self.config  # first: it registers the run's recipe
        given = override(tomllib.loads(_config_text(self.path)), plain(settings))
        names = difference(config, config_from_dict(given))
        self._refuse(names, "resume it without them, or train anew with another --out")

    def check_same(self, config: Config, init: str | None = None) -> None:
        """Refuse another configuration, or another agent to start from."""
        names = difference(self.config, config)
        if init and init != self.about().get("init"):
            names.append("init")
        whole = self.path.parent if self.repeats else self.path
        self._refuse(names, f"continue it with 'bcl resume {shlex.quote(str(whole))}', or give another --out")

    def _refuse(self, names: Sequence[str], way_out: str) -> None:
        if names:
            named = ", ".join(names[:MOST_NAMED])
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            raise StoreError(f"'{self.path}' was started with other settings ({named}{more})", way_out)

    def about(self) -> Json:
        """All that run.json holds; `provenance` names the facts about its start."""
        facts = store.read_json(self.path / RUN, COPY_AGAIN)
        if facts.get("format", 1) not in (1, FORMAT):
            raise StoreError(f"'{self.path}' was made by a later version of bcl", "update bcl")
        return facts

    @property
    def provenance(self) -> Provenance:
        facts = self.about()
        known: Json = {field.name: facts.get(field.name) for field in fields(Provenance)}
        if not isinstance(known["machine"], dict):
            known["machine"] = {}
        return Provenance(**known)

    @property
    def reached(self) -> float:
        """The budget that its agent was trained up to, or found robust at; 0 before its end."""
        reached = self.result().get("reached")
        return reached if isinstance(reached, float) else 0.0

    @property
    def final_score(self) -> float | None:
        """The paper's; none before its end."""
        final = self.result().get("final_score")
        return final if isinstance(final, int | float) else None

    def stages(self) -> list[StageFolder]:
        """Those that are or will be trained."""
        about = self.about()
        if "stages" in about:
            with store.fitting(f"'{self.path / RUN}'", COPY_AGAIN):
                return [self._stage(**facts) for facts in about["stages"]]
        config = self.config
        found = recipes.stages_of(config.recipe, config.algo, "", config.bootstrap)
        trained = trained_stages(recipes.find_recipe(config.recipe), found, about.get("init") is not None)
        return [StageFolder(self.path, number, stage, own) for number, (stage, _), own in trained]

    def _stage(self, number: int, own: bool, **facts: Any) -> StageFolder:
        return StageFolder(self.path, number, Stage(**facts), own)

    @property
    def has_defence(self) -> bool:
        """Whether any of its stages trains for robustness."""
        return any(stage.loss != "standard" for stage in self.stages())

    def began_from(self, trained: str = "") -> list[tuple[str, Agent]]:
        """The agents that the recipe's own stages begin from, with their names: the bootstrap's, then the one before
        it, without `trained` itself. Empty: fresh weights, or none is trained yet."""
        # By the record: a run that was copied without its weights can still be reported.
        if given := self.about().get("init"):
            before = [("--init", Agent(self.init.policy, self.init.results, str(given)))]
        else:
            before = [(stage.name, stage.agent()) for stage in self.stages() if not stage.own and stage.finished]
        return [(name, agent) for name, agent in reversed(before) if agent.fingerprint != trained]

    def digests(self) -> dict[str, str]:
        """Of all that reports read of the stages, by file."""
        found = sorted(path for pattern in REPORTED for path in (self.path / "stages").rglob(pattern))
        return {self.name_of(path): _digest(store.read_bytes(path)) for path in found}

    def name_of(self, path: Path) -> str:
        """Of a file, within the run."""
        return path.relative_to(self.path).as_posix()

    def check_unchanged(self) -> None:
        """Refuse settings edited since the start, and files of a finished run that were changed or deleted."""
        way_out = f"delete '{self.result_file}' and resume the run to go on with what is there"
        with store.fitting(f"'{self.path / RUN}'", COPY_AGAIN):
            self._check_digests(self.about().get("settings"), "was started", "start a new run with other settings")
        with store.fitting(f"'{self.result_file}'", way_out):
            self._check_digests(self.result().get("files"), "ended", way_out)

    def _check_digests(self, digests: Mapping[str, str] | None, since: str, way_out: str) -> None:
        for name, digest in (digests or {}).items():
            path = self.path / name
            if not store.exists(path):
                raise StoreError(f"'{path}' is missing", f"restore it, or {way_out}")
            if _digest(store.read_bytes(path)) != digest:
                raise StoreError(f"'{path}' was changed since the run {since}", f"restore it, or {way_out}")

    def check_device(self, device: str) -> None:
        """Refuse another kind of device: scores of one are not the other's."""
        started_on = self.provenance.worker_device
        if started_on not in (None, device):
            raise StoreError(f"'{self.path}' was started on {started_on}", f"take --device {started_on}")

    def saved_in(self, file: Path) -> str:
        """Fingerprint of the agent that was saved to a file of the run; empty: that is not stored."""
        if file == self.best:
            return self.fingerprint or self.stages()[-1].fingerprint  # it is written before the run ends
        return TrainingFolder(file.parent).fingerprint if file.name == POLICY else ""

    def policies(self) -> list[Path]:
        """The files of all its agents, those of the stages before those of their phases."""
        return sorted(self.path.rglob(POLICY), key=lambda file: (len(file.parts), file))

    def locked_since(self) -> float:
        return (self.path / "lock").stat().st_mtime

    def progress_files(self) -> list[Path]:
        """Of all work under way, or cut by a kill."""
        return sorted(self.path.rglob(f"*{PROGRESS}"))

    def all_results(self) -> Iterator[Results]:
        """Of all its agents that were evaluated."""
        for path in sorted(self.path.rglob("evals")):
            yield Results(path.parent)

    def trainings(self) -> Iterator[TrainingFolder]:
        for path in sorted(self.path.rglob("metrics.jsonl")):
            yield TrainingFolder(path.parent)

    @property
    def repeats(self) -> "Repeats | None":
        """Those that it is one of."""
        group = Repeats(self.path.absolute().parent)
        return group if group.exists else None


class Repeats(WorkFolder):
    """Runs in one folder that differ in their seed; its result: final scores, median, IQM. `path` may hold none."""

    @property
    def exists(self) -> bool:
        return store.exists(self.path / REPEATS)

    def folder(self, seed: int) -> Path:
        """Where the run with this seed is made."""
        return self.path / f"seed{seed}"

    def run(self, name: str) -> RunDirectory:
        return RunDirectory(self.path / name)

    def write(self, names: Sequence[str]) -> None:
        """Name the runs, once all of them were made."""
        store.write_json(self.path / REPEATS, {"runs": [*names]})

    def runs(self) -> list[RunDirectory]:
        """Empty: it is no folder of repeats."""
        names = store.read_json(self.path / REPEATS, COPY_AGAIN).get("runs") if self.exists else None
        return [self.run(str(name)) for name in names] if isinstance(names, list) else []

    def shown(self) -> RunDirectory:
        """The median; before all have ended, the first that has not."""
        runs = self.runs()
        if median := self.result().get("median"):
            return self.run(str(median))
        return next((run for run in runs if not run.finished), runs[0])


def runs_of(path: Path) -> list[RunDirectory]:
    return Repeats(path).runs() or [RunDirectory(path)]


def read_config(folder: Path) -> Config:
    """Of a run or a stage; recipe files that are stored with it are registered."""
    text = _config_text(folder)
    take_recipes(folder / CONFIG)
    try:
        return config_from_toml(text)
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        what = error.message if isinstance(error, ConfigError) else error
        raise StoreError(f"'{folder / CONFIG}' is damaged: {what}", "restore it, or start a new run") from None


def take_recipes(config: Path) -> None:
    """Register the recipes of a user's own that are stored with the settings of a run; other files have none."""
    if config.name == CONFIG:
        for recipe in (config.parent / "stages").glob("*.toml"):
            recipes.take_recipe(recipe)


def _config_text(folder: Path) -> str:
    path = folder / CONFIG
    with store.clear_reads(path):
        try:
            return path.read_bytes().decode()
        except (FileNotFoundError, NotADirectoryError):
            if not folder.exists():
                raise StoreError(f"'{folder}' does not exist", "check the path") from None
            hint = f"it has no {CONFIG}; check the path"
            if (folder / RUN).exists():
                hint = "its creation was cut short: run 'bcl train' again"
            raise StoreError(f"'{folder}' is not a run directory", hint) from None


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


def trained_stages(recipe: recipes.Recipe, stages: Sequence[Any], init: bool) -> list[tuple[int, Any, bool]]:
    """Number, stage and whether it is the recipe's own, of each stage trained: with `init` only the recipe's own."""
    first_own = len(stages) - max(len(recipe.stages), 1) + 1
    return [(n, stage, n >= first_own) for n, stage in enumerate(stages, 1) if n >= first_own or not init]


def _decision(path: Path, stored: Json) -> StoredDecision:
    try:
        return StoredDecision(Decision.from_dict(stored["decision"]), float(stored["seconds"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreError(f"'{path}' does not hold a decision", store.MADE_AGAIN) from None


def _is_leftover(path: Path, directory: Path) -> bool:
    """Whether a killed creation left it: all but config.toml, the last file, and only beside run.json, the first."""
    if store.TEMPORARY.fullmatch(path.name) or (path.is_dir() and not path.is_symlink()):
        return True
    made = _MADE.fullmatch(path.relative_to(directory).as_posix())
    begun = made is not None and (made[2] == "lock" or (directory / (made[1] or "") / RUN).exists())
    return begun and path != directory / CONFIG


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
