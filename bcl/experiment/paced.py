"""A stage whose budget paces itself: one continuous run, then a choice among the agents that were kept on the way."""

from typing import Any

from bcl.config import Config
from bcl.evaluation import cells
from bcl.experiment.dispatch import Dispatcher, content
from bcl.experiment.scoring import SELECTION, choosing_attacks, plan_of
from bcl.experiment.worker import TrainingOrder
from bcl.learners.task import Task
from bcl.pacing import Pace
from bcl.policies.files import fingerprint, load
from bcl.quantities import format_eps
from bcl.recipes import Loss
from bcl.runs import store
from bcl.runs.directory import Agent, StageFolder
from bcl.seeds import derive


def pace_of(config: Config, loss: Loss, start: float) -> Pace:
    """What decides about the budget in this stage, beginning at `start`; refuses settings that contradict each other."""
    c = config.curriculum
    # A start that the stage before reached may lie so near the target that nothing is left to be gentle about.
    gentle = c.gentle_below if start == c.start else min(c.gentle_below, c.target - start)
    driven = config.algo == "dqn" and config.attack.in_play > 0
    return Pace(
        start=start,
        target=c.target,
        rise=c.increment / c.rise_steps,
        patience=c.patience,
        step_back=c.step_back,
        increment=c.increment,
        episodes=c.pace_episodes,
        first_episodes=config.learner.num_envs,
        gentle_below=gentle,
        nominal=c.nominal_threshold,
        attacked=c.attacked_threshold if driven else None,
        certified=c.certified_threshold if loss == "radial" else 0.0,
        adaptive=c.adaptive,
        floor=c.floor,
    )


def train_paced(stage: StageFolder, start: float, bootstrap: Agent, dispatcher: Dispatcher) -> dict[str, Any]:
    """Train, evaluate every agent that was kept, and leave the best in the stage's folder; what came of it, as plain data."""
    config = stage.config
    run = stage.paced_run
    pace = pace_of(config, stage.stage.loss, start)
    seed = derive(config.seed, "stage", stage.number)
    task = Task(stage.stage.loss, start, config.curriculum.target, seed, pace)
    name = f"{stage.stage.loss}, paced"
    order = TrainingOrder(name, config, task, content(bootstrap), dispatcher.device, dispatcher.trackers)
    [_] = dispatcher.train([(run, order)])
    candidates = {"the start": (start, Agent(bootstrap.file, stage.evals, bootstrap.fingerprint))}
    for increments, file in run.snapshots().items():
        eps = start + increments * pace.increment
        agent = Agent(file, run.evals, fingerprint(load(file)))
        candidates[f"the agent that held {format_eps(eps)}"] = (eps, agent)
    reached = max(eps for eps, _ in candidates.values())
    candidates["the last agent"] = (reached, run.agent())
    scored = [_scored(label, eps, agent, config, dispatcher) for label, (eps, agent) in candidates.items()]
    best = max(scored, key=lambda one: (one["value"], one["eps"]))
    eps, agent = candidates[best["name"]]
    store.write_bytes(stage.policy, content(agent))
    done = reached >= config.curriculum.target
    return {
        "policy": agent.fingerprint,
        "reached": eps,
        "stopped": "target reached" if done else f"{config.learner.steps:,} steps were trained",
        "kept": best["name"],
        "candidates": scored,
        "flags": [],
    }


def _scored(name: str, eps: float, agent: Agent, config: Config, dispatcher: Dispatcher) -> dict[str, Any]:
    """The paper's final score of one agent, on episodes that decide and are not reported."""
    budgets = config.evaluation.scored
    wanted = cells(choosing_attacks(config), budgets)
    scores = dispatcher.scores(f"choosing, {name}", agent, plan_of(config, SELECTION), wanted)
    returns = {"0": scores[0].mean}
    for budget in budgets:
        returns[format_eps(budget)] = min(score.mean for score in scores if score.eps == budget)
    value = returns["0"] + sum(returns[format_eps(budget)] for budget in budgets) / len(budgets)
    dispatcher.say(f"{name}: " + ", ".join(f"{score:.4g} at {budget}" for budget, score in returns.items()))
    return {"name": name, "eps": eps, "returns": returns, "value": value}
