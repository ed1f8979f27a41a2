"""How agents of a run are chosen and reported, and the verdict."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bcl import stats
from bcl.attacks import Attack, attack_from_dict, attack_labels, attack_to_dict, attacks_named, recorded
from bcl.config import Config
from bcl.errors import StoreError
from bcl.evaluation import (
    Cell,
    Conditions,
    Evaluation,
    Plan,
    Score,
    Start,
    cells,
    game_for_evaluation,
    on_each,
    read_scores,
)
from bcl.evaluation.evaluation import worst, worst_within
from bcl.evaluation.flags import WORSE_THAN_START, flags, worse_than_start
from bcl.evaluation.plan import name_of
from bcl.experiment.worker import Dispatcher
from bcl.learners.learner import derive
from bcl.recipes import ONE_RUN, find_recipe
from bcl.runs.directory import Agent, RunDirectory
from bcl.runs.results import Flag, Results
from bcl.runs.store import Json, fitting
from bcl.runs.version_0_1 import current_row
from bcl.settings import format_eps, format_return, typed_values

SELECTION = "selection"
"""The purpose of episodes that agents are chosen by."""
FACTS = ("final_score", "curriculum", "kept", "reached")
"""Of a verdict, those that its file holds as they are."""
UNCHANGED = ("the start", "the bootstrap")  # what a stage calls the agent that its curriculum began from
ITS_START = "its start"
BEFORE_LAST = "the agent that the last stage began from"
# Flags of stages that began with fresh weights.
NO_LEARNING = "no-learning"
UNKNOWN_LEARNING = "unknown-learning"
MOST_NAMED = 4  # attacks in a sentence; the paper's table has as many


@dataclass(frozen=True)
class Verdict:
    """How a run ended."""

    evaluation: Evaluation
    """Of its agent on the game as it was trained, with flags and the other agents that training began from."""
    unlimited: Evaluation | None
    """The same on unlimited levels; none where these are not evaluated."""
    final_score: float
    """The paper's, see `final_score` below."""
    curriculum: str
    """Why the last curriculum stopped; empty without one."""
    kept: str
    """Which of its agents this is; see `kept_in_words`."""
    reached: float
    """The budget that the agent was trained up to, or found robust at."""

    @property
    def evaluations(self) -> list[Evaluation]:
        """Of the game as it was trained, then of unlimited levels."""
        return [self.evaluation, *([self.unlimited] if self.unlimited else [])]

    @classmethod
    def read(cls, run: RunDirectory) -> "Verdict":
        """Of a finished run."""
        data = run.result()
        with fitting(f"'{run.result_file}'", "delete it and resume the run"):
            evaluation, *others = (_evaluations_inside if "scores" in data else _evaluations_beside)(run, data)
            if not isinstance(data["flags"], list):
                raise TypeError("its flags are not a list")
            raised = tuple(_with_path(run, Flag.from_stored(flag), evaluation.began_from) for flag in data["flags"])
            values = typed_values(cls, {name: data[name] for name in FACTS})
            return cls(replace(evaluation, flags=raised), others[0] if others else None, **values)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        facts = {name: getattr(self, name) for name in FACTS}
        unlimited = self.unlimited and self.unlimited.to_dict()
        return facts | {"evaluation": self.evaluation.to_dict(), "unlimited": unlimited}

    def sentence(self, config: Config) -> str:
        """The verdict as people read it."""
        return "; ".join(self.clauses(config))

    def clauses(self, config: Config) -> list[str]:
        """First the returns, within the budget reached or else the largest that was played; then what else to know."""
        scores = self.evaluation.scores
        words = [f"{config.recipe} on {name_of(config.game)}: return {format_return(scores[0].mean)} without attack"]
        played = {score.eps for score in scores if score.eps > 0}
        eps = self.reached if self.reached in played else max(played, default=0.0)
        if played:
            words[0] += f"; {under_attack(scores, eps)}"
        unchanged = self.kept.startswith((ITS_START, *UNCHANGED))
        for start in self.evaluation.began_from:
            first = start is self.evaluation.start and not self.kept.startswith(ITS_START)
            whose = ITS_START if first else "the one before it"
            had = (
                f" and {format_return(start.within[eps].mean)} within {format_eps(eps)}"
                if eps in start.within and eps
                else ""
            )
            words.append(f"{whose} ({start.name}) has {format_return(start.scores[0].mean)} without attack{had}")
        if self.curriculum:
            nothing = "training gave nothing better, " if unchanged else ""
            if self.kept == BEFORE_LAST:
                nothing = "the last stage gave nothing better, "
            words.append(f"{nothing}it is {self.kept}; the curriculum stopped: {self.curriculum}")
        named = (NO_LEARNING, UNKNOWN_LEARNING, WORSE_THAN_START)
        words += [flag.message for flag in self.evaluation.flags if flag.name in named]
        if config.size == "small":
            words.append("a quick look, not the paper's protocol")
        return words


def kept_in_words(run: RunDirectory, agent: Agent, kept: str) -> str:
    """Which agent came out, by what the last curriculum calls it; one that it began from by its place in the run."""
    if kept not in UNCHANGED:
        return kept
    names = [name for name, start in run.began_from() if start.fingerprint == agent.fingerprint]
    return f"{ITS_START} ({names[0]})" if names else BEFORE_LAST


def under_attack(scores: Sequence[Score], eps: float) -> str:
    """The lowest return within a budget, by which of the attacks tried."""
    labels = attack_labels(score.attack for score in scores if 0 < score.eps <= eps)
    *others, last = labels.values()
    attacks = f"the worst of {', '.join(others)} and {last}" if others else last
    if len(labels) > MOST_NAMED:
        attacks = f"the worst of {len(labels)} attacks"
    lowest = worst_within(scores)[eps]
    tried = f"under {attacks} within {format_eps(eps)}"
    if lowest.eps == 0:
        return f"no less {tried}"
    with_less = f"{labels[lowest.attack]} at " if others else "at "
    where = f" ({with_less}{format_eps(lowest.eps)})" if lowest.eps < eps else ""
    return f"{format_return(lowest.mean)} {tried}{where}"


def evaluate_run(run: RunDirectory, agent: Agent, reached: float, dispatcher: Dispatcher) -> dict[str, Any]:
    """The verdict on an agent and those that its training began from as plain data, which names the scores; where
    nothing was trained to be robust, there is no attack."""
    config = run.stages()[-1].config
    attacks = attacks_named(config.evaluation.suite)
    budgets = sorted({*config.evaluation.eps, reached} - {0.0}) if run.has_defence else []
    wanted = cells(attacks, budgets)
    plans = plans_of(config, "evaluation")
    agents = [("verdict", Agent(run.best, run.results, agent.fingerprint))]
    begun = run.began_from(trained=agent.fingerprint)
    agents += [(f"verdict on its start ({name})", one) for name, one in begun]
    together = on_each([plan.game for plan in plans], wanted)
    dispatcher.play([(doing, one, plans[0], together) for doing, one in agents])
    ours, *theirs = [[dispatcher.scores(doing, one, plan, wanted) for plan in plans] for doing, one in agents]
    dispatcher.trackers.show(run, config, ours[0])
    raised = flags(ours[0])
    for (_, start), played in zip(begun, theirs, strict=True):
        file = run.name_of(start.file)
        worse = [worse_than_start(*both, file) for both in zip(ours, played, strict=True)]
        raised += worse[0]
        raised += [replace(flag, message=f"on unlimited levels: {flag.message}") for more in worse[1:] for flag in more]
    return {
        "conditions": [plan.conditions(agent.fingerprint, dispatcher.device).to_dict() for plan in plans],
        "attacks": [*map(attack_to_dict, attacks)],
        "budgets": budgets,
        "compared_with": [name for name, _ in begun],
        "final_score": final_score(ours, config),
        "flags": [*map(asdict, raised)],
    }


def _with_path(run: RunDirectory, flag: Flag, began_from: Sequence[Start]) -> Flag:
    """Results name a start's file within the run, which may be moved; people get a path that works for them."""
    for start in began_from:
        within_run = run.name_of(Path(start.file))
        if flag.name == WORSE_THAN_START and flag.message.endswith(f": {within_run}"):
            return replace(flag, message=flag.message.removesuffix(within_run) + start.file)
    return flag


def _compared_with(run: RunDirectory, data: Json) -> list[tuple[str, Agent]]:
    """The agents that a result compares with, of those that training began from."""
    if "compared_with" not in data:  # the oldest compare with the bootstrap's agent alone
        return [(name, agent) for name, agent in run.began_from()[:1] if agent.fingerprint != data["policy"]]
    names = data["compared_with"]
    if names is None or isinstance(names, str):  # and then with one, or none
        names = [names] if names else []
    agents = dict(run.began_from())
    return [(name, agents[name]) for name in names]


def _evaluations_beside(run: RunDirectory, data: Json) -> list[Evaluation]:
    """Those whose scores a result names: of the game as it was trained, then of unlimited levels."""
    wanted = cells([*map(attack_from_dict, data["attacks"])], data["budgets"])
    begun = _compared_with(run, data)
    found = []
    for row in data["conditions"]:
        conditions = Conditions.from_row(current_row(row), f"'{run.result_file}'")
        starts = []
        for name, agent in begun:
            theirs = _stored(run, agent.results, replace(conditions, agent=agent.fingerprint), wanted)
            starts.append(Start(name, str(agent.file), theirs))
        scores = _stored(run, run.results, conditions, wanted)
        meaning = conditions.meaning
        found.append(Evaluation(conditions.plan.game, scores, conditions.agent, began_from=starts, meaning=meaning))
    return found


def _stored(run: RunDirectory, results: Results, conditions: Conditions, wanted: Sequence[Cell]) -> list[Score]:
    folder = results.scores
    found = read_scores(folder, conditions)
    for cell in wanted:
        if cell.key not in found:
            what = f"'{folder.path}' lacks the score of {cell.label}, which the verdict of '{run.path}' is about"
            raise StoreError(what, f"restore it, or delete '{run.result_file}' and resume the run")
    return [found[cell.key] for cell in wanted]


def _evaluations_inside(run: RunDirectory, data: Json) -> list[Evaluation]:
    """The same of a result that repeats the scores, as those of the first versions do."""

    def read(rows: Any) -> list[Score]:
        return [Score.from_dict(current_row(score), f"a score in '{run.result_file}'") for score in rows]

    config = run.config
    about = data.get("start")
    found = []
    for name, levels in (("scores", None), ("unlimited", "eval")):
        if scores := read(data.get(name, [])):
            game = game_for_evaluation(config.game, levels, config.evaluation.max_steps)
            start = [Start(str(about["name"]), str(run.path / about["file"]), read(about[name]))] if about else []
            found.append(Evaluation(game, scores, began_from=[one for one in start if one.scores]))
    return found


def plan_of(config: Config, purpose: str, unlimited: bool = False) -> Plan:
    """Episodes of one purpose: agents are not chosen by those reported. `unlimited`: on all levels of Procgen."""
    choosing = purpose == SELECTION
    most = config.evaluation.max_steps
    if choosing and config.curriculum.judged_steps:
        most = min(most, config.curriculum.judged_steps)
    game = game_for_evaluation(config.game, "eval" if unlimited else None, most)
    recipe = find_recipe(config.recipe)
    # Phases compare these episodes with their thresholds. Those that are returns are known of the game's own starts;
    # shares of the start's return hold for any.
    in_phases = any(stage.strategy not in ONE_RUN for stage in recipe.stages)
    comparable = config.curriculum.adaptive or not in_phases
    starts = "varied" if choosing and recipe.ours and comparable else config.evaluation.starts
    return Plan(game, config.evaluation.episodes, derive(config.seed, purpose), starts=starts)


def plans_of(config: Config, purpose: str) -> list[Plan]:
    """The game as it was trained, then its unlimited levels if these count too."""
    both = config.evaluation.levels == "both"
    return [plan_of(config, purpose), *([plan_of(config, purpose, unlimited=True)] if both else [])]


def choosing_attacks(config: Config) -> tuple[Attack, ...]:
    """The attacks whose worst counts when agents are chosen."""
    names = [config.evaluation.suite if by == "evaluation" else by for by in config.curriculum.judged_by]
    return tuple({recorded(attack): attack for name in names for attack in attacks_named(name)}.values())


def final_score(played: Sequence[Sequence[Score]], config: Config) -> float:
    """R_nominal + the mean over the scored budgets under the worst attack, summed over the sets of levels."""
    total = 0.0
    for scores in played:
        lowest = worst(scores)
        attacked = [lowest[eps].mean for eps in config.evaluation.scored if eps in lowest]
        total += scores[0].mean + (stats.mean(attacked) if attacked else 0.0)
    return total


def final_score_in_words(config: Config, attacked: bool) -> str:
    """By which attacks, budgets and levels the median of repeats is taken."""
    evaluation = config.evaluation
    words = "mean return without attack"
    if attacked:
        attacks = [*attack_labels(attacks_named(evaluation.suite)).values()]
        under = attacks[0] if len(attacks) == 1 else f"the worst of {', '.join(attacks)}"
        words += f" + mean over {', '.join(map(format_eps, evaluation.scored))} under {under}"
    return words + (", training levels + unlimited levels" if evaluation.levels == "both" else "")
