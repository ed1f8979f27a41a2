"""The only wiring: configuration + run directory + crew -> a finished run.

Resuming is running again: what has a result.json is read, what has a checkpoint continues, the rest begins.
"""

import contextlib
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import bcl
from bcl import recipes, stats
from bcl.attacks import PGD, Multi, attack_label, attacks_named
from bcl.bounds import margins
from bcl.config import Config, config_from_toml
from bcl.curriculum import TARGET_REACHED
from bcl.envs import make_env
from bcl.errors import StoreError
from bcl.evaluation import Cell, Plan, Score, Start, cells, flags, worse_than_start, worst, worst_within
from bcl.evaluation.flags import WORSE_THAN_START
from bcl.experiment.crew import Agent, Crew, agent_in, agent_of
from bcl.experiment.learned import NO_LEARNING, UNKNOWN_LEARNING, doubt
from bcl.experiment.mirrors import NO_MIRRORS, Mirrors
from bcl.experiment.paced import pace_of, train_paced
from bcl.experiment.phases import DECISION, SELECTION, choosing_attacks, phase_of, plan_of, rules_of, train_phases
from bcl.experiment.work import METRICS, POLICY, RESULT, Training, check_fits, spec_of
from bcl.learners import dqn
from bcl.learners.task import Task
from bcl.policies import Policy
from bcl.policies.files import fingerprint, to_bytes
from bcl.quantities import counted, format_eps
from bcl.recipes import Stage
from bcl.runs import store
from bcl.seeds import derive
from bcl.settings import to_toml

Stages = Sequence[tuple[Stage, Config]]
MEDIAN = "median"  # folder of the agent that repeats share
MOST_NAMED = 4  # attacks in a sentence; the paper's table has as many
REPORTED = (RESULT, METRICS, DECISION, "clock*.json", "time-after*.json")  # files in the folders of stages


@dataclass(frozen=True)
class Verdict:
    """How a run ended."""

    scores: list[Score]
    """Of nominal play and, if the agent was made robust, of every attack at every budget."""
    final_score: float
    """The paper's: R_nominal + the mean over the table's budgets of the return under the worst attack at exactly each;
    where unlimited levels count too, the sum of both sets of levels."""
    flags: list[str]
    """Reasons to distrust the scores."""
    curriculum: str
    """Why the last curriculum stopped; empty without one."""
    kept: str
    """Which of its agents this is."""
    reached: float
    """The budget that the agent was trained up to, or found robust at."""
    unlimited: list[Score]
    """The same as `scores` on unlimited levels; empty where these are not judged."""
    start: Start | None = None
    """None: fresh weights, or the agent is the start itself."""

    def sentence(self, config: Config) -> str:
        """The verdict as people read it, within the budget reached; where that was not judged, within the largest that was."""
        words = [f"{config.recipe} on {config.game.id}: return {self.scores[0].mean:.4g} without attack"]
        judged = {score.eps for score in self.scores if score.eps > 0}
        eps = self.reached if self.reached in judged else max(judged, default=0.0)
        if judged:
            words.append(under_attack(self.scores, eps))
        if self.start and self.start.scores:
            lowest = worst_within(self.start.scores)
            had = f" and {lowest[eps].mean:.4g} within {format_eps(eps)}" if eps in lowest else ""
            words.append(f"its start ({self.start.name}) has {self.start.scores[0].mean:.4g} without attack{had}")
        if self.curriculum:
            words.append(f"it is {self.kept}; the curriculum stopped: {self.curriculum}")
        told = (NO_LEARNING, UNKNOWN_LEARNING, WORSE_THAN_START)
        words += [message for flag, _, message in (f.partition(": ") for f in self.flags) if flag in told]
        if config.budget == "small":
            words.append("a quick look, not the paper's protocol")
        return "; ".join(words)


def under_attack(scores: Sequence[Score], eps: float) -> str:
    """The lowest return within a budget, the attacks that were tried, and which did it if that was with less."""
    labels = [attack_label(name) for name in dict.fromkeys(score.attack for score in scores if 0 < score.eps <= eps)]
    *others, last = labels
    attacks = f"the worst of {', '.join(others)} and {last}" if others else last
    if len(labels) > MOST_NAMED:
        attacks = f"the worst of {len(labels)} attacks"
    lowest, tried = worst_within(scores)[eps], f"under {attacks} within {format_eps(eps)}"
    if lowest.eps == 0:
        return f"no less {tried}"
    with_less = f"{attack_label(lowest.attack)} at " if others else "at "
    return f"{lowest.mean:.4g} {tried}" + (f" ({with_less}{format_eps(lowest.eps)})" if lowest.eps < eps else "")


def check(stages: Stages, device: str, init: Policy | None, mirrors: Mirrors = NO_MIRRORS) -> None:
    """Refuse, before anything is written, what would fail later: games, networks, rules, an agent that does not fit."""
    mirrors.check()
    for number in _numbers(stages[-1][1].recipe, len(stages), init is not None):
        stage, config = stages[number - 1]
        if config.algo == "dqn":
            dqn.refuse_no_updates(config.dqn)
        if stage.strategy != "none":
            choosing_attacks(config)  # refuses names that no attack has
        if stage.strategy == "paced":
            pace_of(config, stage.loss, config.curriculum.start)
        elif stage.strategy != "none":
            rules_of(stage, config, config.curriculum.start)
        with contextlib.closing(make_env(config.game, 1, device)) as env:
            if init:
                check_fits(init, config, env)
                if stage.loss in ("radial", "sa"):
                    _refuse_unbounded(init)
            else:
                Policy(spec_of(config, env))


def _refuse_unbounded(policy: Policy) -> None:
    """Losses made of bounds need them for every layer."""
    obs = torch.zeros(1, *policy.spec.obs_shape, device=next(policy.parameters()).device)
    margins(policy.chain(), obs, obs, torch.zeros(1, dtype=torch.long, device=obs.device), "ibp")


def create(run: Path, stages: Stages, device: str, init: Policy | None) -> None:
    """Make the run directory, with all that `finish` needs: every stage's configuration, and the agent to start from."""
    config = stages[-1][1]
    files = {f"init/{POLICY}": to_bytes(init)} if init else {}
    for number in _numbers(config.recipe, len(stages), init is not None):
        stage, own = stages[number - 1]
        files[f"{_folder(number, stage)}/config.toml"] = to_toml(own).encode()
    if source := recipes.find_recipe(config.recipe).source:
        files[f"stages/{config.recipe}.toml"] = source.encode()
    about = _provenance(config, device, init)
    texts = {**files, "config.toml": to_toml(config).encode()}
    about["settings"] = {name: _digest(data) for name, data in texts.items() if name.endswith(".toml")}
    store.create_run(run, to_toml(config), about, files)


def train_until_median(run: Path, crew: Crew) -> None:
    """Of a run that is one of several repeats: the stages up to the one of which all go on from the median."""
    check_unchanged(run)
    _check_device(run, crew.device)
    with crew.executor.session():
        _train_stages(run, crew, until_median=True)


def finish(run: Path, crew: Crew) -> Verdict:
    """Do what is left of a run; what is finished is only read."""

    def work() -> dict[str, Any]:
        check_unchanged(run)
        _check_device(run, crew.device)
        with crew.executor.session():
            agent, stage, config, about = _train_stages(run, crew)
            store.write_bytes(run / "best" / POLICY, agent.content())
            found = _judge(agent, stage, config, about["reached"], run, crew)
            return about | found | {"flags": about["flags"] + found["flags"], "files": _files(run)}

    store.sweep(run)  # a kill inside the writing of a checkpoint leaves gigabytes
    return _verdict(run, store.once(run / RESULT, work))


def read_verdict(run: Path) -> Verdict | None:
    """How a finished run ended; none: it has not."""
    return _verdict(run, store.read_json(run / RESULT)) if (run / RESULT).exists() else None


def _verdict(run: Path, data: dict[str, Any]) -> Verdict:
    try:
        scores = [Score.from_dict(score, f"a score in '{run / RESULT}'") for score in data["scores"]]
        unlimited = [Score.from_dict(score, f"a score in '{run / RESULT}'") for score in data.get("unlimited", [])]
        names = ("final_score", "flags", "curriculum", "kept", "reached")
        start = None
        if told := data.get("start"):
            both = (
                [Score.from_dict(score, f"a score in '{run / RESULT}'") for score in told[kind]]
                for kind in ("scores", "unlimited")
            )
            start = Start(told["name"], told["file"], *both)
        return Verdict(scores, unlimited=unlimited, start=start, **{name: data[name] for name in names})
    except (KeyError, TypeError):
        raise StoreError(f"'{run / RESULT}' is not a result of this version", "delete it and resume the run") from None


def read_config(folder: Path) -> Config:
    """The configuration that lies in a run, or in a stage of it; a recipe that lies with it is known from here on."""
    text = store.open_run(folder)
    for recipe in (folder / "stages").glob("*.toml"):
        recipes.take_recipe(recipe)
    try:
        return config_from_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"'{folder / 'config.toml'}' is damaged: {error}", "restore it, or start a new run") from None


def stage_folders(run: Path) -> list[tuple[int, Stage, Path]]:
    """The stages of a run that are or will be trained, with their numbers and folders."""
    config = read_config(run)
    stages = [stage for stage, _ in recipes.stages_of(config.recipe, config.algo, "", config.bootstrap)]
    numbers = _numbers(config.recipe, len(stages), _begun_from_an_agent(run))
    return [(number, stages[number - 1], run / _folder(number, stages[number - 1])) for number in numbers]


def start_of(run: Path) -> tuple[str, Agent] | None:
    """The agent that the recipe's own stages begin from, with its name; none: they begin with fresh weights, or it is not
    trained yet."""
    if given := store.read_json(run / store.RUN).get("init"):
        return "--init", Agent(run / "init" / POLICY, run / "init", str(given))
    before = stage_folders(run)[: -_own_stages(read_config(run).recipe)]
    if not before or not (before[-1][2] / RESULT).exists():
        return None
    _, stage, folder = before[-1]
    return _name(stage), agent_in(folder)


def _own_stages(recipe: str) -> int:
    return max(len(recipes.find_recipe(recipe).stages), 1)


def _numbers(recipe: str, stages: int, init: bool) -> range:
    """Which stages are trained, counted from 1: an agent to start from stands for all but the recipe's own."""
    return range(stages - _own_stages(recipe) + 1 if init else 1, stages + 1)


def _begun_from_an_agent(run: Path) -> bool:
    # By the record: a run that was copied without its weights can still be told about.
    return store.read_json(run / store.RUN).get("init") is not None


def _train_stages(run: Path, crew: Crew, until_median: bool = False) -> tuple[Agent, Stage, Config, dict[str, Any]]:
    """Every stage from the agent of the one before; `until_median`: up to the one of which repeats share the median."""
    agent = agent_of(run / "init" / POLICY, run / "init") if _begun_from_an_agent(run) else None
    reached, ended, kept, open_ended, raised = 0.0, "", "", False, list[str]()
    for number, stage, folder in stage_folders(run):
        config = read_config(folder)
        start, end = config.curriculum.start, config.curriculum.target
        if stage.strategy == "none":
            start, end = (0.0, 0.0) if stage.loss == "standard" else (start, end)
            task = Task(stage.loss, start, end, derive(config.seed, "stage", number))
            if not (folder / RESULT).exists():
                steps = config.learner.steps
                crew.say(f"stage {number}: {_name(stage)}, {counted(steps, 'step')} on {crew.device}")
            parent = agent.content() if agent else None
            order = Training(_name(stage), config, task, parent, crew.device, crew.mirrors)
            [agent], reached = crew.train([(folder, order)]), end
            if found := doubt(folder):
                raised.append(f"{found[0]}: stage {_name(stage)}: {found[1]}")
                crew.say(f"flag {raised[-1]}")
            continue
        assert agent, "a curriculum has a bootstrap"
        # After an open-ended or paced curriculum the next one takes over where it ended.
        start = reached if open_ended else start
        if open_ended and reached >= end:
            crew.say(f"stage {number}: nothing to do, the agent was trained up to {format_eps(reached)} already")
            continue
        crew.say(f"stage {number}: curriculum, {_name(stage)} from {format_eps(start)}{_target(stage, end)}")
        curriculum = _paced if stage.strategy == "paced" else _curriculum
        about = curriculum(folder, number, stage, config, start, agent, crew)
        agent = agent_in(folder)
        if stage.shares_median and until_median:
            break
        if stage.shares_median:
            agent, about = _median(run, number, folder, crew) or (agent, about)
        reached, ended, kept = float(about["reached"]), about["stopped"], about["kept"]
        raised += about["flags"]
        open_ended = stage.strategy in ("open", "paced")
    assert agent, "a recipe has stages"
    about = {"policy": agent.fingerprint, "reached": reached, "curriculum": ended, "kept": kept, "flags": raised}
    return agent, stage, config, about


def _median(run: Path, number: int, folder: Path, crew: Crew) -> tuple[Agent, dict[str, Any]] | None:
    """The median of the repeats' agents of a stage, and what that stage's result says; none: there are no repeats."""
    if not store.repeats(run.absolute().parent):
        crew.say(
            f"stage {number}: goes on from this one run's agent; the paper's from the median of three (--repeats 3)"
        )
        return None
    if not (folder / MEDIAN / RESULT).exists():
        what = f"'{run}' goes on from the median of its repeats, and not all of them are as far"
        raise StoreError(what, f"continue them together with 'bcl resume {shlex.quote(str(run.parent))}'")
    about = store.read_json(folder / MEDIAN / RESULT)
    if missing := {"run", "policy", "reached", "stopped", "kept", "flags"} - about.keys():
        what = f"'{folder / MEDIAN / RESULT}' is damaged: it has no {min(missing)}"
        raise StoreError(what, f"delete it, then 'bcl resume {shlex.quote(str(run.parent))}' takes the median again")
    crew.say(f"stage {number}: goes on from the agent of {about['run']}, the median of the repeats")
    return agent_in(folder / MEDIAN), about


def _curriculum(
    folder: Path, number: int, stage: Stage, config: Config, start: float, bootstrap: Agent, crew: Crew
) -> dict[str, Any]:
    """Which agent the stage hands on, the budget it was trained up to, why the curriculum stopped, and flags."""

    def work() -> dict[str, Any]:
        result = train_phases(
            folder, number, stage, config, start, Agent(bootstrap.file, folder, bootstrap.fingerprint), crew
        )
        kept = result.policy if config.curriculum.keep == "last" else result.best
        store.write_bytes(folder / POLICY, kept.content())
        phase, eps = phase_of(kept), rules_of(stage, config, start).eps
        reached = eps[phase]
        if result.stopped == TARGET_REACHED and kept is result.policy and stage.strategy != "open":
            reached = max(reached, config.curriculum.target)  # robust there, whatever it was trained at last
        name = f"the agent of phase {phase}, trained up to {format_eps(eps[phase])}" if phase else "the bootstrap"
        found = list[str]()
        if stage.loss == "radial" and reached > 0:  # its gradients may be hidden, and adversarial training needs them
            judged = [Cell(None, 0.0), Cell(PGD(steps=30, step=0.1), reached), Cell(Multi(starts=100), reached)]
            scores = crew.scores(_name(stage), kept, plan_of(config, SELECTION), judged)
            found = [f"{flag.name}: {flag.message}" for flag in flags(scores)]
        made = {
            "policy": kept.fingerprint, "reached": reached, "stopped": result.stopped, "kept": name, "flags": found,
        }  # fmt: skip
        if stage.shares_median:
            wanted = cells(attacks_named(config.evaluation.suite), config.evaluation.scored)
            played = [crew.scores("choosing", kept, plan, wanted) for plan in _plans(config, SELECTION)]
            made["final_score"] = _final_score(played, config)
        return made

    about = store.once(folder / RESULT, work)
    for flag in about["flags"]:
        crew.say(f"flag {flag}")
    return about


def _paced(
    folder: Path, number: int, stage: Stage, config: Config, start: float, bootstrap: Agent, crew: Crew
) -> dict[str, Any]:
    return store.once(folder / RESULT, lambda: train_paced(folder, number, stage, config, start, bootstrap, crew))


def _judge(agent: Agent, stage: Stage, config: Config, reached: float, run: Path, crew: Crew) -> dict[str, Any]:
    budgets = [] if stage.loss == "standard" else sorted({*config.evaluation.eps, reached} - {0.0})
    reported = Agent(run / "best" / POLICY, run, agent.fingerprint)
    begun = start_of(run)
    begun = begun if begun and begun[1].fingerprint != agent.fingerprint else None
    agents = [("verdict", reported), *([("verdict on its start", begun[1])] if begun else [])]
    plans, wanted = _plans(config, "evaluation"), cells(attacks_named(config.evaluation.suite), budgets)
    crew.play([(doing, one, plan, wanted) for plan in plans for doing, one in agents])
    played, *before = [[crew.scores(doing, one, plan, wanted) for plan in plans] for doing, one in agents]
    scores, unlimited = played[0], [score for more in played[1:] for score in more]
    crew.mirrors.show(run, config, scores)
    raised, start = flags(scores), None
    if begun:
        name, file = begun[0], begun[1].file.relative_to(run).as_posix()
        start = Start(name, file, before[0][0], [score for more in before[0][1:] for score in more])
        raised += worse_than_start(scores, start.scores, file) or worse_than_start(unlimited, start.unlimited, file)
    return {
        "scores": [score.to_dict() for score in scores],
        "unlimited": [score.to_dict() for score in unlimited],
        "start": start and start.to_dict(),
        "final_score": _final_score(played, config),
        "flags": [f"{flag.name}: {flag.message}" for flag in raised],
    }


def _plans(config: Config, purpose: str) -> list[Plan]:
    """The game as it was trained, then its unlimited levels if these count too."""
    both = config.evaluation.levels == "both"
    return [plan_of(config, purpose), *([plan_of(config, purpose, unlimited=True)] if both else [])]


def _final_score(played: Sequence[Sequence[Score]], config: Config) -> float:
    """R_nominal + the mean over the scored budgets under the worst attack, summed over the sets of levels."""
    total = 0.0
    for scores in played:
        lowest = worst(scores)
        attacked = [lowest[eps].mean for eps in config.evaluation.scored if eps in lowest]
        total += scores[0].mean + (stats.mean(attacked) if attacked else 0.0)
    return total


def check_unchanged(run: Path) -> None:
    """Refuse settings that were edited since the run was started, and files of a finished run that are not as it left
    them, or not there."""
    result = store.read_json(run / RESULT) if (run / RESULT).exists() else {}
    for kept, since, way_out in (
        (store.read_json(run / store.RUN).get("settings"), "was started", "start a new run with other settings"),
        (result.get("files"), "ended", f"delete '{run / RESULT}' and resume the run to go on with what is there"),
    ):
        for name, digest in (kept or {}).items():
            path = run / name
            if not path.exists():
                raise StoreError(f"'{path}' is missing", f"restore it, or {way_out}")
            if _digest(path.read_bytes()) != digest:
                raise StoreError(f"'{path}' was changed since the run {since}", f"restore it, or {way_out}")


def _files(run: Path) -> dict[str, str]:
    """Digests of all that reports read of a run's stages."""
    found = (path for pattern in REPORTED for path in (run / "stages").rglob(pattern))
    return {path.relative_to(run).as_posix(): _digest(path.read_bytes()) for path in sorted(found)}


def _check_device(run: Path, device: str) -> None:
    """Refuse another kind of device: scores of one are not the other's."""
    started_on = store.read_json(run / store.RUN).get("worker_device")
    if started_on not in (None, device):
        raise StoreError(f"'{run}' was started on {started_on}", f"take --device {started_on}")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _folder(number: int, stage: Stage) -> str:
    return f"stages/{number}-{_name(stage)}"


def _name(stage: Stage) -> str:
    return "vanilla" if stage.loss == "standard" else stage.loss


def _target(stage: Stage, end: float) -> str:
    return ", open-ended" if stage.strategy == "open" else f" to {format_eps(end)}"


def commit_here() -> str | None:
    """Of the checkout that this package runs from; none where it was installed."""
    root = Path(bcl.__file__).parents[1]
    if (root / ".git").exists():  # not that of a repository which merely contains an installation
        with contextlib.suppress(OSError):
            git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
            return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    return None


def _provenance(config: Config, device: str, init: Policy | None) -> dict[str, Any]:
    return {
        "version": bcl.__version__,
        "commit": commit_here(),
        "command": shlex.join(["bcl", *sys.argv[1:]]),
        "seed": config.seed,
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
