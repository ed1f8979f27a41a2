"""What a score that is still being played may come to: a guess long before its last episode ends."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from bcl import stats
from bcl.evaluation.evaluation import Score
from bcl.runs.store import fitting
from bcl.settings import typed_values

LAG = 0.05  # share of the start's return by which a score has to be behind: rewards do not come evenly


class Running(NamedTuple):
    """An episode under way."""

    value: float
    """Its return so far."""
    lost: float
    """Of that, the rewards below 0."""
    length: int
    """Its agent steps so far."""


@dataclass(frozen=True)
class UnderWay:
    """A score that is being played."""

    identity: str
    """`Cell.identity`."""
    returns: tuple[float, ...]
    """Of the episodes that are done."""
    running: tuple[Running, ...]
    waiting: int
    """Episodes that were not begun yet."""

    @classmethod
    def from_dict(cls, data: Any, source: str) -> "UnderWay":
        """Of the plain data that JSON makes of its fields."""
        with fitting(source):
            running = [Running(float(value), float(lost), int(length)) for value, lost, length in data["running"]]
            return cls(**typed_values(cls, data | {"running": []}) | {"running": tuple(running)})

    def falls_short(self, least: float, highest: float | None, start: Score | None) -> bool:
        """Whether it will probably be below `least`, since too much was lost, or too little gained, so far. `highest`:
        what rewards above 0 add up to at most in an episode; where that is not known, episodes go on as those of
        `start` were, another agent's score without attack."""
        if highest is not None:
            return self.at_most(highest) < least
        if start is None or start.mean <= least:
            return False  # there is no pace that leads above it
        return self.at_pace(start.mean, stats.mean(start.lengths)) < least - LAG * start.mean

    def at_most(self, highest: float) -> float:
        """The mean return if nothing more is lost, where rewards above 0 add up to at most `highest` in an episode."""
        return stats.mean([*self.returns, *(highest + one.lost for one in self.running), *[highest] * self.waiting])

    def at_pace(self, value: float, length: float) -> float:
        """The mean return if from here on every episode earns as one of this return and length does on average, and
        ends when that ends."""
        left = (max(length - one.length, 0.0) / length for one in self.running)
        expected = [one.value + max(value, 0.0) * share for one, share in zip(self.running, left, strict=True)]
        return stats.mean([*self.returns, *expected, *[value] * self.waiting])
