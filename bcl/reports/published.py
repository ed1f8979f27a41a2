"""The paper's numbers (published.toml), to stand beside measured ones."""

import functools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

from bcl.config import Config
from bcl.evaluation.plan import Levels
from bcl.games import ProcgenGame


@dataclass(frozen=True)
class PublishedRow:
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

    method: str
    recipe: str
    bootstrap: str
    runs: tuple[int, ...]
    source: str
    hours: float
    """That one of them took."""
    hours_source: str


PublishedOrCount = TypeVar("PublishedOrCount", PublishedRow, RunCount)


def results(game: str) -> tuple[PublishedRow, ...]:
    """The main table's rows of a preset's game; none for games that the paper does not have."""
    table = _file()["results"].get(game, {})
    eps = tuple(level / 255 for level in table.get("eps", ()))
    return tuple(PublishedRow(**{"levels": "", **row}, game=game, eps=eps) for row in _rows(table))


def run_counts(game: str) -> tuple[RunCount, ...]:
    """The table of runs conducted, with the time that one took."""
    table = _file()["hours"]
    hours = {name: row["hours"] for row in table["rows"] for name in row["games"]}
    rows = _rows(_file()["runs"].get(game, {}))
    return tuple(RunCount(**row, hours=hours[game], hours_source=table["source"]) for row in rows)


def result_for(config: Config | None, levels: str) -> PublishedRow | None:
    """The main table's row of a run on these levels."""
    if config is None:
        return None
    return row_for([row for row in results(config.game.id) if row.levels == levels], config)


def row_for(rows: Sequence[PublishedOrCount], config: Config) -> PublishedOrCount | None:
    """The row with a run's recipe, learner and bootstrap; none: the paper has none."""
    procgen = isinstance(config.game, ProcgenGame)
    if config.algo != ("ppo" if procgen else "dqn"):
        return None
    usual = "vanilla" if procgen else "radial"
    bootstrap = usual if config.bootstrap == "auto" else config.bootstrap
    return next((r for r in rows if r.recipe == config.recipe and bootstrap == (r.bootstrap or usual)), None)


def _rows(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in table.get("rows", ()):
        whole = {"bootstrap": "", "source": table["source"], **row}
        yield {name: tuple(value) if isinstance(value, list) else value for name, value in whole.items()}


@functools.cache
def _file() -> dict[str, Any]:
    return tomllib.loads((resources.files("bcl.reports") / "published.toml").read_text())
