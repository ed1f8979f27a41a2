"""Getting work done: orders go to an executor, agents and scores are read from the run directory."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bcl.attacks import recorded
from bcl.errors import StoreError
from bcl.evaluation import Cell, Plan, Score, gather, missing_cells, read_scores
from bcl.experiment import work
from bcl.experiment.mirrors import NO_MIRRORS, Mirrors
from bcl.experiment.work import CHECKPOINT, EVALS, POLICY, RESULT, Judging, Training
from bcl.policies.files import fingerprint, load
from bcl.runs import store
from bcl.runs.executors import Executor, Here, Job, no_tick

REFILL = ", which was kept without its replay memory: that is collected anew first"


@dataclass(frozen=True)
class Agent:
    """A trained policy, by where it lies."""

    file: Path
    folder: Path
    """Its scores are kept here."""
    fingerprint: str
    """Empty: its training diverged, and there is no file."""

    def content(self) -> bytes:
        """The policy file; refused where it is not the one that was trained."""
        if fingerprint(load(self.file)) != self.fingerprint:
            what = f"'{self.file}' is not the agent whose results lie beside it"
            raise StoreError(what, "restore it, or delete the result.json beside it to have it trained again")
        return self.file.read_bytes()


def agent_in(folder: Path) -> Agent:
    """What a finished run left in its folder."""
    return Agent(folder / POLICY, folder, str(store.read_json(folder / RESULT).get("policy")))


def agent_of(file: Path, folder: Path) -> Agent:
    """A policy file of any origin, whose scores are to lie in `folder`."""
    return Agent(file, folder, fingerprint(load(file)))


@dataclass(frozen=True)
class Crew:
    """Who works, and whom to tell."""

    executor: Executor = Here()  # frozen
    device: str = "cpu"
    """Of the workers."""
    interrupted: Callable[[], bool] = lambda: False
    tick: Callable[[], None] = no_tick
    """Called several times a second while work is under way."""
    say: Callable[[str], None] = lambda line: None
    mirrors: Mirrors = NO_MIRRORS

    def train(self, orders: Sequence[tuple[Path, Training]]) -> Generator[Agent, None, None]:
        """Agents in the order of `orders`, each when it is done; closing cancels the others."""
        jobs = {folder: Job(folder, work.train, (order,)) for folder, order in orders if not self._done(folder, order)}
        for folder, order in orders:
            if (folder / CHECKPOINT).exists():
                refill = order.config.algo == "dqn" and not order.config.dqn.checkpoint_replay
                self.say(f"{order.name}: continues from its checkpoint{REFILL if refill else ''}")
        working = self.executor.run([*jobs.values()], self.interrupted, self.tick)
        try:
            for folder, _ in orders:
                if folder in jobs:
                    next(working)
                yield agent_in(folder)
        finally:
            working.close()

    def scores(
        self, name: str, agent: Agent, plan: Plan, cells: Sequence[Cell], ahead: Sequence[Cell] = ()
    ) -> list[Score]:
        """Scores of the cells, those that are missing played; `ahead`: worth playing along with them."""
        if self._missing(agent, plan, cells):
            self.play([(name, agent, plan, (*cells, *ahead))])
        found = read_scores(agent.folder / EVALS, plan.conditions(agent.fingerprint, self.device))
        return [found[recorded(cell.attack), cell.eps] for cell in cells]

    def play(self, wanted: Sequence[tuple[str, Agent, Plan, Sequence[Cell]]]) -> None:
        """Have the scores made that are missing; those of several agents beside each other, where there are workers."""
        jobs, width = list[Job](), self.executor.width
        for name, agent, plan, cells in wanted:
            missing = self._missing(agent, plan, cells)
            policy = agent.content() if missing else b""
            for share in (missing[i::width] for i in range(min(width, len(missing)))):
                order = Judging(name, policy, plan, tuple(share), self.device)
                # In the folder of scores alone: on a cluster all of a job's folder travels.
                jobs.append(Job(agent.folder / EVALS, work.judge, (order, len(jobs))))
        for _ in self.executor.run(jobs, self.interrupted, self.tick):
            pass
        for folder in dict.fromkeys(job.folder for job in jobs):
            gather(folder)

    def _done(self, folder: Path, order: Training) -> bool:
        if not (folder / RESULT).exists() or (folder / CHECKPOINT).exists():
            return False
        agent, plan = agent_in(folder), order.plan
        return plan is None or not agent.fingerprint or not self._missing(agent, plan, order.cells)

    def _missing(self, agent: Agent, plan: Plan, cells: Sequence[Cell]) -> list[Cell]:
        return missing_cells(agent.folder / EVALS, plan.conditions(agent.fingerprint, self.device), cells)
