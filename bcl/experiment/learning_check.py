"""Whether a stage that began with fresh weights learned to play, from its own files."""

from collections.abc import Sequence
from typing import Any

from bcl.errors import counted
from bcl.runs.directory import TrainingFolder

ENOUGH = 100  # episodes: the first of many copies to end are its shortest, and say little about the others
SIGMAS = 3.0  # a rise counts above this many standard errors
# flags
NO_LEARNING = "no-learning"
UNKNOWN_LEARNING = "unknown-learning"
COLUMNS = ("return", "return_sd", "episodes")
Part = tuple[float, float, float]  # mean return, population deviation, episodes


def learning_flag(run: TrainingFolder) -> tuple[str, str] | None:
    """A flag and a sentence about a finished stage from fresh weights whose last episodes were no better than its first, or
    of which that cannot be told; else none.

    A stage that trains on from an agent begins with good returns, and is not expected to raise them.
    """
    if not run.finished or run.result().get("parent"):
        return None
    if not run.metrics_file.exists():
        return UNKNOWN_LEARNING, f"its {run.metrics_file.name} is missing, so whether it learned cannot be told"
    rows = run.metrics()
    found = first_and_last(rows)
    if found is None:
        known = _known(rows)  # good episodes are long, and few
        if len(known) > 1 and rose(known[0], _pooled(known[1:])):
            return None
        return UNKNOWN_LEARNING, "it has too few episodes to tell whether it learned"
    if rose(*found):
        return None
    (first, _, before), (last, _, after) = found
    start, end = (counted(int(number), "episode") for number in (before, after))
    return NO_LEARNING, (f"returns did not rise ({first:.4g} in its first {start}, {last:.4g} in its last {end})")


def rose(first: Part, last: Part) -> bool:
    """Whether the mean return grew by more than chance."""
    before, before_sd, before_episodes = first
    after, after_sd, after_episodes = last
    return after - before > SIGMAS * (before_sd**2 / before_episodes + after_sd**2 / after_episodes) ** 0.5


def first_and_last(rows: Sequence[dict[str, Any]]) -> tuple[Part, Part] | None:
    """`ENOUGH` episodes from each end of a run, a quarter of all where these are few; none: they cannot be told apart."""
    known = _known(rows)
    wanted = min(ENOUGH, sum(part[2] for part in known) / 4)
    head = _until(wanted, known)
    tail = _until(wanted, known[::-1])
    if not head or len(head) + len(tail) > len(known):
        return None
    return _pooled(head), _pooled(tail)


def _known(rows: Sequence[dict[str, Any]]) -> list[Part]:
    parts: list[Any] = [tuple(row.get(name) for name in COLUMNS) for row in rows]
    return [part for part in parts if all(isinstance(number, int | float) for number in part)]


def _until(episodes: float, parts: Sequence[Part]) -> Sequence[Part]:
    """The first parts that have so many episodes together."""
    count = 0.0
    for number, part in enumerate(parts, 1):
        count += part[2]
        if count >= episodes:
            return parts[:number]
    return parts


def _pooled(parts: Sequence[Part]) -> Part:
    episodes = sum(count for *_, count in parts)
    mean = sum(part_mean * count for part_mean, _, count in parts) / episodes
    squares = sum((sd**2 + part_mean**2) * count for part_mean, sd, count in parts) / episodes
    return mean, max(squares - mean**2, 0.0) ** 0.5, episodes
