"""A stage whose budget paces itself: one continuous run, then a choice among the agents that were kept on the way."""

from pathlib import Path
from typing import Any

from bcl.config import Config
from bcl.evaluation import cells
from bcl.experiment.crew import Agent, Crew, agent_of
from bcl.experiment.phases import SELECTION, choosing_attacks, plan_of
from bcl.experiment.work import POLICY, SNAPSHOTS, Training
from bcl.learners.task import Task
from bcl.pacing import Pace
from bcl.quantities import format_eps
from bcl.recipes import Loss, Stage
from bcl.runs import store
from bcl.seeds import derive

PACED_RUN = "run"  # folder of the one training run


def pace_of(config: Config, loss: Loss, start: float) -> Pace:
    """What decides about the budget in this stage, beginning at `start`; refuses settings that contradict each other."""
    c = config.curriculum
    # A start that the stage before reached may lie so near the target that nothing is left to be gentle about.
    gentle = c.gentle_below if start == c.start else min(c.gentle_below, c.target - start)
    driven = config.distill.in_play > 0 if loss == "distill" else config.algo == "dqn" and config.attack.in_play > 0
    return Pace(
        start=start,
        target=c.target,
        rise=c.increment / c.rise_steps,
        patience=c.patience,
        step_back=c.step_back,
        increment=c.increment,
        episodes=c.pace_episodes,
        first_episodes=config.learner(loss).num_envs,
        gentle_below=gentle,
        gentle_from=c.gentle_from,
        nominal=c.nominal_threshold,
        attacked=c.attacked_threshold if driven else None,
        certified=c.certified_threshold if loss in ("radial", "distill") else 0.0,
        adaptive=c.adaptive,
        floor=c.floor,
    )


def train_paced(
    folder: Path, number: int, stage: Stage, config: Config, start: float, bootstrap: Agent, crew: Crew
) -> dict[str, Any]:
    """Train, judge every agent that was kept, and leave the best in `folder`; what came of it, as plain data."""
    pace = pace_of(config, stage.loss, start)
    task = Task(stage.loss, start, config.curriculum.target, derive(config.seed, "stage", number), pace)
    name = f"{stage.loss}, paced"
    order = Training(name, config, task, bootstrap.content(), crew.device, crew.mirrors)
    [last] = crew.train([(folder / PACED_RUN, order)])
    candidates = {"the start": (start, Agent(bootstrap.file, folder, bootstrap.fingerprint))}
    for path in sorted((folder / PACED_RUN / SNAPSHOTS).glob("*.safetensors")):
        eps = start + int(path.stem) * pace.increment
        candidates[f"the agent that held {format_eps(eps)}"] = (eps, agent_of(path, folder / PACED_RUN))
    reached = max(eps for eps, _ in candidates.values())
    candidates["the last agent"] = (reached, last)
    judged = [_judged(label, eps, agent, config, crew) for label, (eps, agent) in candidates.items()]
    best = max(judged, key=lambda one: (one["value"], one["eps"]))
    eps, agent = candidates[best["name"]]
    store.write_bytes(folder / POLICY, agent.content())
    stopped = f"{config.learner(stage.loss).steps:,} steps were trained"
    if reached >= config.curriculum.target:
        stopped = "target reached"
    return {
        "policy": agent.fingerprint,
        "reached": eps,
        "stopped": stopped,
        "kept": best["name"],
        "candidates": judged,
        "flags": [],
    }


def _judged(name: str, eps: float, agent: Agent, config: Config, crew: Crew) -> dict[str, Any]:
    """The paper's final score of one agent, on episodes that decide and are not reported."""
    budgets = config.evaluation.scored
    wanted = cells(choosing_attacks(config), budgets)
    scores = crew.scores(f"choosing, {name}", agent, plan_of(config, SELECTION), wanted)
    returns = {"0": scores[0].mean}
    for budget in budgets:
        returns[format_eps(budget)] = min(score.mean for score in scores if score.eps == budget)
    value = returns["0"] + sum(returns[format_eps(budget)] for budget in budgets) / len(budgets)
    crew.say(f"{name}: " + ", ".join(f"{score:.4g} at {budget}" for budget, score in returns.items()))
    return {"name": name, "eps": eps, "returns": returns, "value": value}
