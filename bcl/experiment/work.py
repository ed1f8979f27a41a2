"""What a worker does: one training run, or cells of an evaluation, each in a folder of its own.

Work done again over what an earlier call left in its folder finishes what that one began: a run that has a result.json is
read, one with a checkpoint continues, scores that are stored are not played.
"""

import contextlib
import copy
import dataclasses
import hashlib
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bcl.bounds import Method
from bcl.config import Config
from bcl.envs import VectorEnv, make_env
from bcl.errors import ConfigError, StoreError, TrainingError, WeightsError
from bcl.evaluation import Cell, Plan, run_certificates, run_suite
from bcl.experiment.mirrors import NO_MIRRORS, Mirrors
from bcl.learners import dqn, ppo
from bcl.learners.returns import read_note
from bcl.learners.task import Hooks, Metrics, State, Task
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint, load, save
from bcl.policies.policy import ACTOR_CRITICS, CUSTOM, default_kind
from bcl.quantities import counted
from bcl.runs import store
from bcl.seeds import derive
from bcl.threads import threads

POLICY, RESULT, CHECKPOINT, METRICS = "policy.safetensors", "result.json", "checkpoint.pt", "metrics.jsonl"
EVALS, PROGRESS = "evals", "progress.json"
SNAPSHOTS = "snapshots"
"""Agents kept while a paced budget rose, by how many increments it was above its start."""
TRAINING, DIVERGED = "training", "diverged"
FORMAT = 1  # of checkpoints
# What workers import; the last with the first optimizer.
MODULES = ("bcl.experiment.work", "gymnasium", "torch._dynamo")
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Watch:
    """How a training run speaks with whoever started it; by default it is silent."""

    progress: Callable[[int, int], None] = lambda done, of: None
    interrupted: Stop = lambda: False
    mirrors: Mirrors = NO_MIRRORS


SILENT = Watch()


@dataclass(frozen=True)
class Judging:
    """An order to play cells of an evaluation, as data that can travel."""

    name: str
    """For people who watch."""
    policy: bytes = field(repr=False)
    """A policy file's content."""
    plan: Plan
    cells: tuple[Cell, ...]
    device: str


@dataclass(frozen=True)
class Proving:
    """An order for a certificate, as data that can travel."""

    policy: bytes = field(repr=False)
    """A policy file's content."""
    plan: Plan
    method: Method
    device: str


@dataclass(frozen=True)
class Training:
    """An order for a training run, as data that can travel."""

    name: str
    """For people who watch."""
    config: Config
    task: Task
    parent: bytes | None = field(repr=False)
    """Content of the policy file to start from; none: fresh weights."""
    device: str
    mirrors: Mirrors = NO_MIRRORS
    plan: Plan | None = None
    """How the outcome is judged, where it is."""
    cells: tuple[Cell, ...] = ()


def train(folder: Path, order: Training, stop: Stop) -> None:
    """A job: the run, then the scores that will be asked for. Of several runs that are compared, one may diverge."""
    if (folder / RESULT).exists() and DIVERGED in store.read_json(folder / RESULT):
        return
    parent = _unpack(order.parent, order.device) if order.parent else None
    progress = folder / PROGRESS
    watch = Watch(_tell(progress, order.name, TRAINING), stop, order.mirrors)
    try:
        policy = train_run(folder, order.config, order.task, parent, order.device, watch)
        if order.plan:
            _play(policy, order.name, order.plan, order.cells, folder / EVALS, progress, stop)
    except TrainingError as error:
        if not order.plan:
            raise
        store.write_json(folder / RESULT, {"policy": "", DIVERGED: error.message})
        store.remove(folder / CHECKPOINT)
    store.remove(progress)


def progress_file(part: int) -> str:
    """Where one of several jobs in a folder tells how far it is."""
    return f"{part}-{PROGRESS}"


def prove(folder: Path, order: Proving, eps: float, part: int, stop: Stop) -> None:
    """A job: the certificate of a policy at one budget."""
    progress = folder / progress_file(part)
    begin = _stoppable(progress, "certify", stop)
    policy = _unpack(order.policy, order.device)
    for _ in run_certificates(policy, order.plan, [eps], order.method, folder, begin, part):
        pass
    store.remove(progress)


def judge(folder: Path, order: Judging, part: int, stop: Stop) -> None:
    """A job: scores of a policy that lies elsewhere; `part`: which of several jobs in this folder."""
    progress = folder / progress_file(part)
    _play(_unpack(order.policy, order.device), order.name, order.plan, order.cells, folder, progress, stop, part)
    store.remove(progress)


def _play(
    policy: Policy,
    name: str,
    plan: Plan,
    cells: tuple[Cell, ...],
    folder: Path,
    progress: Path,
    stop: Stop,
    part: int | None = None,
) -> None:
    from bcl.experiment.planning import ready  # which trains by `train_run`

    begin = _stoppable(progress, name, stop)
    for _ in run_suite(policy, plan, cells, folder, begin, ready(policy, plan, folder, begin), part):
        if stop():
            raise KeyboardInterrupt


def _stoppable(progress: Path, name: str, stop: Stop) -> Callable[[str], Callable[[int, int], None]]:
    """What an evaluation tells of itself, with a look at whether it should stop."""

    def begin(label: str) -> Callable[[int, int], None]:
        tell = _tell(progress, name, label)

        def report(done: int, of: int) -> None:
            if stop():
                raise KeyboardInterrupt
            tell(done, of)

        return report

    return begin


def _tell(progress: Path, name: str, doing: str) -> Callable[[int, int], None]:
    """Tells whoever looks into the folder how far the work is, once a second."""
    told = 0.0

    def tell(done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            store.write_json(progress, {"name": name, "doing": doing, "done": done, "of": of})

    return tell


def _unpack(policy: bytes, device: str) -> Policy:
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(policy)
        file.flush()
        return load(file.name, device)


def train_run(
    folder: Path,
    config: Config,
    task: Task,
    parent: Policy | None,
    device: str,
    watch: Watch = SILENT,
    seen_by_learner: Callable[[VectorEnv], VectorEnv] = lambda env: env,
) -> Policy:
    """One training run in a folder of its own, from the parent's weights or fresh ones; the unit of all work.
    `seen_by_learner` makes of the game what the learner plays.

    The result depends on the arguments and on when checkpoints fell, at which every episode starts anew: on the arguments
    alone where these are counted in steps. A run that is finished is read; one with a checkpoint continues.
    """
    checkpoint = folder / CHECKPOINT
    if (folder / RESULT).exists():
        store.remove(checkpoint)  # a kill may have come before
        return load(folder / POLICY, device)
    game = seen_by_learner(make_env(config.game, config.learner.num_envs, device))
    with contextlib.closing(game) as env, _threads_for(env):
        policy = _child(parent, config, env) if parent else _fresh(config, env, derive(task.seed, "weights"))
        facts = (FORMAT, config, task, policy.spec.parent)
        identity = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        state = _read_checkpoint(checkpoint, identity, device)
        step = int(state["step"]) if state else 0
        store.keep_metrics(folder / METRICS, lambda row: row["step"] <= step)
        _forget_snapshots(folder, state)
        with store.MetricsFile(folder / METRICS) as metrics, watch.mirrors.open(folder, config, step) as mirror:

            def log(row: Metrics) -> None:
                metrics.append(row)
                mirror(row)

            def keep(state: State) -> None:
                metrics.sync()  # rows up to the checkpoint must be there with it
                with store.replacing(checkpoint) as file:
                    torch.save({"identity": identity, "device": device, "state": state}, file)

            def held(increments: int) -> None:
                save(policy, folder / SNAPSHOTS / f"{increments:03d}.safetensors")

            hooks = Hooks(log, keep, held, watch.progress, watch.interrupted)
            if config.algo == "ppo":
                ppo.train(policy.to(device), env, config.ppo, config.attack, task, hooks, state)
            else:
                dqn.train(policy.to(device), env, config.dqn, config.attack, task, hooks, state)
    save(policy, folder / POLICY)
    last = store.read_metrics(folder / METRICS)[-1]
    about = {"policy": fingerprint(policy), "parent": policy.spec.parent, **dataclasses.asdict(task), "last": last}
    store.write_json(folder / RESULT, about)
    store.remove(checkpoint)
    return policy.eval()


def _threads_for(env: VectorEnv) -> contextlib.AbstractContextManager[None]:
    """One for vector observations; of images all, whatever else runs: with another number sums round otherwise."""
    return threads(1) if len(env.obs_shape) == 1 else contextlib.nullcontext()


def _forget_snapshots(folder: Path, state: State | None) -> None:
    """Of budgets that the checkpoint does not know to have been held."""
    told = state["pacer"]["told"] if state and state["pacer"] else 0
    for path in (folder / SNAPSHOTS).glob("*.safetensors"):
        if int(path.stem) > told:
            store.remove(path)


def check_fits(policy: Policy, config: Config, env: VectorEnv) -> None:
    """Refuse to train on from an agent that is not one of this game, learner and network."""
    spec, game, network = policy.spec, policy.spec.game, config.network
    hidden = ",".join(map(str, spec.hidden))
    other = f"give one made for '{config.game.id}' with these [game] settings"
    for fits, what, hint in (
        (spec.kind != CUSTOM, "is a network of your own", "give one that bcl trained or imported"),
        (
            not game or (type(game), game.id) == (type(config.game), config.game.id),
            f"plays '{game and game.id}'",
            other,
        ),
        (spec.obs_shape == env.obs_shape, f"observes {spec.obs_shape} instead of {env.obs_shape}", other),
        (
            spec.num_actions == env.num_actions,
            f"has {counted(spec.num_actions, 'action')} instead of {env.num_actions}",
            other,
        ),
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


def _fresh(config: Config, env: VectorEnv, seed: int) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Policy(spec_of(config, env))


def _child(parent: Policy, config: Config, env: VectorEnv) -> Policy:
    check_fits(parent, config, env)
    policy = copy.deepcopy(parent)
    policy.spec = dataclasses.replace(parent.spec, game=config.game, parent=fingerprint(parent))
    return policy


def _read_checkpoint(path: Path, identity: str, device: str) -> State | None:
    if not path.exists():
        return None
    again = f"delete it to have '{path.parent}' trained from its start"
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not check the sums that it writes
            intact = archive.testzip() is None
        # Mapped: gigabytes of replay memory are read as they are copied, not held a second time.
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True) if intact else {}
        if found.keys() != {"identity", "device", "state"}:
            raise ValueError("its content does not fit")
    except OSError as error:
        raise StoreError(f"cannot read '{path}': {error.strerror}", "check its permissions") from None
    except Exception as error:  # whatever damaged bytes make zipfile, pickle and PyTorch stumble over
        reason = " ".join(str(error).split())[:80]
        raise StoreError(f"'{path}' is damaged ({reason})", again) from None
    if found["identity"] != identity:
        raise StoreError(f"'{path}' was made under other settings, or from another agent", again)
    if found["device"] != device:
        raise StoreError(f"'{path}' was made on {found['device']}", f"take --device {found['device']}, or {again}")
    return found["state"]
