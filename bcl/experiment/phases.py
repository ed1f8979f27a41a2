"""Stages that are curricula: phases, where `bcl.curriculum` decides, or one run whose budget paces itself.

Running one again over the same folder makes the same decisions from what is stored there, and goes on where nothing is.
"""

import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bcl import curriculum
from bcl.attacks import PGD, CrossEntropy, Multi, OwnValue, attacks_named
from bcl.config import Config, CurriculumConfig
from bcl.curriculum_rules import (
    INCUMBENT,
    Candidate,
    Decision,
    Phase,
    Rules,
    RunNumber,
    budgets,
    refuse_weak_start,
    risen,
)
from bcl.device import MPS, takes_turns
from bcl.errors import ConfigError, TrainingError, counted
from bcl.evaluation import Cell, Plan, Score, cells, flags, read_scores, worst
from bcl.evaluation.evaluation import Key
from bcl.experiment import worker
from bcl.experiment.verdict import SELECTION, choosing_attacks, final_score, plan_of, plans_of
from bcl.experiment.worker import Dispatcher, OrderedRuns, TrainingOrder, content
from bcl.games import HIGHEST_RETURNS
from bcl.learners.learner import Task, derive, training_attack
from bcl.learners.pacing import Pace, rise_steps
from bcl.policies.files import fingerprint, load
from bcl.recipes import Loss, Strategy
from bcl.runs import store
from bcl.runs.directory import Agent, Clock, Outcome, StageFolder, TrainingFolder
from bcl.runs.executors import BackgroundJobs, Job
from bcl.runs.results import Flag
from bcl.settings import format_eps, format_return

GPU_PASS = 8  # scores of 20 or 64 copies that a GPU plays side by side (`bcl.evaluation.suite`)
LOWEST = -1e9  # the return of what diverged: below any game's, and JSON has no infinity


@dataclass(frozen=True)
class Ahead:
    """A run that probably comes next."""

    run: TrainingFolder
    order: TrainingOrder = field(compare=False)
    parent: str = ""
    """Fingerprint of the agent that it starts from; empty: that of all runs of the phase at work."""


def rules_of(config: Config, strategy: Strategy, start: float) -> Rules:
    """What decides in this stage, the budgets beginning at `start`; refuses settings that contradict each other."""
    c = config.curriculum
    eps = budgets(start, None if strategy == "open" else c.target, c.increment)
    return Rules(**vars(c), eps=eps, scored_at=config.evaluation.scored if c.keep == "best" else ())


def budgets_of(stage: StageFolder) -> tuple[float, ...]:
    """Of a curriculum that has made its first decision, which stores where it began."""
    return rules_of(stage.config, stage.strategy, stage.decisions()[0].decision.phase.eps).eps


class Curriculum:
    """The curriculum of one stage: workers and the store answer Algorithm 1."""

    def __init__(self, stage: StageFolder, start: float, bootstrap: Agent, dispatcher: Dispatcher) -> None:
        self._stage = stage
        self._config = stage.config
        self._rules = rules_of(self._config, stage.strategy, start)
        self._plan = plan_of(self._config, SELECTION)
        self._attacks = choosing_attacks(self._config)
        self._bootstrap = Agent(bootstrap.file, stage.results, bootstrap.fingerprint)
        self._dispatcher = dispatcher
        self._overlapped = OverlappedRuns(stage, dispatcher)
        self._judges_beside = dispatcher.judges_beside(self._config.game)
        self._succeeds = True  # whether the run that was judged last met the thresholds
        self._thresholds: tuple[float | None, float | None] = (None, None)  # as returns, once the bootstrap is judged
        self._clock = Clock(stage)
        self._runs_done = 0
        self._diverged = 0  # runs of the phase at work
        self._decided_at = 0.0

    def outcome(self) -> Outcome:
        """What it hands on; trains what is left of it."""
        self._stage.clear_discarded()
        look_at_start(self._rules, self._config, self._bootstrap, self._dispatcher)
        if self._judges_beside and self._dispatcher.device == "cuda" and takes_turns():
            self._dispatcher.watch.say(f"training and judging use the GPU by turns; after '{MPS} -d', at once")
        with self._overlapped.background:
            if self._judges_beside and not self._stage.decisions():
                self._begin(self._ahead(Phase(0, 0.0, self._rules.eps[0], 0), 0, ()))
            ended = curriculum.bcl(
                self._bootstrap,
                self._rules,
                train=self._train,
                score=self._score,
                decided=self._decided,
                limit_reached=self._limit_reached,
                training_score=self._training_score if self._config.curriculum.weak_attack_share else None,
            )
            self._overlapped.discard_guesses()
        kept = ended.policy if self._config.curriculum.keep == "last" else ended.best
        store.write_bytes(self._stage.policy, content(kept))
        reached = self._rules.eps[kept.phase]
        name = f"the agent of phase {kept.phase}, trained up to {format_eps(reached)}"
        if ended.stopped == curriculum.TARGET_REACHED and kept is ended.policy and self._stage.strategy != "open":
            reached = max(reached, self._config.curriculum.target)  # found robust there
        final = None
        if self._stage.shares_median:
            wanted = cells(attacks_named(self._config.evaluation.suite), self._config.evaluation.scored)
            plans = plans_of(self._config, SELECTION)
            played = [self._dispatcher.scores("choosing", kept, plan, wanted) for plan in plans]
            final = final_score(played, self._config)
        kept_name = name if kept.phase else "the bootstrap"
        return Outcome(kept.fingerprint, reached, ended.stopped, kept_name, self._flags(kept, reached), final)

    def _flags(self, kept: Agent, reached: float) -> tuple[Flag, ...]:
        """RADIAL may hide its gradients, and adversarial training needs them."""
        if self._stage.loss != "radial" or reached == 0:
            return ()
        wanted = [Cell(None, 0.0), Cell(PGD(steps=30, step=0.1), reached), Cell(Multi(starts=100), reached)]
        scores = self._dispatcher.scores(self._stage.name, kept, self._plan, wanted)
        return tuple(flags(scores))

    def _train(self, parent: Agent, phase: Phase) -> Iterator[Agent]:
        folder = self._stage.phase(phase.index)
        orders = [(folder.run(k), self._order(parent, phase, k)) for k in range(1, phase.runs + 1)]
        self._overlapped.discard_guesses(folder.run(1), parent.fingerprint)
        store.remove(folder.run(1).ahead_file)  # from here on it is a run like any other
        working = self._runs_beside(phase, orders) if self._judges_beside else self._dispatcher.train(orders)
        self._diverged = 0
        try:
            for run in working:
                if not run.finished:
                    raise TrainingError(f"'{run.path}' was not trained to its end", "resume the run")
                agent = run.agent(phase.index)
                self._runs_done += 1
                self._diverged += not agent.fingerprint
                if self._diverged == phase.runs and not self._rules.ratchet:
                    what = f"every run of phase {phase.index} diverged"
                    hint = "start anew with a lower learning_rate, --init keeps the best agent so far"
                    raise TrainingError(what, hint)
                self._clock.keep()
                yield agent
                self._succeeds = False  # another run is asked for
        finally:
            working.close()

    def _runs_beside(self, phase: Phase, orders: OrderedRuns) -> Generator[TrainingFolder, None, None]:
        """The runs of a phase in order, each when it is judged."""
        for k, (run, order) in enumerate(orders, 1):
            self._overlapped.train(run, order)
            if self._overlapped.begin_to_judge(run, order):
                ahead = self._ahead(phase, k, orders)
                self._begin(ahead)
                self._look_for_a_miss(phase, k, orders, ahead)
            self._overlapped.wait_until_judged(run)
            try:
                yield run
            except GeneratorExit:
                self._overlapped.end_phase()
                raise

    def _look_for_a_miss(self, phase: Phase, k: int, orders: OrderedRuns, ahead: Ahead | None) -> None:
        """While run k is judged: long before all is played it can be foreseen, and one score can settle, that it misses
        a threshold. Then the guess is corrected. Where that is settled and other runs follow, of which one may do
        better, scores ahead are given up."""
        run, order = orders[k - 1]
        agent = run.agent(phase.index)
        settled = functools.partial(self._misses, agent, phase)
        start = self._found(self._bootstrap).get(Cell(None, 0.0).key)
        if not self._overlapped.wait_until_judged(run, lambda: settled() or self._will_miss(run, phase, start)):
            return
        self._succeeds = False
        corrected = self._ahead(phase, k, orders)
        if corrected != ahead:
            self._overlapped.discard_guesses()
            self._begin(corrected)
        others_follow = k < phase.runs
        if others_follow and self._overlapped.wait_until_judged(
            run, lambda: settled() and not self._dispatcher.missing_of(run, order)
        ):
            self._overlapped.stop_judging(run)

    def _misses(self, agent: Agent, phase: Phase) -> bool:
        """Whether a stored score is below a threshold; other scores cannot change that."""
        found = self._found(agent)
        return any(cell.key in found and found[cell.key].mean < least for cell, least in self._demanded(phase))

    def _will_miss(self, run: TrainingFolder, phase: Phase, start: Score | None) -> bool:
        """Whether a score under way will probably be below a threshold; `start`: that of the bootstrap without
        attack."""
        highest = HIGHEST_RETURNS.get(self._config.game.id)
        under_way = {score.identity: score for score in worker.under_way(run)}
        return any(
            cell.identity in under_way and under_way[cell.identity].falls_short(least, highest, start)
            for cell, least in self._demanded(phase)
        )

    def _demanded(self, phase: Phase) -> Iterator[tuple[Cell, float]]:
        """What the thresholds ask of a run."""
        for eps, threshold in zip((0.0, phase.eps), self._thresholds, strict=True):
            if threshold is not None:
                yield from ((cell, threshold) for cell in self._cells(eps))

    def _found(self, agent: Agent) -> dict[Key, Score]:
        """Its stored scores by which the curriculum decides."""
        return read_scores(agent.results.scores, self._plan.conditions(agent.fingerprint, self._dispatcher.device))

    def _ahead(self, phase: Phase, k: int, orders: OrderedRuns) -> Ahead | None:
        """What probably comes next while run k is judged; none where it could not be used."""
        c = self._config.curriculum
        runs_left = not c.max_runs or self._runs_done + min(k, 1) < c.max_runs
        time_left = not c.max_hours or self._clock.seconds() < 3600 * c.max_hours
        if not (runs_left and time_left):
            return None
        agents = {number: run.agent(phase.index) for number, (run, _) in enumerate(orders[:k], 1)}
        judged = self._candidates(phase, agents, k - 1) if 1 < k == phase.runs else ()
        likely = curriculum.likely_next(phase, k, self._rules, self._succeeds, judged)
        if likely is None:
            return None
        if likely.starts_from is None:
            return Ahead(*orders[likely.number - 1])
        parent = agents[likely.starts_from] if likely.starts_from else self._bootstrap
        if not parent.fingerprint:  # it diverged
            return None
        run = self._stage.phase(likely.phase.index).run(likely.number)
        return Ahead(run, self._order(parent, likely.phase, likely.number), parent.fingerprint)

    def _candidates(self, phase: Phase, agents: Mapping[int, Agent], count: int) -> list[Candidate]:
        """The first runs of a phase, which were judged."""
        runs: dict[RunNumber, curriculum.Scored[Agent]]
        runs = {number: curriculum.Scored(agents[number], self._score) for number in range(1, count + 1)}
        nominal, attacked = self._thresholds
        rules = replace(self._rules, adaptive=False, nominal_threshold=nominal, attacked_threshold=attacked)
        return curriculum.as_candidates(runs, phase, rules)

    def _begin(self, ahead: Ahead | None) -> None:
        """Train it while another run is judged."""
        if ahead:
            self._overlapped.begin_ahead(ahead)

    def _order(self, parent: Agent, phase: Phase, k: int) -> TrainingOrder:
        """A run, and what the phase will ask of it, for workers to play: the thresholds' returns, and those of V_k."""
        rules = self._rules
        compared = phase.runs > 1 or rules.ratchet
        asked = [0.0] if compared or rules.nominal_threshold is not None else []
        asked += [phase.eps] if rules.attacked_threshold is not None else []
        asked += [phase.eps, phase.start] if compared and rules.value != "nominal" else []
        if self._judges_beside and phase.runs == 1:  # it will be the agent on the path
            asked += [0.0, *rules.scored_at] if rules.scored_at else []
        cells = [cell for eps in dict.fromkeys(asked) for cell in self._cells(eps)]
        seed = derive(self._config.seed, "stage", self._stage.number, "phase", phase.index, "run", k)
        return TrainingOrder(
            name=f"phase {phase.index} up to {format_eps(phase.eps)}, run {k} of {phase.runs}",
            config=self._config,
            task=Task(self._stage.loss, phase.start, phase.eps, seed),
            parent=content(parent),
            device=self._dispatcher.device,
            trackers=self._dispatcher.trackers,
            plan=self._plan,
            cells=tuple(cells),
            along=tuple(self._along(cells, phase.eps)) if self._dispatcher.device == "cuda" else (),
        )

    def _along(self, wanted: Sequence[Cell], eps: float) -> list[Cell]:
        """Scores at the next budgets above, for which skipping may ask, as many whole budgets as can be played in about
        the same time."""
        above = [more for more in self._rules.eps[1:] if more > eps] if self._rules.skip else []
        idle = -len(wanted) % GPU_PASS if self._dispatcher.device == "cuda" else self._dispatcher.executor.width - 1
        return [cell for more in above[: idle // len(self._attacks)] for cell in self._cells(more)]

    def _cells(self, eps: float) -> list[Cell]:
        return [Cell(attack, eps) for attack in self._attacks] if eps > 0 else [Cell(None, 0.0)]

    def _score(self, agent: Agent, eps: float) -> float:
        if not agent.fingerprint:
            return LOWEST
        cells = self._cells(eps)
        along = self._along(cells, eps)
        if self._judges_beside and self._dispatcher.missing(agent, self._plan, cells):
            self._overlapped.play("choosing", agent, self._plan, (*cells, *along))
        scores = self._dispatcher.scores("choosing", agent, self._plan, cells, along)
        return min(score.mean for score in scores)

    def _training_score(self, agent: Agent, eps: float) -> float:
        # DQN's own objective needs its target network, which is gone with the run: there, away from the action.
        value, paper = (OwnValue(), CrossEntropy()) if self._config.algo == "ppo" else (CrossEntropy(), None)
        # PPO's PGD leads away from the action taken, which here is the best one.
        settings = self._config.attack
        attack = training_attack(settings, value, paper)
        [score] = self._dispatcher.scores("choosing", agent, self._plan, [Cell(attack, eps)])
        return score.mean

    def _limit_reached(self, phase: int, run: int) -> str | None:
        c = self._config.curriculum
        if 0 < run == self._diverged:
            return None  # there is nothing yet that could be kept
        if c.max_runs and self._runs_done >= c.max_runs:
            return _allowed(self._runs_done, "run")
        if not c.max_hours:
            return None
        over = _allowed(c.max_hours, "hour") if self._clock.seconds() >= 3600 * c.max_hours else None
        return self._stage.phase(phase).out_of_time(run, over)

    def _decided(self, decision: Decision) -> None:
        seconds = self._stage.phase(decision.phase.index).keep(decision, self._clock.keep)
        self._succeeds = decision.candidates[-1].met is not False
        self._thresholds = decision.thresholds
        self._dispatcher.watch.say(phase_line(decision, self._rules.eps, seconds - self._decided_at))
        self._decided_at = seconds


class OverlappedRuns:
    """Judging that does not stop training: one process trains a run while another plays the scores of the one before.

    Which run that is has to be guessed (`curriculum.likely_next`), since the scores decide it. Decisions are made as
    without a guess, by the same scores in the same order; the training of a wrong guess is told and counted.
    """

    def __init__(self, stage: StageFolder, dispatcher: Dispatcher) -> None:
        self._stage = stage
        self._dispatcher = dispatcher
        self.background = BackgroundJobs(dispatcher.watch, worker.MODULES, worker.give_memory_back)
        self._guessed: TrainingFolder | None = None

    def train(self, run: TrainingFolder, order: TrainingOrder) -> None:
        """Until it is trained, whether it was begun ahead or not."""
        if run != self._guessed:
            self.discard_guesses()
            self._begin(run, order)
        self._guessed = None
        self.background.wait(run.path)

    def begin_to_judge(self, run: TrainingFolder, order: TrainingOrder) -> bool:
        """Have the scores played that will be asked for; whether any is missing."""
        if not self._dispatcher.missing_of(run, order):
            return False
        assert order.plan
        self._begin_to_play(order.name, run.agent(), order.plan, (*order.cells, *order.along))
        return True

    def wait_until_judged(self, run: TrainingFolder, enough: Callable[[], bool] = lambda: False) -> bool:
        """Or until what is known so far is enough; whether that was so before the end."""
        if self.background.wait(run.results.scores.path, enough):
            return True
        run.results.scores.gather()
        return False

    def stop_judging(self, run: TrainingFolder) -> None:
        """What is not played yet is not needed."""
        self.background.cancel(run.results.scores.path)
        run.results.scores.gather()

    def play(self, name: str, agent: Agent, plan: Plan, wanted: Sequence[Cell]) -> None:
        """Have missing scores made by the process that judges, which has its games ready."""
        self._begin_to_play(name, agent, plan, wanted)
        self.background.wait(agent.results.scores.path)
        agent.results.scores.gather()

    def _begin_to_play(self, name: str, agent: Agent, plan: Plan, wanted: Sequence[Cell]) -> None:
        for job in self._dispatcher.evaluation_jobs(name, agent, plan, wanted):
            self.background.begin(job)

    def begin_ahead(self, ahead: Ahead) -> None:
        """Train a run before it is asked for, if it is not there yet."""
        run = ahead.run
        if ahead.parent:
            self.discard_guesses(run, ahead.parent)
            if store.exists(run.path) and not run.began_ahead():
                return
            store.write_json(run.ahead_file, {"parent": ahead.parent})
        self._begin(run, ahead.order)
        self._guessed = run

    def end_phase(self) -> None:
        """No more of its runs are wanted: one that was begun is not used."""
        if self._guessed and not self._guessed.began_ahead():
            self.background.cancel(self._guessed.path)
            store.remove(self._guessed.checkpoint)
            self._say_unused(self._guessed, self._guessed.seconds())
            self._guessed = None

    def discard_guesses(self, right: TrainingFolder | None = None, parent: str = "") -> None:
        """Delete the runs begun ahead, now or before a kill, but `right` if it starts from `parent`."""
        for run in self._stage.begun_ahead():
            if run != right or run.began_ahead() != parent:
                self.background.cancel(run.path)
                if run == self._guessed:
                    self._guessed = None  # another one may come to lie in its folder
                self._say_unused(run, self._stage.discard(run))

    def _say_unused(self, run: TrainingFolder, seconds: float) -> None:
        where = f"phase {int(run.path.parent.name)}, {run.path.name}"
        self._dispatcher.watch.say(f"{where}: begun ahead but not used, {seconds:.0f} s of training")

    def _begin(self, run: TrainingFolder, order: TrainingOrder) -> None:
        """Unless it is trained already."""
        if not run.finished or store.exists(run.checkpoint):
            self._dispatcher.say_if_continued(run, order)
            self.background.begin(Job(run.path, worker.train, (replace(order, cells=(), along=()),)))


def _allowed(amount: float, what: str) -> str:
    return f"{counted(amount, what)} {'was' if amount == 1 else 'were'} allowed"


def phase_line(decision: Decision, eps: Sequence[float], seconds: float) -> str:
    """One line for people: what the runs reached, which was kept, what comes next."""
    phase = decision.phase
    if phase.index == 0:
        attacked = [tried for tried in decision.tried if tried.eps > 0]
        robust = [tried.eps for tried in attacked if tried.robust]
        words = ["bootstrap", *(f"nominal {format_return(tried.score)}" for tried in decision.tried if tried.eps == 0)]
        words += [f"attacked {format_return(tried.score)} at {format_eps(tried.eps)}" for tried in attacked[-1:]]
        words += [f"robust at {format_eps(max(robust))}"] if robust else []
    else:
        kept = "the old one" if decision.kept == INCUMBENT else decision.kept
        runs = [one.scores for one in decision.candidates if one.run != INCUMBENT]
        words = [f"phase {phase.index}", format_eps(phase.eps), *_returns(runs, phase.eps), f"kept {kept}"]
    if decision.next is None:
        words.append(f"stop: {decision.stop}")
    else:
        words.append(f"{'skip' if decision.next > phase.index + 1 else 'next'} -> {format_eps(eps[decision.next])}")
    return "  ".join([*words, f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"])


def _returns(runs: Sequence[dict[float, float]], eps: float) -> Iterator[str]:
    """Returns without attack and at the phase's budget, or else the lowest under any attack that was played."""
    yield f"runs nominal {_shown([scores.get(0.0) for scores in runs])}"
    attacked = [{at: score for at, score in scores.items() if at > 0} for scores in runs]
    played = {at for scores in attacked for at in scores}
    if eps in played:
        yield f"attacked {_shown([scores.get(eps) for scores in attacked])}"
    elif played:
        lowest = [min(scores.values(), default=None) for scores in attacked]
        yield f"attacked within {format_eps(max(played))} {_shown(lowest)}"


def _shown(returns: Sequence[float | None]) -> str:
    return " ".join("-" if r is None else "diverged" if r == LOWEST else format_return(r) for r in returns)


def pace_of(config: Config, loss: Loss, start: float) -> Pace:
    """What decides about the budget in this stage from `start` on; refuses settings that contradict each other."""
    c = config.curriculum
    # A start that the stage before reached may lie so near the target that nothing is left to be gentle about.
    gentle = c.gentle_below if start == c.start else min(c.gentle_below, c.target - start)
    learner = config.learner(loss)
    in_play = config.in_play(loss)
    counts = replace(
        c,
        start=start,
        gentle_below=gentle,
        attacked_threshold=c.attacked_threshold if in_play > 0 else None,
        certified_threshold=c.certified_threshold if loss in ("radial", "distill") else 0.0,
    )
    driven = round(in_play * learner.num_envs)
    _refuse_no_copies(counts, config, loss, driven)
    counts = replace(counts, rise_steps=rise_steps(counts, learner.steps))
    return Pace(**vars(counts), first_episodes=learner.num_envs - driven)


def _refuse_no_copies(c: CurriculumConfig, config: Config, loss: Loss, driven: int) -> None:
    """Returns of copies that are not there would be waited for until the training ends."""
    copies = config.learner(loss).num_envs
    section = "distill" if loss == "distill" else "ppo" if config.algo == "ppo" else "attack"
    share = f"{section}.in_play {config.in_play(loss):g} of {counted(copies, 'copy', 'copies')}"
    if c.attacked_threshold is not None and not driven:
        what = f"no copy plays under attack ({share}), so that curriculum.attacked_threshold cannot be checked"
        raise ConfigError(what, "give more of them, or --curriculum.attacked_threshold none")
    if driven == copies and (c.adaptive or c.nominal_threshold is not None):
        what = f"every copy plays under attack ({share}), so that returns without attack cannot be checked"
        raise ConfigError(what, "give less of them")


def train_paced(
    stage: StageFolder, start: float, bootstrap: Agent, teacher: Agent | None, dispatcher: Dispatcher
) -> Outcome:
    """Train, evaluate every agent kept, and leave the best in the stage's folder. `teacher`: of a student that does not
    begin as its copy."""
    config = stage.config
    run = stage.paced_run
    pace = pace_of(config, stage.loss, start)
    seed = derive(config.seed, "stage", stage.number)
    task = Task(stage.loss, start, config.curriculum.target, seed, pace)
    name = f"{stage.loss}, paced"
    began = Agent(bootstrap.file, stage.results, bootstrap.fingerprint)
    look_at_start(pace, config, began, dispatcher)
    order = TrainingOrder(name, config, task, content(bootstrap), dispatcher.device, dispatcher.trackers)
    if teacher:
        order = replace(order, teacher=content(teacher))
    [_] = dispatcher.train([(run, order)])
    candidates = {"the start": (start, began)}
    for increments, file in run.snapshots().items():
        eps = min(risen(start, pace.increment, increments), pace.target)
        agent = Agent(file, run.results, fingerprint(load(file)))
        candidates[f"the agent that held {format_eps(eps)}"] = (eps, agent)
    reached = max(eps for eps, _ in candidates.values())
    ended = f"{config.learner(stage.loss).steps:,} steps were trained"
    if run.diverged:
        ended = str(run.result()["diverged"])
        dispatcher.watch.say(f"{name}: {ended}; the agents that were kept before are judged")
    else:
        candidates["the last agent"] = (reached, run.agent())
    values = {label: _final_score(label, agent, config, dispatcher) for label, (_, agent) in candidates.items()}
    kept = max(candidates, key=lambda label: (values[label], candidates[label][0]))
    eps, agent = candidates[kept]
    store.write_bytes(stage.policy, content(agent))
    done = reached >= config.curriculum.target
    return Outcome(agent.fingerprint, eps, "target reached" if done else ended, kept)


def look_at_start(rules: CurriculumConfig, config: Config, start: Agent, dispatcher: Dispatcher) -> None:
    """Refuse one that plays badly, where that matters. It plays whole episodes from the game's own starts, like those
    behind `expected_return`: random actions can lead a good agent to states that it has never seen, and a short
    episode of a long game has less to win."""
    if rules.adaptive:
        whole = replace(config, curriculum=replace(config.curriculum, judged_steps=0))
        plan = replace(plan_of(whole, SELECTION), starts="game")
        [nominal] = dispatcher.scores("the start", start, plan, [Cell(None, 0.0)])
        refuse_weak_start(rules, nominal.mean)


def _final_score(name: str, agent: Agent, config: Config, dispatcher: Dispatcher) -> float:
    """Of one agent, on episodes that decide and are not reported."""
    wanted = cells(choosing_attacks(config), config.evaluation.scored)
    scores = dispatcher.scores(f"choosing, {name}", agent, plan_of(config, SELECTION), wanted)
    returns = {0.0: scores[0].mean} | {eps: lowest.mean for eps, lowest in worst(scores).items()}
    words = ", ".join(f"{format_return(score)} at {format_eps(eps)}" for eps, score in returns.items())
    dispatcher.watch.say(f"{name}: {words}")
    return final_score([scores], config)
