"""The result of one evaluation cell: one policy, one game, one attack, one budget."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bcl import stats
from bcl.attacks import Attack, attack_from_dict, attack_from_repr, attack_label, attack_to_dict
from bcl.attacks.records import NONE
from bcl.runs.store import fitting
from bcl.settings import format_eps, typed_values


@dataclass(frozen=True)
class Score:
    """Returns per episode and what is needed to trust, repeat or doubt them."""

    attack: Attack | None
    """None: nominal play."""
    eps: float
    returns: tuple[float, ...]
    """Undiscounted raw returns; in the order of `protocol`."""
    lengths: tuple[int, ...]
    """Agent steps per episode."""
    changed: float
    """Share of steps in which the attack changed the action."""
    max_perturbation: float
    """Largest change of any element."""
    zero_gradient: float
    """Share of sampled states whose gradient of the cross-entropy is exactly zero in every element."""
    seed: int
    protocol: str
    """`fixed`: episodes per copy fixed beforehand; `first`: the first finished, as the reference does on Procgen."""
    precision: str = "full"
    """In which the attack searched: `half` or `full`; actions are always decided in full precision."""
    stochastic: bool = False
    """The policy gave two different answers to one observation."""
    courses: int | None = None
    """How many different ones the episodes are, by when rewards came and what was seen then; none: not counted."""
    prefixes: tuple[int, ...] = ()
    """Random actions before each episode, drawn from `seed`; empty: they begin as the game has them begin."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return stats.mean(self.returns)

    @property
    def sem(self) -> float:
        """Standard error of the mean, as the paper reports it."""
        return stats.sem(self.returns)

    @property
    def has_error(self) -> bool:
        """Whether there are enough episodes for a standard error to be shown."""
        return len(self.returns) >= stats.MIN_FOR_INTERVAL

    @property
    def interval(self) -> stats.Interval | None:
        """95 % interval of the mean over its episodes."""
        return stats.mean_interval([self.returns])

    @property
    def label(self) -> str:
        """Its attack and budget, for people."""
        return attack_label(self.attack) + (f" at {format_eps(self.eps)}" if self.eps else "")

    def __str__(self) -> str:
        """The mean, with its standard error where there are enough episodes for one."""
        error = f" ± {self.sem:.{2 if self.sem < 100 else 3}g}" if self.has_error else ""
        return f"{self.mean:.4g}{error}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the summary people look for. `attack` is for people; `adversary` is what it is rebuilt from."""
        interval = stats.iqm_interval(self.returns)
        return {
            **vars(self),
            "attack": shown(self.attack),
            "adversary": self.attack and attack_to_dict(self.attack),
            "mean": self.mean,
            "sem": self.sem,
            "episodes": len(self.returns),
            "iqm": stats.iqm(self.returns),
            "iqm_interval": interval and dataclasses.astuple(interval),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "a stored score") -> "Score":
        """The inverse of `to_dict`; `source` names the data in an error."""
        with fitting(source, "delete it to have it played again"):
            data = {"courses": None, "prefixes": ()} | data  # scores from before there were any
            names = {field.name for field in dataclasses.fields(cls)} - {"attack"}
            values = typed_values(cls, {name: data[name] for name in names})
            if not values["returns"]:
                raise ValueError("it has no returns")
            if "adversary" not in data:  # version 0.1
                attack = attack_from_repr(data["attack"])
            else:
                attack = None if data["adversary"] is None else attack_from_dict(data["adversary"])
            return cls(attack=attack, **values)


def shown(attack: Attack | None) -> str:
    """All of an attack, in words."""
    return NONE if attack is None else repr(attack)


@dataclass(frozen=True)
class Worst:
    """The worst of several scores."""

    eps: float
    """The budget of the score with the lowest mean."""
    attack: Attack | None
    """Its attack; none where no attack left less."""
    mean: float
    sem: float
    episode_minimum: float | None
    """Mean over episodes of the lowest return in any of the scores; none where their episodes cannot be paired."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"attack": shown(self.attack)}


def lowest(scores: Iterable[Score]) -> Score:
    """That with the lowest mean; of equals the one at the largest budget."""
    return min(scores, key=lambda s: (s.mean, -s.eps))


def worst(scores: Sequence[Score]) -> dict[float, Worst]:
    """Per budget above 0, the worst attack at exactly this budget: the paper's number."""
    return {eps: _worst_of([s for s in scores if s.eps == eps]) for eps in _budgets(scores)}


def worst_within(scores: Sequence[Score]) -> dict[float, Worst]:
    """Per budget above 0, the worst of all that was played up to it, without attack too: it never rises with the budget."""
    return {eps: _worst_of([s for s in scores if s.eps <= eps]) for eps in _budgets(scores)}


def _budgets(scores: Sequence[Score]) -> list[float]:
    return sorted({s.eps for s in scores if s.eps > 0})


def _worst_of(scores: Sequence[Score]) -> Worst:
    found = lowest(scores)
    paired = all(s.protocol == "fixed" and s.seed == found.seed for s in scores)
    paired = paired and len({(len(s.returns), s.prefixes) for s in scores}) == 1
    minimum = stats.mean([min(r) for r in zip(*(s.returns for s in scores), strict=True)]) if paired else None
    return Worst(found.eps, found.attack, found.mean, found.sem, minimum)
