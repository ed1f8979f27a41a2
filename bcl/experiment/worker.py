"""Work: orders that a `Dispatcher` gives to an executor, and what a worker does with each in a folder of its own.

Work done again over what an earlier call left in its folder finishes what that one began: a run that has a result is
read, one with a checkpoint continues, scores that are stored are not played.
"""

import contextlib
import copy
import dataclasses
import functools
import gc
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bcl.bounds import Method
from bcl.config import Config, PpoConfig, config_from_toml
from bcl.device import threads
from bcl.envs import VectorEnv, make_env
from bcl.errors import ConfigError, StoreError, TrainingError, WeightsError, counted
from bcl.evaluation import (
    Cell,
    Certificate,
    Plan,
    Score,
    UnderWay,
    missing_cells,
    read_scores,
    run_certificates,
    run_suite,
)
from bcl.experiment.trackers import NO_TRACKERS, Tracker, Trackers
from bcl.games import Game, GymnasiumGame
from bcl.learners import distill, dqn, ppo
from bcl.learners.learner import Record, State, Task, derive
from bcl.learners.metrics import Metrics
from bcl.learners.ppo import read_note
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint, load, save
from bcl.policies.policy import ACTOR_CRITICS, CUSTOM, default_kind
from bcl.runs import store
from bcl.runs.directory import Agent, Piece, TrainingFolder
from bcl.runs.executors import UNWATCHED, Executor, InThisProcess, Job, JudgeBeside, Stop, Watch
from bcl.runs.results import CertificatesFolder, ScoresFolder
from bcl.settings import to_toml

TRAINING = "training"
FORMAT = 1  # of checkpoints
FOLLOWED = 512  # copies of a score of which each is told once a second
# What workers import; the last with the first optimizer.
MODULES = ("bcl.experiment.worker", "gymnasium", "torch._dynamo")
REFILL = ", which was kept without its replay memory: that is collected anew first"


@dataclass(frozen=True)
class TrainingOrder:
    """A training run to be made, as data that can travel."""

    name: str
    """For people who watch."""
    config: Config
    task: Task
    parent: bytes | None = field(repr=False)
    """Content of the policy file to start from; none: fresh weights."""
    device: str
    trackers: Trackers = NO_TRACKERS
    teacher: bytes | None = field(default=None, repr=False)
    """Distillation: content of the teacher's policy file, where it is neither the parent nor named in the settings."""
    plan: Plan | None = None
    """How the outcome is evaluated, where it is."""
    cells: tuple[Cell, ...] = ()
    along: tuple[Cell, ...] = ()
    """Worth playing along with those."""


OrderedRuns = Sequence[tuple[TrainingFolder, TrainingOrder]]


def content(agent: Agent) -> bytes:
    """The policy file of an agent; refused where it is not the one that was trained."""
    if fingerprint(load(agent.file)) != agent.fingerprint:
        what = f"'{agent.file}' is not the agent whose results lie beside it"
        raise StoreError(what, "restore it, or delete the result.json beside it to have it trained again")
    return store.read_bytes(agent.file)


@dataclass(frozen=True)
class Dispatcher:
    """Gives work to an executor."""

    executor: Executor = InThisProcess()
    device: str = "cpu"
    """Of the workers."""
    watch: Watch = UNWATCHED
    trackers: Trackers = NO_TRACKERS
    judge_beside: JudgeBeside = "auto"
    """Whether one process judges a run while another trains the next; `auto`: on a GPU, for one run at a time."""

    def train(self, orders: OrderedRuns) -> Generator[TrainingFolder, None, None]:
        """The folders in the order of `orders`, each when it is done; closing cancels the others."""
        jobs = dict[Path, Job]()
        for run, order in orders:
            if not run.finished or store.exists(run.checkpoint) or self.missing_of(run, order):
                jobs[run.path] = Job(run.path, train, (order,))
            self.say_if_continued(run, order)
        working = self.executor.run([*jobs.values()], self.watch)
        try:
            for run, _ in orders:
                if run.path in jobs:
                    next(working)
                yield run
        finally:
            working.close()

    def say_if_continued(self, run: TrainingFolder, order: TrainingOrder) -> None:
        """That a run is not begun anew."""
        if store.exists(run.checkpoint):
            learner = order.config.learner(order.task.loss)
            refill = not isinstance(learner, PpoConfig) and not learner.checkpoint_replay
            self.watch.say(f"{order.name}: continues from its checkpoint{REFILL if refill else ''}")

    def scores(
        self, name: str, agent: Agent, plan: Plan, cells: Sequence[Cell], ahead: Sequence[Cell] = ()
    ) -> list[Score]:
        """Scores of the cells, those that are missing played; `ahead`: worth playing along with them."""
        if self.missing(agent, plan, cells):
            self.play([(name, agent, plan, (*cells, *ahead))])
        found = read_scores(agent.results.scores, plan.conditions(agent.fingerprint, self.device))
        return [found[cell.key] for cell in cells]

    def play(self, wanted: Sequence[tuple[str, Agent, Plan, Sequence[Cell]]]) -> None:
        """Have missing scores made, of several agents beside each other."""
        jobs = list[Job]()
        for one in wanted:
            jobs += self.evaluation_jobs(*one, part=len(jobs))
        for _ in self.executor.run(jobs, self.watch):
            pass
        for folder in dict.fromkeys(job.folder for job in jobs):
            ScoresFolder(folder).gather()

    def evaluation_jobs(self, name: str, agent: Agent, plan: Plan, cells: Sequence[Cell], part: int = 0) -> list[Job]:
        """Jobs for missing scores, one to a worker, numbered from `part`; `ScoresFolder.gather` joins their rows."""
        missing = self.missing(agent, plan, cells)
        policy = content(agent) if missing else b""
        shares = min(self.executor.width, len(missing))
        orders = [(name, policy, plan, tuple(missing[n::shares]), self.device, ()) for n in range(shares)]
        # In the folder of scores alone: on a cluster all of a job's folder travels.
        folder = agent.results.scores.path
        return [Job(folder, evaluate, (part + n, *order)) for n, order in enumerate(orders)]

    def judges_beside(self, game: Game) -> bool:
        """Whether a run is judged while the next one trains. Games of Gymnasium may be known to this process alone."""
        wanted = self.judge_beside == "on"
        if self.judge_beside == "auto":
            wanted = self.device == "cuda" and not isinstance(game, GymnasiumGame)
        return wanted and isinstance(self.executor, InThisProcess)

    def missing_of(self, run: TrainingFolder, order: TrainingOrder) -> list[Cell]:
        """Those that were ordered with a run that has ended; none where it diverged."""
        agent = run.agent()
        return self.missing(agent, order.plan, order.cells) if order.plan and agent.fingerprint else []

    def missing(self, agent: Agent, plan: Plan, cells: Sequence[Cell]) -> list[Cell]:
        """Those whose scores are not stored."""
        return missing_cells(agent.results.scores, plan.conditions(agent.fingerprint, self.device), cells)


class ProgressFile:
    """Writes once a second how far the work in a folder is."""

    def __init__(self, path: Path, name: str, stop: Stop) -> None:
        self._path = path
        self._name = name
        self._stop = stop
        self._written = 0.0
        self._under_way: Callable[[], list[UnderWay]] = list

    def tell(self, doing: str, done: int, of: int) -> None:
        if time.monotonic() - self._written >= 1:
            self._written = time.monotonic()
            under_way = [dataclasses.asdict(score) for score in self._under_way()]
            Piece(self._name, doing, done, of, under_way=under_way).write(self._path)

    def follow(self, under_way: Callable[[], list[UnderWay]]) -> None:
        """Write what this tells of the scores being played, too."""
        self._under_way = under_way

    def begin(self, label: str) -> Callable[[int, int], None]:
        """For a part of an evaluation: `tell`, with a look at whether to stop."""
        self._written = 0.0

        def tell_or_stop(done: int, of: int) -> None:
            if self._stop():
                raise KeyboardInterrupt
            self.tell(label, done, of)

        return tell_or_stop

    def remove(self) -> None:
        store.remove(self._path)


def under_way(run: TrainingFolder) -> list[UnderWay]:
    """What a process told of a run's scores that it plays; nothing where that cannot be read just now."""
    path = run.results.scores.progress(0)
    try:
        return [UnderWay.from_dict(told, f"'{path}'") for told in Piece.read(path).under_way]
    except StoreError:
        return []


def give_memory_back() -> None:
    """After a job, whose process may wait for the next one beside others that need the GPU."""
    gc.collect()  # a learner and its graphs refer to each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def train(folder: Path, order: TrainingOrder, stop: Stop) -> None:
    """A job: the run, which may diverge where there are other agents to choose from, and its scores."""
    run = TrainingFolder(folder)
    if run.diverged:
        return
    parent, teacher = (_unpack(data, order.device) if data else None for data in (order.parent, order.teacher))
    progress = ProgressFile(run.progress, order.name, stop)
    tell = functools.partial(progress.tell, TRAINING)
    began = time.time()
    try:
        policy = train_run(
            folder, order.config, order.task, parent, order.device, order.trackers, tell, stop, teacher=teacher
        )
        if order.plan:
            _play(policy, order.plan, (*order.cells, *order.along), run.results.scores, progress)
    except TrainingError as error:
        if not order.plan and not run.snapshots():  # of a paced run, agents that held a budget are left
            raise
        run.finish({"policy": "", "diverged": error.message, "began": began, "ended": time.time()})
    progress.remove()


def evaluate(
    folder: Path,
    part: int,
    name: str,
    policy: bytes,
    plan: Plan,
    cells: tuple[Cell, ...],
    device: str,
    published: tuple[Certificate, ...],
    stop: Stop,
) -> None:
    """A job: scores of a policy by its file's content; `part`: which of several jobs in this folder."""
    scores = ScoresFolder(folder)
    progress = ProgressFile(scores.progress(part), name, stop)
    _play(_unpack(policy, device), plan, cells, scores, progress, part, published)
    progress.remove()


def certify(
    folder: Path, part: int, policy: bytes, plan: Plan, eps: float, method: Method, device: str, stop: Stop
) -> None:
    """A job: the certificate of a policy at one budget."""
    certificates = CertificatesFolder(folder)
    progress = ProgressFile(certificates.progress(part), "certify", stop)
    for _ in run_certificates(_unpack(policy, device), plan, [eps], method, certificates, progress.begin, part):
        pass
    progress.remove()


def _play(
    policy: Policy,
    plan: Plan,
    cells: tuple[Cell, ...],
    folder: ScoresFolder,
    progress: ProgressFile,
    part: int | None = None,
    published: tuple[Certificate, ...] = (),
) -> None:
    from bcl.experiment.learned_adversary import ready  # which trains by `train_run`

    trained = ready(policy, plan, folder, progress.begin)
    follow = progress.follow if plan.copies() <= FOLLOWED else lambda under_way: None
    for _ in run_suite(policy, plan, cells, folder, progress.begin, trained, part, published, follow):
        pass
    progress.follow(list)  # those that were played may hold much of a GPU's memory


def _unpack(policy: bytes, device: str) -> Policy:
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(policy)
        file.flush()
        return load(file.name, device)


class _Identity(NamedTuple):
    """What a checkpoint is of."""

    config: Config
    task: Task
    parent: str

    def facts(self) -> dict[str, Any]:
        """As plain data; the pace of a task follows from them."""
        task = [self.task.loss, self.task.start, self.task.end, self.task.seed]
        return {"format": FORMAT, "settings": to_toml(self.config), "task": task, "parent": self.parent}

    def fits(self, kept: dict[str, Any]) -> bool:
        """Whether a checkpoint is of it. Settings are read as those of a run: what came later has its default. Earlier
        versions kept a digest of all settings, by names that some no longer have."""
        if "settings" not in kept:
            return False
        facts = self.facts()
        same = all(kept[name] == facts[name] for name in ("format", "task", "parent"))
        return same and config_from_toml(kept["settings"]) == self.config


class RecordInFolder(Record):
    """What a training run leaves in its folder while it trains."""

    keeps_checkpoints = True
    tracker: Tracker

    def __init__(
        self,
        run: TrainingFolder,
        policy: Policy,
        identity: _Identity,
        device: str,
        began: float,
        tell: Callable[[int, int], None],
        stop: Stop,
    ) -> None:
        self._tell = tell
        self._stop = stop
        self._run = run
        self._policy = policy
        self._about = {**identity.facts(), "device": device}
        kept = _read_checkpoint(run.checkpoint, identity, device) or {}
        self.state: State | None = kept.get("state")
        self.step = int(self.state["step"]) if self.state else 0
        # Rows and snapshots that the checkpoint does not know are dropped.
        store.keep_metrics(run.metrics_file, lambda row: row["step"] <= self.step)
        held = self.state["pacer"]["told"] if self.state and self.state["pacer"] else 0
        for increments, path in run.snapshots().items():
            if increments > held:
                store.remove(path)
        self._began = kept.get("began", began)
        self._before = kept.get("seconds", 0.0)  # work that was lost by a kill does not count
        self._here = time.monotonic()

    def log(self, row: Metrics) -> None:
        store.append_row(self._run.metrics_file, row)
        self.tracker(row)

    def save(self, state: State) -> None:
        with store.replacing(self._run.checkpoint) as file:
            torch.save({**self._about, "state": state, "began": self._began, "seconds": self._seconds()}, file)

    def held(self, increments: int) -> None:
        save(self._policy, self._run.snapshot(increments))

    def progress(self, done: int, of: int) -> None:
        self._tell(done, of)

    def stop(self) -> bool:
        return self._stop()

    def times(self) -> dict[str, float]:
        """When the run began and ended, and the seconds it trained."""
        return {"began": self._began, "ended": time.time(), "seconds": self._seconds()}

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._here


def train_run(
    folder: Path,
    config: Config,
    task: Task,
    parent: Policy | None,
    device: str,
    trackers: Trackers = NO_TRACKERS,
    progress: Callable[[int, int], None] = lambda done, of: None,
    stop: Stop = lambda: False,
    seen_by_learner: Callable[[VectorEnv], VectorEnv] = lambda env: env,
    teacher: Policy | None = None,
) -> Policy:
    """One training run in a folder of its own, from the parent's weights or fresh ones; a finished one is read, one
    with a checkpoint continues, which docs/runs.md makes repeatable. `progress` is told steps done, of how many;
    `seen_by_learner` makes of the game what the learner plays; `teacher` as in `distill.train`."""
    run = TrainingFolder(folder)
    if run.finished:
        store.remove(run.checkpoint)  # a kill may have come before
        return load(run.policy, device)
    began = time.time()
    game = seen_by_learner(make_env(config.game, config.learner(task.loss).num_envs, device))
    # One thread for vectors; of images all, whatever else runs: with another number sums round otherwise.
    vectors = len(game.obs_shape) == 1
    with contextlib.closing(game) as env, threads(1) if vectors else contextlib.nullcontext():
        policy = _untrained(parent, config, task, env)
        identity = _Identity(config, task, policy.spec.parent)
        record = RecordInFolder(run, policy, identity, device, began, progress, stop)
        if record.state and device == "cpu":
            config = in_precision(config, bool(record.state.get("bf16")))
        with trackers.open(run, config, record.step) as record.tracker:
            if task.loss == "distill":
                distill.train(policy.to(device), env, config.distill, task, record, record.state, teacher)
            elif config.algo == "ppo":
                ppo.train(policy.to(device), env, config.ppo, config.attack, task, record, record.state)
            else:
                dqn.train(policy.to(device), env, config.dqn, config.attack, task, record, record.state)
    save(policy, run.policy)
    about = {"policy": fingerprint(policy), "parent": policy.spec.parent, **dataclasses.asdict(task)}
    run.finish({**about, "last": run.metrics()[-1], **record.times()})
    return policy.eval()


def in_precision(config: Config, bf16: bool) -> Config:
    """The same with this precision for `auto`: CPUs differ in what that means, and a run goes on as it was begun."""
    precision = "bf16" if bf16 else "fp32"
    sections = {name: getattr(config, name) for name in ("dqn", "ppo", "distill")}
    changed: dict[str, Any] = {
        name: dataclasses.replace(section, precision=precision)
        for name, section in sections.items()
        if section.precision == "auto"
    }
    return dataclasses.replace(config, **changed)


def check_fits(policy: Policy, config: Config, env: VectorEnv) -> None:
    """Refuse to train on from an agent that is not one of this game, learner and network."""
    spec = policy.spec
    game = policy.spec.game
    same_game = game is None or (type(game), game.id) == (type(config.game), config.game.id)
    network = config.network
    hidden = ",".join(map(str, spec.hidden))
    actions = counted(spec.num_actions, "action")
    other = f"give one made for '{config.game.id}' with these [game] settings"
    for fits, what, hint in (
        (spec.kind != CUSTOM, "is a network of your own", "give one that bcl trained or imported"),
        (same_game, f"plays '{game and game.id}'", other),
        (spec.obs_shape == env.obs_shape, f"observes {spec.obs_shape} instead of {env.obs_shape}", other),
        (spec.num_actions == env.num_actions, f"has {actions} instead of {env.num_actions}", other),
        ((spec.low, spec.high) == (env.low, env.high), "sees observations on another scale", other),
        (spec.algo == config.algo, f"was made for {spec.algo} and not for {config.algo}", "leave out --algo"),
        (network.kind in ("auto", spec.kind), f"has network.kind '{spec.kind}'", "leave out --network.kind"),
        (spec.hidden in ((), network.hidden), f"has hidden layers {hidden}", "leave out --network.hidden"),
    ):
        if not fits:
            raise WeightsError(f"the agent to start from {what}", hint)
    if config.algo == "ppo" and config.ppo.keep_return_statistics and (note := spec.notes.get(ppo.NOTE)):
        read_note(note)  # refuses what cannot be read, before a run is begun


def spec_of(config: Config, env: VectorEnv) -> PolicySpec:
    """What a fresh policy is made of."""
    kind = default_kind(env.obs_shape, config.algo) if config.network.kind == "auto" else config.network.kind
    if (config.algo == "ppo") != (kind in ACTOR_CRITICS):
        raise ConfigError(f"{config.algo} cannot train network.kind '{kind}'", "leave out --network.kind")
    hidden = config.network.hidden if kind.endswith("mlp") else ()
    return PolicySpec(kind, env.obs_shape, env.num_actions, env.low, env.high, hidden, game=config.game)


def _untrained(parent: Policy | None, config: Config, task: Task, env: VectorEnv) -> Policy:
    """With the parent's weights, or fresh ones."""
    if parent:
        check_fits(parent, config, env)
        policy = copy.deepcopy(parent)
        policy.spec = dataclasses.replace(parent.spec, game=config.game, parent=fingerprint(parent))
        return policy
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(task.seed, "weights"))
        return Policy(spec_of(config, env))


def _read_checkpoint(path: Path, identity: _Identity, device: str) -> dict[str, Any] | None:
    if not store.exists(path):
        return None
    again = f"delete it to have '{path.parent}' trained from its start"
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not check the sums that it writes
            intact = archive.testzip() is None
        # Mapped: gigabytes of replay memory are read as they are copied, not held a second time.
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True) if intact else {}
        if not found.keys() >= {"device", "state"}:
            raise ValueError("its content does not fit")
        fits = identity.fits(found)
    except OSError as error:
        raise StoreError(f"cannot read '{path}': {error.strerror}", "check its permissions") from None
    except Exception as error:  # whatever zipfile, pickle and PyTorch raise for damaged bytes
        reason = " ".join(str(error).split())[:80]
        raise StoreError(f"'{path}' is damaged ({reason})", again) from None
    if not fits:
        version = "" if "settings" in found else "by an earlier version of bcl, "
        raise StoreError(f"'{path}' was made {version}under other settings, or from another agent", again)
    if found["device"] != device:
        raise StoreError(f"'{path}' was made on {found['device']}", f"take --device {found['device']}, or {again}")
    return found
