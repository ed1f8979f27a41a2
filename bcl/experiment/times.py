"""Where the time of a curriculum went: training, judging while nothing trained, and training that was not used."""

from dataclasses import dataclass

from bcl.errors import counted
from bcl.runs import store
from bcl.runs.directory import StageFolder


@dataclass(frozen=True)
class Times:
    """Seconds of wall time of one curriculum."""

    wall: float
    training: float
    """In which a run trained that a decision names."""
    unused_runs: int
    unused: float
    """Of training that no decision names."""

    @property
    def judging(self) -> float:
        """In which no run trained that counts: judging, and what starting processes and games takes."""
        return max(0.0, self.wall - self.training)

    @property
    def judging_share(self) -> float:
        return self.judging / self.wall if self.wall else 0.0

    def __str__(self) -> str:
        words = [f"{self.wall:.0f} s", f"{self.judging_share:.0%} of them judging while nothing trained"]
        if self.unused_runs:
            words.append(f"{counted(self.unused_runs, 'run')} trained but not used ({self.unused:.0f} s)")
        return ", ".join(words)


def times_of(stage: StageFolder) -> Times | None:
    """Of a curriculum, by what is stored; none: there is no clock, or one of version 0.1."""
    wall = store.read_if_there(stage.clock).get("seconds")
    results = [run.result() for run in stage.training_runs()]
    spans = [(stage.on_clock(found.get("began")), stage.on_clock(found.get("ended"))) for found in results]
    known = [(began, ended) for began, ended in spans if began is not None and ended is not None]
    if wall is None or len(known) < len(spans):
        return None
    unused = [seconds for found in stage.in_vain().values() for seconds in found]
    return Times(float(wall), _covered(known), len(unused), sum(unused))


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds that lie in at least one span."""
    covered = 0.0
    until = 0.0
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return covered
