"""Judging that does not stop training: one run trains in a process of its own while another process plays the scores of the
run before it.

Which run that is has to be guessed (`curriculum.likely_next`), since the scores decide it. Decisions are made as without a
guess, by the same scores in the same order; the training of a wrong guess is not used, which is told and counted.
"""

from dataclasses import dataclass, replace

from bcl.experiment import worker
from bcl.experiment.worker import Dispatcher, TrainingOrder
from bcl.runs.directory import StageFolder, TrainingFolder
from bcl.runs.executors import BackgroundJobs, Job


@dataclass(frozen=True)
class Guess:
    """A run that is trained before it is asked for."""

    run: TrainingFolder
    order: TrainingOrder
    parent: str
    """The fingerprint of the agent that it starts from; empty: as all runs of the phase at work."""


class OverlappedRuns:
    """The runs of a curriculum, one of them trained and one judged at a time."""

    def __init__(self, stage: StageFolder, dispatcher: Dispatcher, background: BackgroundJobs) -> None:
        self._stage = stage
        self._dispatcher = dispatcher
        self._background = background
        self._guessed: TrainingFolder | None = None

    def train(self, run: TrainingFolder, order: TrainingOrder) -> None:
        """Until it is trained, whether it was begun ahead or not."""
        if run != self._guessed:
            self._discard_all_but(None, "")
            self._begin(run, order)
        self._guessed = None
        self._background.wait(run.path)

    def begin_to_judge(self, run: TrainingFolder, order: TrainingOrder) -> bool:
        """Have the scores played that will be asked for; whether any is missing."""
        agent = run.agent()
        assert order.plan
        if not agent.fingerprint or not self._dispatcher.missing(agent, order.plan, order.cells):
            return False
        for job in self._dispatcher.evaluation_jobs(order.name, agent, order.plan, (*order.cells, *order.along)):
            self._background.begin(job)
        return True

    def wait_until_judged(self, run: TrainingFolder) -> None:
        self._background.wait(run.results.scores.path)
        run.results.scores.gather()

    def begin_ahead(self, guess: Guess | None) -> None:
        """Train it, if there is one and it is not there yet."""
        if not guess:
            return
        if guess.parent:
            self._discard_all_but(guess.run, guess.parent)
            if guess.run.path.exists() and not guess.run.began_ahead():
                return
            guess.run.begin_ahead(guess.parent)
        self._begin(guess.run, guess.order)
        self._guessed = guess.run

    def end_phase(self) -> None:
        """No more of its runs are wanted: one that was begun is not used."""
        if self._guessed and not self._guessed.began_ahead():
            self._background.cancel(self._guessed.path)
            self._say_unused(self._guessed, self._guessed.seconds())
            self._guessed = None

    def settle(self, asked: TrainingFolder | None, parent: str) -> None:
        """Of the runs that were begun ahead, now or before a kill, the one that is asked for, from this parent, is a run like any
        other from here on; the others are deleted."""
        self._discard_all_but(asked, parent)
        if asked:
            asked.asked_for()

    def _discard_all_but(self, wanted: TrainingFolder | None, parent: str) -> None:
        for run in self._stage.begun_ahead():
            if run == wanted and run.began_ahead() == parent:
                continue
            self._background.cancel(run.path)
            self._say_unused(run, self._stage.discard(run))

    def _say_unused(self, run: TrainingFolder, seconds: float) -> None:
        where = f"phase {int(run.path.parent.name)}, {run.path.name}"
        self._dispatcher.say(f"{where}: begun ahead but not used, {seconds:.0f} s of training")

    def _begin(self, run: TrainingFolder, order: TrainingOrder) -> None:
        """Unless it is trained already."""
        if not run.finished or run.checkpoint.exists():
            self._dispatcher.say_if_continued(run, order)
            self._background.begin(Job(run.path, worker.train, (replace(order, cells=(), along=()),)))
