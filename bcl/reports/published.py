"""The paper's numbers (published.toml), to stand beside measured ones."""

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

from bcl.config import Config
from bcl.evaluation.evaluation import Levels
from bcl.games import ProcgenGame


@dataclass(frozen=True)
class Result:
    """A row of a main table."""

    game: str
    method: str
    """As the paper calls it."""
    recipe: str
    """As we call it."""
    bootstrap: str
    """`vanilla` or `radial` where the paper has the method with both; else empty."""
    levels: Levels
    eps: tuple[float, ...]
    mean: tuple[float, ...]
    """Mean return per budget, under the worst attack of the table."""
    sem: tuple[float, ...]
    source: str

    @property
    def score(self) -> float:
        """The paper's score of a row: nominal return + mean over the other budgets."""
        return self.mean[0] + sum(self.mean[1:]) / len(self.mean[1:])


@dataclass(frozen=True)
class RunCount:
    """Training runs that a method took, per independent repetition."""

    recipe: str
    bootstrap: str
    runs: tuple[int, ...]
    source: str


@dataclass(frozen=True)
class WallTime:
    """Hours that one training run took."""

    hours: float
    source: str


Row = TypeVar("Row", Result, RunCount)


def results(game: str) -> tuple[Result, ...]:
    """The main table's rows of a preset's game; none for games that the paper does not have."""
    table = _file()["results"].get(game, {"rows": (), "eps": ()})
    eps = tuple(level / 255 for level in table["eps"])
    found = []
    for row in table["rows"]:
        names = (game, row["method"], row["recipe"], row.get("bootstrap", ""), row.get("levels", ""))
        found.append(Result(*names, eps, tuple(row["mean"]), tuple(row["sem"]), table["source"]))
    return tuple(found)


def run_counts(game: str) -> tuple[RunCount, ...]:
    """The table of runs conducted."""
    table = _file()["runs"].get(game, {"rows": ()})
    return tuple(
        RunCount(row["recipe"], row.get("bootstrap", ""), tuple(row["runs"]), table["source"]) for row in table["rows"]
    )


def wall_time(game: str) -> WallTime | None:
    """How long one training run took."""
    table = _file()["hours"]
    return next((WallTime(row["hours"], table["source"]) for row in table["rows"] if game in row["games"]), None)


def row_for(rows: Sequence[Row], config: Config | None) -> Row | None:
    """The row of a run's recipe, with the learner and the bootstrap that the paper has for it; none: it has none."""
    if config is None:
        return None
    procgen = isinstance(config.game, ProcgenGame)
    if config.algo != ("ppo" if procgen else "dqn"):
        return None
    usual = "vanilla" if procgen else "radial"
    bootstrap = usual if config.bootstrap == "auto" else config.bootstrap
    return next((r for r in rows if r.recipe == config.recipe and bootstrap == (r.bootstrap or usual)), None)


@functools.cache
def _file() -> dict[str, Any]:
    return tomllib.loads((resources.files("bcl.reports") / "published.toml").read_text())
