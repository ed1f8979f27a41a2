"""Getting work done: orders go to an executor, agents and scores are read from the run directory."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from bcl.config import PpoConfig
from bcl.errors import StoreError
from bcl.evaluation import Cell, Plan, Score, missing_cells, read_scores
from bcl.experiment import worker
from bcl.experiment.trackers import NO_TRACKERS, Trackers
from bcl.experiment.worker import TrainingOrder
from bcl.games import Game, GymnasiumGame
from bcl.policies.files import fingerprint, load
from bcl.runs.directory import Agent, TrainingFolder
from bcl.runs.executors import Executor, InThisProcess, Job, JudgeBeside, no_tick
from bcl.runs.results import ScoresFolder

REFILL = ", which was kept without its replay memory: that is collected anew first"


def content(agent: Agent) -> bytes:
    """The policy file of an agent; refused where it is not the one that was trained."""
    if fingerprint(load(agent.file)) != agent.fingerprint:
        what = f"'{agent.file}' is not the agent whose results lie beside it"
        raise StoreError(what, "restore it, or delete the result.json beside it to have it trained again")
    return agent.file.read_bytes()


@dataclass(frozen=True)
class Dispatcher:
    """Gives work to an executor; knows whether to stop, and who is told."""

    executor: Executor = InThisProcess()  # frozen
    device: str = "cpu"
    """Of the workers."""
    interrupted: Callable[[], bool] = lambda: False
    tick: Callable[[], None] = no_tick
    """Called several times a second while work is under way."""
    say: Callable[[str], None] = lambda line: None
    trackers: Trackers = NO_TRACKERS
    judge_beside: JudgeBeside = "auto"
    """Whether one process judges a run while another trains the next; `auto`: on a GPU that trains one run at a time."""

    def train(self, orders: Sequence[tuple[TrainingFolder, TrainingOrder]]) -> Generator[TrainingFolder, None, None]:
        """The folders in the order of `orders`, each when it is done; closing cancels the others."""
        jobs = {run.path: Job(run.path, worker.train, (order,)) for run, order in orders if not self._done(run, order)}
        for run, order in orders:
            self.say_if_continued(run, order)
        working = self.executor.run([*jobs.values()], self.interrupted, self.tick)
        try:
            for run, _ in orders:
                if run.path in jobs:
                    next(working)
                yield run
        finally:
            working.close()

    def say_if_continued(self, run: TrainingFolder, order: TrainingOrder) -> None:
        """That a run is not begun anew."""
        if run.checkpoint.exists():
            learner = order.config.learner(order.task.loss)
            refill = not isinstance(learner, PpoConfig) and not learner.checkpoint_replay
            self.say(f"{order.name}: continues from its checkpoint{REFILL if refill else ''}")

    def scores(
        self, name: str, agent: Agent, plan: Plan, cells: Sequence[Cell], ahead: Sequence[Cell] = ()
    ) -> list[Score]:
        """Scores of the cells, those that are missing played; `ahead`: worth playing along with them."""
        if self.missing(agent, plan, cells):
            self.play([(name, agent, plan, (*cells, *ahead))])
        found = read_scores(agent.results.scores, plan.conditions(agent.fingerprint, self.device))
        return [found[cell.key] for cell in cells]

    def play(self, wanted: Sequence[tuple[str, Agent, Plan, Sequence[Cell]]]) -> None:
        """Have the scores made that are missing; those of several agents beside each other, where there are workers."""
        jobs = list[Job]()
        for one in wanted:
            jobs += self.evaluation_jobs(*one, part=len(jobs))
        for _ in self.executor.run(jobs, self.interrupted, self.tick):
            pass
        for folder in dict.fromkeys(job.folder for job in jobs):
            ScoresFolder(folder).gather()

    def evaluation_jobs(self, name: str, agent: Agent, plan: Plan, cells: Sequence[Cell], part: int = 0) -> list[Job]:
        """Jobs for the scores that are missing, one to a worker and numbered from `part`; `ScoresFolder.gather` joins what they leave."""
        missing = self.missing(agent, plan, cells)
        policy = content(agent) if missing else b""
        shares = min(self.executor.width, len(missing))
        orders = [(name, policy, plan, tuple(missing[n::shares]), self.device) for n in range(shares)]
        # In the folder of scores alone: on a cluster all of a job's folder travels.
        folder = agent.results.scores.path
        return [Job(folder, worker.evaluate, (part + n, *order)) for n, order in enumerate(orders)]

    def judges_beside(self, game: Game) -> bool:
        """Whether a run is judged while the next one trains. Games of Gymnasium may be known to this process alone."""
        wanted = self.judge_beside == "on"
        if self.judge_beside == "auto":
            wanted = self.device == "cuda" and not isinstance(game, GymnasiumGame)
        return wanted and isinstance(self.executor, InThisProcess)

    def _done(self, run: TrainingFolder, order: TrainingOrder) -> bool:
        if not run.finished or run.checkpoint.exists():
            return False
        agent = run.agent()
        if order.plan is None or not agent.fingerprint:
            return True
        return not self.missing(agent, order.plan, order.cells)

    def missing(self, agent: Agent, plan: Plan, cells: Sequence[Cell]) -> list[Cell]:
        """Those whose scores are not stored."""
        return missing_cells(agent.results.scores, plan.conditions(agent.fingerprint, self.device), cells)
