"""The only wiring: configuration + run directory + dispatcher -> a finished run.

Resuming is running again: what has a result is read, what has a checkpoint continues, the rest begins.
"""

import contextlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import bcl
from bcl import stats
from bcl.bounds import margins
from bcl.config import Stages
from bcl.device import enough_memory
from bcl.envs import make_env
from bcl.errors import ConfigError, StoreError, counted
from bcl.experiment.phases import Curriculum, pace_of, rules_of, train_paced
from bcl.experiment.status import learning_flag, times_of
from bcl.experiment.trackers import NO_TRACKERS, Trackers
from bcl.experiment.verdict import Verdict, choosing_attacks, evaluate_run, final_score_in_words, kept_in_words
from bcl.experiment.worker import Dispatcher, TrainingOrder, check_fits, content, spec_of
from bcl.learners import dqn
from bcl.learners.distill import load_teacher
from bcl.learners.learner import Task, derive
from bcl.policies import Policy
from bcl.policies.files import fingerprint, load, to_bytes
from bcl.recipes import find_recipe
from bcl.runs import store
from bcl.runs.directory import Agent, RunDirectory, StageFolder, TrainingFolder, trained_stages
from bcl.runs.results import Flag
from bcl.settings import format_eps


def check(stages: Stages, device: str, init: Policy | None, trackers: Trackers = NO_TRACKERS) -> None:
    """Refuse, before anything is written, what would fail later: games, networks, rules, an agent that does not fit."""
    trackers.check()
    recipe = find_recipe(stages[-1][1].recipe)
    goes_on = False  # from a budget that the stage before will have reached
    for position, (_, (stage, config), _) in enumerate(trained_stages(recipe, stages, init is not None)):
        if position == 0 and init is None and stage.strategy != "none":
            what = f"recipe '{config.recipe}' begins with a curriculum, which needs an agent to start from"
            raise ConfigError(what, 'give --init FILE, or write bootstrap = "vanilla" into the recipe')
        if config.algo == "dqn":
            dqn.refuse_no_updates(config.dqn)
        if stage.strategy != "none":
            choosing_attacks(config)  # refuses names that no attack has
        start = 0.0 if goes_on and not stage.same_teacher else config.curriculum.start
        if stage.strategy == "paced":
            pace_of(config, stage.loss, start)
        elif stage.strategy != "none":
            rules_of(config, stage.strategy, start)
        goes_on = stage.strategy in ("open", "paced")
        with contextlib.closing(make_env(config.game, 1, device)) as env:
            if init:
                check_fits(init, config, env)
                if stage.loss in ("radial", "sa", "distill"):  # made of bounds, which every layer needs
                    obs = torch.zeros(1, *init.spec.obs_shape, device=init.device)
                    margins(init.chain(), obs, obs, torch.zeros(1, dtype=torch.long, device=obs.device), "ibp")
            with enough_memory("network.hidden"):
                student = init or Policy(spec_of(config, env))
            if stage.loss == "distill":
                load_teacher(config.distill.teacher, student)


def create(path: Path, stages: Stages, device: str, init: Policy | None) -> None:
    """Make the run directory with all that `finish` needs: each stage's settings, and the agent to start from."""
    about = {
        "version": bcl.__version__,
        "commit": commit_here(),
        "command": shlex.join(["bcl", *sys.argv[1:]]),
        "seed": stages[-1][1].seed,
        "worker_device": device,
        "init": init and fingerprint(init),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
    RunDirectory.create(path, stages, about, to_bytes(init) if init else None)


def train_until_median(path: Path, dispatcher: Dispatcher) -> None:
    """Of one of several repeats: the stages up to the one whose median all share."""
    run = RunDirectory(path)
    run.check_unchanged()
    run.check_device(dispatcher.device)
    with dispatcher.executor.session():
        trained = _given(run, dispatcher)
        for stage in run.stages():
            if stage.shares_median:
                _train_curriculum(stage, trained, dispatcher, until_median=True)
                break
            trained = _trainer(stage)(stage, trained, dispatcher)


def finish(path: Path, dispatcher: Dispatcher) -> Verdict:
    """Do what is left of a run; what is finished is only read."""
    run = RunDirectory(path)
    store.sweep(path)  # a kill inside the writing of a checkpoint leaves gigabytes
    run.check_unchanged()
    if run.finished:
        return Verdict.read(run)
    run.check_device(dispatcher.device)
    with dispatcher.executor.session():
        trained = _given(run, dispatcher)
        for stage in run.stages():
            trained = _trainer(stage)(stage, trained, dispatcher)
        agent = trained.agent
        assert agent  # a recipe has stages
        store.write_bytes(run.best, content(agent))
        found = evaluate_run(run, agent, trained.reached, dispatcher)
    about = {"policy": agent.fingerprint, "reached": trained.reached, "kept": kept_in_words(run, agent, trained.kept)}
    found |= {"flags": [*map(asdict, trained.flags), *found["flags"]], "files": run.digests()}
    run.finish({**about, "curriculum": trained.stopped, **found})
    return Verdict.read(run)


@dataclass(frozen=True)
class Trained:
    """What the stages so far hand on."""

    agent: Agent | None
    """None: nothing was trained yet."""
    reached: float = 0.0
    """The budget that the agent was trained up to, or found robust at."""
    goes_on: bool = False
    """The next curriculum takes over at `reached`, not at its own start."""
    teacher: Agent | None = None
    """Of the last curriculum, if it made a student; else what that began from."""
    stopped: str = ""
    """Why the last curriculum stopped."""
    kept: str = ""
    """Which of its agents this is."""
    flags: tuple[Flag, ...] = ()


def _given(run: RunDirectory, dispatcher: Dispatcher) -> Trained:
    """The agent of `--init`, if there is one."""
    init = run.init
    given = run.provenance.init is not None
    first = run.stages()[0].number
    if first > 1:
        left_out = "stage 1" if first == 2 else f"stages 1 to {first - 1}"
        dispatcher.watch.say(f"the agent of --init takes the place of {left_out}")
    return Trained(Agent(init.policy, init.results, fingerprint(load(init.policy))) if given else None)


def _trainer(stage: StageFolder) -> Callable[[StageFolder, Trained, Dispatcher], Trained]:
    """What trains it: one run, or a curriculum."""
    return _train_once if stage.strategy == "none" else _train_curriculum


def _train_once(stage: StageFolder, before: Trained, dispatcher: Dispatcher) -> Trained:
    config = stage.config
    loss = stage.loss
    start, end = (0.0, 0.0) if loss == "standard" else (config.curriculum.start, config.curriculum.target)
    task = Task(loss, start, end, derive(config.seed, "stage", stage.number))
    if not stage.finished:
        steps = counted(config.learner(loss).steps, "step")
        dispatcher.watch.say(f"stage {stage.number}: {stage.name}, {steps} on {dispatcher.device}")
    parent = content(before.agent) if before.agent else None
    order = TrainingOrder(stage.name, config, task, parent, dispatcher.device, dispatcher.trackers)
    [_] = dispatcher.train([(stage, order)])
    flags = before.flags
    if found := learning_flag(stage):
        flags += (replace(found, message=f"stage {stage.name}: {found.message}"),)
        dispatcher.watch.say(f"flag {flags[-1]}")
    return replace(before, agent=stage.agent(), reached=end, flags=flags)


def _train_curriculum(
    stage: StageFolder, before: Trained, dispatcher: Dispatcher, until_median: bool = False
) -> Trained:
    strategy = stage.strategy
    settings = stage.config.curriculum
    teacher = before.teacher if stage.same_teacher else None  # else a student's is the agent that it begins as
    goes_on = before.goes_on and not stage.same_teacher
    start = before.reached if goes_on else settings.start
    if goes_on and before.reached >= settings.target:
        reached = format_eps(before.reached)
        dispatcher.watch.say(f"stage {stage.number}: nothing to do, the agent was trained up to {reached} already")
        return before
    target = ", open-ended" if strategy == "open" else f" to {format_eps(settings.target)}"
    dispatcher.watch.say(f"stage {stage.number}: curriculum, {stage.name} from {format_eps(start)}{target}")
    if not stage.finished:
        assert before.agent  # a curriculum has a bootstrap
        if strategy == "paced":
            outcome = train_paced(stage, start, before.agent, teacher, dispatcher)
        else:
            outcome = Curriculum(stage, start, before.agent, dispatcher).outcome()
        stage.finish(asdict(outcome))
    if times := times_of(stage):
        dispatcher.watch.say(f"stage {stage.number}: {times}")
    for flag in stage.outcome().flags:
        dispatcher.watch.say(f"flag {flag}")
    trained = _median(stage, dispatcher) if stage.shares_median and not until_median else stage
    outcome = trained.outcome()
    return Trained(
        agent=trained.agent(),
        reached=outcome.reached,
        goes_on=strategy in ("open", "paced"),
        teacher=teacher or before.agent,
        stopped=outcome.stopped,
        kept=outcome.kept,
        flags=(*before.flags, *outcome.flags),
    )


def _median(stage: StageFolder, dispatcher: Dispatcher) -> TrainingFolder:
    """The folder with the median of the repeats' agents of a stage and its result; without repeats the stage's."""
    run = RunDirectory(stage.run)
    number = stage.number
    median = stage.median
    if run.repeats is None:
        words = "goes on from this one run's agent; the paper's from the median of three (--repeats 3)"
        dispatcher.watch.say(f"stage {number}: {words}")
        return stage
    resume = f"'bcl resume {shlex.quote(str(run.repeats.path))}'"
    if not median.finished:
        what = f"'{run.path}' goes on from the median of its repeats, and not all of them are as far"
        raise StoreError(what, f"continue them together with {resume}")
    outcome = median.outcome(f"delete it, then {resume} takes the median again")
    dispatcher.watch.say(f"stage {number}: goes on from the agent of {outcome.run}, the median of the repeats")
    return median


def shared_stages(runs: Sequence[RunDirectory]) -> list[StageFolder]:
    """Of every run the stage whose median all go on from; empty: nothing is to be shared, or it is."""
    stages = [stage for run in runs for stage in run.stages() if stage.shares_median]
    finished = all(run.finished for run in runs) or all(stage.median.finished for stage in stages)
    return [] if finished else stages


def share_median(stages: Sequence[StageFolder]) -> None:
    """Lay the median of the agents of a stage into that stage's folder of every repeat."""
    outcomes = [stage.outcome() for stage in stages]
    finals = [outcome.final_score for outcome in outcomes if outcome.final_score is not None]
    if len(finals) < len(stages):
        what = f"'{stages[0].run}' or a repeat beside it was begun by a version without medians of stages"
        raise StoreError(what, "start anew with another --out")
    middle = stats.median_run(finals)
    names = [stage.run.name for stage in stages]
    median = replace(outcomes[middle], run=names[middle])
    about = asdict(median) | {"final_scores": dict(zip(names, finals, strict=True))}
    weights = store.read_bytes(stages[middle].policy)
    for stage in stages:
        store.write_bytes(stage.median.policy, weights)
        stage.median.finish(about)  # last: it says that the median is there


def summary(runs: Sequence[RunDirectory], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Final scores, what they are, the median run and the IQM."""
    finals = [verdict.final_score for verdict in verdicts]
    attacked = bool(verdicts[0].evaluation.attacks)
    return {
        "final_scores": dict(zip((run.path.name for run in runs), finals, strict=True)),
        "final_score_is": final_score_in_words(runs[0].config, attacked),
        "median": runs[stats.median_run(finals)].path.name,
        "iqm": stats.iqm(finals),
    }


def commit_here() -> str | None:
    """Of the checkout that this package runs from; none where it was installed."""
    root = Path(bcl.__file__).parents[1]
    if (root / ".git").exists():  # not the commit of another repository that contains this installation
        with contextlib.suppress(OSError):
            git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
            return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    return None
