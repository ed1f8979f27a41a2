"""A stage that is a curriculum: `bcl.curriculum` decides, a crew trains and plays, every decision is kept.

Running it again over the same folder makes the same decisions from what is stored there, and goes on where nothing is.
"""

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bcl import curriculum
from bcl.attacks import Attack, CrossEntropy, OwnValue, attacks_named
from bcl.config import Config
from bcl.curriculum import Decision, Phase, Result, Rules, budgets
from bcl.errors import StoreError, TrainingError, counted
from bcl.evaluation import Cell, Plan, game_for_evaluation
from bcl.experiment.crew import Agent, Crew
from bcl.experiment.work import CHECKPOINT, PROGRESS, Training
from bcl.learners.learner import Task, training_attack
from bcl.recipes import Stage, find_recipe
from bcl.runs import store
from bcl.seeds import derive
from bcl.settings import format_eps

DECISION = "decision.json"
SELECTION = "selection"
"""The purpose of episodes that agents are chosen by."""
LOWEST = -1e9  # the return of what diverged: below any game's, and JSON has no infinity


def rules_of(stage: Stage, config: Config, start: float) -> Rules:
    """What decides in this stage, the budgets beginning at `start`; refuses settings that contradict each other."""
    c = config.curriculum
    return Rules(
        eps=budgets(start, None if stage.strategy == "open" else c.target, c.increment),
        runs=c.runs,
        min_runs=c.min_runs,
        nominal=c.nominal_threshold,
        attacked=c.attacked_threshold,
        adaptive=c.adaptive,
        floor=c.floor,
        expected=c.expected_return,
        value=c.value,
        skip=c.skip,
        robust_to=c.robust_to,
        give_up=c.failed_phases or None,
        ratchet=c.ratchet,
        toothless=c.toothless or 1.0,
        judge_at=config.evaluation.scored if c.keep == "best" else (),
    )


def plan_of(config: Config, purpose: str, unlimited: bool = False) -> Plan:
    """Episodes for one purpose: those that agents are chosen by are not those that are reported. `unlimited`: on all
    levels of a Procgen game, not those of training."""
    game = game_for_evaluation(config.game, "eval" if unlimited else None, config.evaluation.max_steps)
    ours = purpose == SELECTION and find_recipe(config.recipe).ours
    starts = "varied" if ours else config.evaluation.starts
    return Plan(game, config.evaluation.episodes, derive(config.seed, purpose), starts=starts)


def choosing_attacks(config: Config) -> tuple[Attack, ...]:
    """The attacks whose worst counts when agents are chosen."""
    names = [config.evaluation.suite if by == "evaluation" else by for by in config.curriculum.judged_by]
    return tuple({repr(attack): attack for name in names for attack in attacks_named(name)}.values())


def train_phases(
    folder: Path, number: int, stage: Stage, config: Config, start: float, bootstrap: Agent, crew: Crew
) -> Result[Agent]:
    """The whole curriculum of stage `number`."""
    c, rules, plan = config.curriculum, rules_of(stage, config, start), plan_of(config, SELECTION)
    attacks = choosing_attacks(config)
    clock, runs_done, diverged = _Clock(folder), 0, 0  # runs that diverged: of the phase at work

    def cells(eps: float) -> tuple[Cell, ...]:
        return tuple(Cell(attack, eps) for attack in attacks) if eps > 0 else (Cell(None, 0.0),)

    def train(parent: Agent, phase: Phase) -> Iterator[Agent]:
        nonlocal runs_done, diverged
        # What the phase will ask of each run, so that workers play it: the thresholds' returns, and those of V_k.
        compared = phase.runs > 1 or rules.ratchet
        asked = [0.0] if compared or rules.nominal is not None else []
        asked += [phase.eps] if rules.attacked is not None else []
        asked += [phase.eps, phase.start] if compared and rules.value != "nominal" else []
        judged = tuple(cell for eps in dict.fromkeys(asked) for cell in cells(eps))
        orders = []
        for k in range(1, phase.runs + 1):
            seed = derive(config.seed, "stage", number, "phase", phase.index, "run", k)
            task = Task(stage.loss, phase.start, phase.eps, seed)
            name = f"phase {phase.index} up to {format_eps(phase.eps)}, run {k} of {phase.runs}"
            order = Training(name, config, task, parent.content(), crew.device, crew.mirrors, plan, judged)
            orders.append((_phase_folder(folder, phase.index) / f"run{k}", order))
        working, diverged = crew.train(orders), 0
        try:
            for k, agent in enumerate(working, 1):
                runs_done += 1
                diverged += not agent.fingerprint
                if diverged == phase.runs and not rules.ratchet:
                    what = f"every run of phase {phase.index} diverged"
                    raise TrainingError(
                        what, "start anew with a lower learning_rate, --init keeps the best agent so far"
                    )
                _keep_time(_phase_folder(folder, phase.index), k, clock.keep())
                yield agent
        finally:
            working.close()

    def score(agent: Agent, eps: float) -> float:
        if not agent.fingerprint:
            return LOWEST
        above = [cell for more in rules.eps if more > eps for cell in cells(more)] if rules.skip else []
        return min(s.mean for s in crew.scores("choosing", agent, plan, cells(eps), above[: crew.executor.width - 1]))

    def training_score(agent: Agent, eps: float) -> float:
        # DQN's own objective needs its target network, which is gone with the run: there, away from the action.
        value, paper = (OwnValue(), CrossEntropy()) if config.algo == "ppo" else (CrossEntropy(), None)
        # PPO's PGD leads away from the action taken, which here is the best one.
        attack = training_attack(config.attack, value, paper if config.attack.kind == "pgd" else None)
        return crew.scores("choosing", agent, plan, [Cell(attack, eps)])[0].mean

    def allowed(amount: float, what: str) -> str:
        return f"{counted(amount, what)} {'was' if amount == 1 else 'were'} allowed"

    def out_of_budget(phase: int, run: int) -> str | None:
        if 0 < run == diverged:
            return None  # there is nothing yet that could be kept
        if c.max_runs and runs_done >= c.max_runs:
            return allowed(runs_done, "run")
        if not c.max_hours:
            return None
        # Kept: on resuming, the clock must not undo what was within its time.
        over = allowed(c.max_hours, "hour") if clock.seconds() >= 3600 * c.max_hours else None
        path = _phase_folder(folder, phase) / f"time-after-run{run}.json"
        return store.once(path, lambda: {"stop": over}).get("stop")

    def decided(decision: Decision) -> None:
        path = _phase_folder(folder, decision.phase.index) / DECISION
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(decision)))
        stored = store.once(path, lambda: {"decision": plain, "seconds": clock.keep()})
        if stored.get("decision") != plain:
            what = f"'{path}' holds another decision than the results beside it lead to"
            raise StoreError(what, "restore what was changed by hand, or delete that file and the phases after it")
        _forget_cancelled(path.parent, decision)
        before = [
            row["seconds"] for row in decisions(folder) if row["decision"]["phase"]["index"] < decision.phase.index
        ]
        crew.say(phase_line(plain, rules.eps, stored["seconds"] - max(before, default=0.0)))

    return curriculum.bcl(
        bootstrap,
        rules,
        train=train,
        score=score,
        decided=decided,
        out_of_budget=out_of_budget,
        training_score=training_score if c.toothless else None,
    )


def phase_of(agent: Agent) -> int:
    """The phase in which `train_phases` had this agent trained; 0: before."""
    return int(agent.folder.parent.name) if agent.folder.name.startswith("run") else 0


def decisions(folder: Path) -> list[dict[str, Any]]:
    """What was decided so far in a stage's folder, phase by phase."""
    made, expected = list[dict[str, Any]](), 0
    for path in sorted((folder / "phases").glob(f"*/{DECISION}")):
        stored = store.read_json(path)
        decision: Any = stored.get("decision")
        whole = isinstance(decision, dict) and decision.keys() == {f.name for f in dataclasses.fields(Decision)}
        if not whole or not isinstance(stored.get("seconds"), int | float):
            raise StoreError(f"'{path}' does not hold a decision", "delete it to have it made again")
        if decision["phase"]["index"] != expected:
            what = f"the decision before '{path}' is missing"
            raise StoreError(what, "restore it, or delete result.json of this stage and of the run, and resume that")
        expected = decision["next"]
        made.append(stored)
    return made


def clock_after(phase_folder: Path, run: int) -> float | None:
    """Seconds on the stage's clock when a run of a phase was trained and judged; none: it has not been."""
    path = phase_folder / f"clock-after-run{run}.json"
    seconds = store.read_json(path).get("seconds") if path.exists() else None
    return float(seconds) if isinstance(seconds, int | float) else None


def _keep_time(phase_folder: Path, run: int, seconds: float) -> None:
    store.once(phase_folder / f"clock-after-run{run}.json", lambda: {"seconds": seconds})


def phase_line(decision: dict[str, Any], eps: tuple[float, ...], seconds: float) -> str:
    """One line for people: what the runs reached without and under attack, which was kept, what comes next."""
    phase, after = decision["phase"], decision["next"]
    if phase["index"] == 0:
        attacked = [t for t in decision["tried"] if t["eps"] > 0]
        robust = [t["eps"] for t in attacked if t["robust"]]
        words = ["bootstrap", *(f"nominal {t['score']:.4g}" for t in decision["tried"] if t["eps"] == 0)]
        words += [f"attacked {t['score']:.4g} at {format_eps(t['eps'])}" for t in attacked[-1:]]
        words += [f"robust at {format_eps(max(robust))}"] if robust else []
    else:
        scores = [c["scores"] for c in decision["candidates"] if c["run"] != curriculum.INCUMBENT]
        kept = "the old one" if decision["kept"] == curriculum.INCUMBENT else decision["kept"]
        words = [f"phase {phase['index']}", format_eps(phase["eps"]), *_reached(scores, phase["eps"])]
        words.append(f"kept {kept}")
    if after is None:
        words.append(f"stop: {decision['stop']}")
    else:
        words.append(f"{'skip' if after > phase['index'] + 1 else 'next'} -> {format_eps(eps[after])}")
    return "  ".join([*words, f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"])


def _reached(runs: list[dict[str, float]], eps: float) -> Iterator[str]:
    """Returns without attack, and at the phase's budget; where that was not asked for, the lowest of those that were."""
    yield f"runs nominal {_shown([scores.get('0.0') for scores in runs])}"
    attacked = [{float(at): score for at, score in scores.items() if at != "0.0"} for scores in runs]
    budgets = {at for scores in attacked for at in scores}
    if eps in budgets:
        yield f"attacked {_shown([scores.get(eps) for scores in attacked])}"
    elif budgets:
        lowest = [min(scores.values(), default=None) for scores in attacked]
        yield f"attacked within {format_eps(max(budgets))} {_shown(lowest)}"


def _shown(returns: list[float | None]) -> str:
    return " ".join("-" if r is None else "diverged" if r == LOWEST else f"{r:.4g}" for r in returns)


def _forget_cancelled(folder: Path, decision: Decision) -> None:
    """Delete what runs beyond an early stop left: their checkpoints can be gigabytes."""
    done = {f"run{candidate.run}" for candidate in decision.candidates}
    for run in (path for path in folder.glob("run*") if path.name not in done):
        store.sweep(run)
        for name in (CHECKPOINT, PROGRESS):
            store.remove(run / name)


def _phase_folder(folder: Path, index: int) -> Path:
    return folder / "phases" / f"{index:03d}"


class _Clock:
    """Seconds spent on a stage by all processes that worked on it, each counted up to its last `keep`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "clock.json"
        kept = store.read_json(self._path).get("seconds") if self._path.exists() else 0.0
        self._before = float(kept) if isinstance(kept, int | float) else 0.0
        self._began = time.monotonic()

    def seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    def keep(self) -> float:
        """The seconds so far."""
        spent = self.seconds()
        store.write_json(self._path, {"seconds": spent})
        return spent
