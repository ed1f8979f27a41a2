"""Published agents: `zoo:NAME` stands for a policy file wherever one is asked for.

Each lies in a folder of its name beside this file: its weights, `agent.toml` about them, `config.toml` with every
setting of its training, and the results it was published with. Only publish.py and add_results.py of
benchmarks/ write here.
"""

import hashlib
import tomllib
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from bcl.errors import WeightsError, did_you_mean
from bcl.runs.directory import POLICY
from bcl.runs.results import Results

PREFIX = "zoo:"
FOLDER = Path(__file__).parent
ABOUT = "agent.toml"
RESTORE = "install bcl again, or restore it with 'git checkout' in a clone"


class PlayedOn(NamedTuple):
    """What the episodes of scores are."""

    starts: str
    """`game`, or `varied`: they begin with random actions."""
    levels: str
    """Of Procgen's games: `train`, or `eval` for unlimited ones."""


class PublishedPlay(NamedTuple):
    """One way in which an agent was played."""

    on: PlayedOn
    attacks: str
    """The suite, or the attacks."""
    within: dict[str, float]
    """The lowest return up to each budget."""
    breaks: dict[str, Any]
    """As in `ZooAgent.breaks`; empty: it was not looked for."""


@dataclass(frozen=True)
class ZooAgent:
    """What `agent.toml` says."""

    folder: Path
    game: str
    recipe: str
    command: str
    """Commands that make an agent like it from scratch; the settings of the last in full are in config.toml."""
    seed: int
    commit: str
    """Of the code that trained it."""
    machine: str
    """That it was trained on: its GPU, or its cores."""
    minutes: float
    """Of training there, all stages, as far as the notes do not say otherwise."""
    notes: str
    weights: str
    """How they are stored: int8, float16, int16 or float32."""
    sha256: str
    """Of the file of weights."""
    policy: str
    """Fingerprint of the agent, as it is loaded."""
    judged: str
    """Fingerprint of the agent that played the results: `policy`, or its weights before they were rounded."""
    episodes: int
    """Of each score."""
    suite: str
    """The attacks behind `returns`, a suite or a single one."""
    returns: dict[str, float]
    """Mean return by budget under the suite's worst attack, where all of it was played; at 0 without attack, first. Of
    Procgen's games on the training levels."""
    unlimited: dict[str, float] = field(default_factory=dict)
    """The same on Procgen's unlimited levels; empty: not played, or another game."""
    varied: dict[str, float] = field(default_factory=dict)
    """The same on episodes that begin with random actions; empty: not played."""
    attacks: dict[str, str] = field(default_factory=dict)
    """By the table above, where its returns are not under the suite: the attacks whose worst they are."""
    breaks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The smallest budget that halves the return, by the table above whose episodes were played, where it was looked
    for: its `eps` (none: not even a budget of 1), `below` which return and under which `attack`."""

    @property
    def plays(self) -> list[PublishedPlay]:
        """Every way in which it was played."""
        columns = (
            ("returns", PlayedOn("game", "train" if self.unlimited else ""), self.returns),
            ("unlimited", PlayedOn("game", "eval"), self.unlimited),
            ("varied", PlayedOn("varied", ""), self.varied),
        )
        return [
            PublishedPlay(on, self.attacks.get(table, self.suite), _least_up_to(means), self.breaks.get(table, {}))
            for table, on, means in columns
            if means
        ]

    @property
    def file(self) -> Path:
        """Its weights; refused where they are missing or not those that were published."""
        path = self.folder / POLICY
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise WeightsError(f"cannot read '{path}': {error.strerror}", RESTORE) from None
        if found != self.sha256:
            raise WeightsError(f"'{path}' is damaged: its checksum is not the published one", RESTORE)
        return path

    @property
    def results(self) -> Results:
        """Those it was published with, of the agent `judged`."""
        return Results(self.folder)

    @property
    def new_results(self) -> Results:
        """Where results made here go: the package may be read-only."""
        return Results.beside(Path("runs") / f"zoo-{self.folder.name}")


def _least_up_to(means: dict[str, float]) -> dict[str, float]:
    """By budget, which ascend."""
    return dict(zip(means, accumulate(means.values(), min), strict=True))


def names() -> list[str]:
    """Of all agents."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{ABOUT}"))


def find(path: Path) -> ZooAgent | None:
    """The agent that `zoo:NAME` names; none for any other path."""
    return named(str(path).removeprefix(PREFIX)) if str(path).startswith(PREFIX) else None


def named(name: str) -> ZooAgent:
    """The agent of this name."""
    if name not in names():
        raise WeightsError(f"the zoo has no agent '{name}'", did_you_mean(name, names(), "'bcl zoo' lists them"))
    about = FOLDER / name / ABOUT
    try:
        return ZooAgent(FOLDER / name, **tomllib.loads(about.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise WeightsError(f"'{about}' is damaged ({error})", RESTORE) from None
