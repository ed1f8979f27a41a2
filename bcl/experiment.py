"""The only wiring: configuration + run directory -> a finished run.

Resuming is running again: what has a result.json is read, what has a checkpoint continues, the rest begins.
"""

import contextlib
import copy
import dataclasses
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import bcl
from bcl import recipes
from bcl.attacks import suite
from bcl.config import Config, config_from_toml
from bcl.envs import VectorEnv, make_env
from bcl.errors import ConfigError, MissingExtra, NotYetError, StoreError, WeightsError
from bcl.evaluation import Cell, Plan, Score, cells, game_for_evaluation, run_suite
from bcl.learners import dqn, ppo
from bcl.learners.task import Hooks, Metrics, State, Task
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint, load, save, to_bytes
from bcl.policies.networks import ActorCritic
from bcl.policies.policy import ACTOR_CRITICS, default_kind
from bcl.quantities import format_eps
from bcl.recipes import Stage
from bcl.runs import store
from bcl.seeds import derive
from bcl.settings import to_toml

POLICY, RESULT, CHECKPOINT, METRICS = "policy.safetensors", "result.json", "checkpoint.pt", "metrics.jsonl"
FORMAT = 1  # of checkpoints


@dataclass(frozen=True)
class Watch:
    """How a run speaks with whoever started it; by default it is silent."""

    say: Callable[[str], None] = lambda line: None
    begin: Callable[[str], None] = lambda label: None
    """A piece of work begins; `log` and `progress` are about it until the next one does."""
    log: Callable[[Metrics], None] = lambda row: None
    progress: Callable[[int, int], None] = lambda done, of: None
    interrupted: Callable[[], bool] = lambda: False
    tensorboard: bool = False
    """Mirror the metrics for TensorBoard."""


SILENT = Watch()


def train_run(
    folder: Path, config: Config, task: Task, parent: Policy | None, device: str, watch: Watch = SILENT
) -> Policy:
    """One training run in a folder of its own, from the parent's weights or fresh ones; the unit of all work.

    The result depends on the arguments alone. A run that is finished is read; one with a checkpoint continues.
    """
    checkpoint = folder / CHECKPOINT
    if (folder / RESULT).exists():
        store.remove(checkpoint)  # a kill may have come before
        return load(folder / POLICY, device)
    store.sweep(folder)  # a kill inside the writing of a checkpoint leaves gigabytes
    watch.begin(_label(task))
    with contextlib.closing(make_env(config.game, config.learner.num_envs, device)) as env:
        if len(env.obs_shape) == 1:
            torch.set_num_threads(1)  # on small matrices threads only wait for each other
        policy = _child(parent, config, env) if parent else _fresh(config, env, derive(task.seed, "weights"))
        facts = (FORMAT, config, task, policy.spec.parent)
        identity = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        state = _read_checkpoint(checkpoint, identity, device)
        step = int(state["step"]) if state else 0
        if state:
            whole = state.get("replay", True)  # PPO has none
            refill = "" if whole else "; its replay memory was not kept and is collected anew first"
            watch.say(f"continues at step {step:,}{refill}")
        store.keep_metrics(folder / METRICS, lambda row: row["step"] <= step)
        with store.MetricsFile(folder / METRICS) as metrics, _mirror(folder, step, watch) as mirror:

            def log(row: Metrics) -> None:
                metrics.append(row)
                mirror(row)
                watch.log(row)

            def keep(state: State) -> None:
                metrics.sync()  # rows up to the checkpoint must be there with it
                with store.replacing(checkpoint) as file:
                    torch.save({"identity": identity, "device": device, "state": state}, file)

            hooks = Hooks(log, keep, watch.progress, watch.interrupted)
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


def check(stages: Sequence[tuple[Stage, Config]], device: str, init: Policy | None, tensorboard: bool = False) -> None:
    """Refuse, before anything is written, what would fail later: games, networks, an agent that does not fit."""
    if tensorboard:
        _summary_writer()
    for number in _numbers(stages[-1][1].recipe, len(stages), init is not None):
        stage, config = stages[number - 1]
        if stage.strategy != "none":
            raise NotYetError("curricula cannot be trained yet", "see CHANGELOG.md for what can")
        with contextlib.closing(make_env(config.game, 1, device)) as env:
            if init:
                check_fits(init, config, env)
            else:
                Policy(_spec(config, env))


def create(run: Path, stages: Sequence[tuple[Stage, Config]], device: str, init: Policy | None) -> None:
    """Make the run directory, with all that `finish` needs: every stage's configuration, and the agent to start from."""
    config = stages[-1][1]
    files = {f"init/{POLICY}": to_bytes(init)} if init else {}
    for number in _numbers(config.recipe, len(stages), init is not None):
        stage, own = stages[number - 1]
        files[f"{_folder(number, stage)}/config.toml"] = to_toml(own).encode()
    store.create_run(run, to_toml(config), _provenance(config, device, init), files)


def finish(run: Path, device: str, watch: Watch = SILENT) -> list[Score]:
    """Do what is left of a run; the result is its verdict: nominal play and, if it was made robust, the quick suite."""

    def work() -> dict[str, Any]:
        policy, stage, config = _train_stages(run, device, watch)
        save(policy, run / "best" / POLICY)
        scores = _judge(policy, stage, config, run / "evals", watch)
        return {"policy": fingerprint(policy), "scores": [score.to_dict() for score in scores]}

    return [Score.from_dict(score) for score in store.once(run / RESULT, work)["scores"]]


def read_config(folder: Path) -> Config:
    """The configuration that lies in a run, or in a stage of it."""
    text = store.open_run(folder)
    try:
        return config_from_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"'{folder / 'config.toml'}' is damaged: {error}", "restore it, or start a new run") from None


def check_fits(policy: Policy, config: Config, env: VectorEnv) -> None:
    """Refuse to train on from an agent that is not one of this game, learner and network."""
    spec, game, network = policy.spec, policy.spec.game, config.network
    learner = "ppo" if isinstance(policy.network, ActorCritic) else "dqn"
    hidden = ",".join(map(str, spec.hidden))
    other = f"give one made for '{config.game.id}' with these [game] settings"
    for fits, what, hint in (
        (
            not game or (type(game), game.id) == (type(config.game), config.game.id),
            f"plays '{game and game.id}'",
            other,
        ),
        (spec.obs_shape == env.obs_shape, f"observes {spec.obs_shape} instead of {env.obs_shape}", other),
        (spec.num_actions == env.num_actions, f"has {spec.num_actions} actions instead of {env.num_actions}", other),
        ((spec.low, spec.high) == (env.low, env.high), "sees observations on another scale", other),
        (learner == config.algo, f"was made for {learner} and not for {config.algo}", "give another"),
        (network.kind in ("auto", spec.kind), f"has network.kind '{spec.kind}'", "leave out --network.kind"),
        (spec.hidden in ((), network.hidden), f"has hidden layers {hidden}", f"give --network.hidden {hidden}"),
    ):
        if not fits:
            raise WeightsError(f"the agent to start from {what}", hint)


def _numbers(recipe: str, stages: int, init: bool) -> range:
    """Which stages are trained, counted from 1: an agent to start from stands for all but the recipe's own."""
    own = max(len(recipes.find_recipe(recipe).stages), 1)
    return range(stages - own + 1 if init else 1, stages + 1)


def _train_stages(run: Path, device: str, watch: Watch) -> tuple[Policy, Stage, Config]:
    """Every stage from the policy of the one before."""
    config = read_config(run)
    stages = [stage for stage, _ in recipes.stages_of(config.recipe, config.algo, "", config.bootstrap)]
    init = run / "init" / POLICY
    policy = load(init, device) if init.exists() else None
    for number in _numbers(config.recipe, len(stages), policy is not None):
        stage = stages[number - 1]
        folder = run / _folder(number, stage)
        config = read_config(folder)
        if not (folder / RESULT).exists():
            watch.say(f"stage {number} of {len(stages)}: {folder.name[2:]}, {config.learner.steps:,} steps on {device}")
        start, end = (0.0, 0.0) if stage.loss == "standard" else (config.curriculum.start, config.curriculum.target)
        task = Task(stage.loss, start, end, derive(config.seed, "stage", number))
        policy = train_run(folder, config, task, policy, device, watch)
    assert policy, "a recipe has stages"
    return policy, stage, config


def _judge(policy: Policy, stage: Stage, config: Config, folder: Path, watch: Watch) -> list[Score]:
    game = game_for_evaluation(config.game, None, config.evaluation.max_steps)
    plan = Plan(game, config.evaluation.episodes, derive(config.seed, "evaluation"))
    budgets = [] if stage.loss == "standard" else [config.curriculum.target]

    def report(done: int, of: int) -> None:
        if watch.interrupted():
            raise KeyboardInterrupt
        watch.progress(done, of)

    def begin(cell: Cell) -> Callable[[int, int], None]:
        watch.begin(cell.label)
        return report

    return list(run_suite(policy, plan, cells(suite("quick"), budgets), folder, begin))


def _folder(number: int, stage: Stage) -> str:
    return f"stages/{number}-{'vanilla' if stage.loss == 'standard' else stage.loss}"


def _label(task: Task) -> str:
    return "vanilla" if task.loss == "standard" else f"{task.loss} up to {format_eps(task.end)}"


def _spec(config: Config, env: VectorEnv) -> PolicySpec:
    kind = default_kind(env.obs_shape, config.algo) if config.network.kind == "auto" else config.network.kind
    if (config.algo == "ppo") != (kind in ACTOR_CRITICS):
        raise ConfigError(f"{config.algo} cannot train network.kind '{kind}'", "leave out --network.kind")
    hidden = config.network.hidden if kind.endswith("mlp") else ()
    return PolicySpec(kind, env.obs_shape, env.num_actions, env.low, env.high, hidden, game=config.game)


def _fresh(config: Config, env: VectorEnv, seed: int) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Policy(_spec(config, env))


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


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("--tensorboard needs TensorBoard", "pip install 'tensorboard>=2.17'") from None
    return SummaryWriter


@contextlib.contextmanager
def _mirror(folder: Path, step: int, watch: Watch) -> Iterator[Callable[[Metrics], None]]:
    """Rows of metrics for TensorBoard, which is told to forget those after `step`."""
    if not watch.tensorboard:
        yield lambda row: None
        return
    with _summary_writer()(str(folder / "tensorboard"), purge_step=step + 1) as writer:

        def mirror(row: Metrics) -> None:
            for name, value in row.items():
                if value is not None and name != "step":
                    writer.add_scalar(name, value, row["step"])

        yield mirror


def _provenance(config: Config, device: str, init: Policy | None) -> dict[str, Any]:
    root = Path(bcl.__file__).parents[1]
    commit = None
    if (root / ".git").exists():  # not that of a repository which merely contains an installation
        with contextlib.suppress(OSError):
            git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
            commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    return {
        "version": bcl.__version__,
        "commit": commit,
        "command": shlex.join(["bcl", *sys.argv[1:]]),
        "seed": config.seed,
        "init": init and fingerprint(init),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
