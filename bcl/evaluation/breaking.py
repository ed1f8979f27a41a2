"""The smallest budget that breaks an agent, attack by attack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bcl.attacks import Attack, Learned, attack_from_dict, attack_label, attack_to_dict, recorded
from bcl.errors import ConfigError, counted
from bcl.evaluation.certify import Certificate
from bcl.evaluation.plan import LEVELS, Cell, Conditions, Plan, levels_of
from bcl.evaluation.suite import Begin, no_progress, run_suite
from bcl.games import LOWEST_RETURNS
from bcl.policies import Policy
from bcl.policies.files import fingerprint
from bcl.runs import store
from bcl.runs.results import Results
from bcl.runs.version_0_1 import attack_of
from bcl.settings import format_return, typed_values

FIRST_ROUND = tuple(2.0**-k for k in range(10, -1, -1))  # each twice the one before, up to a budget of 1
ROUNDS = 2  # after the first
INSIDE = 7  # budgets that a round plays inside what the one before left: an eighth of it is left
SHARE = 0.5  # of the nominal return, counted from the lowest one


@dataclass(frozen=True)
class Breaking:
    """At which budgets the return falls below a threshold, of all attacks searched with under equal conditions."""

    threshold: float
    nominal: float
    episodes: int
    seed: int
    attacks: tuple[Attack, ...]
    image: bool
    """Observations are images, whose budgets people count in 1/255."""
    budgets: tuple[float | None, ...]
    """For each attack the smallest budget found, at most a 64th too large, or 2^-16 below 2^-10; none: not even a
    budget of 1 is enough."""
    conditions: Conditions | None = None
    """None: of an earlier version, which stored episodes and seed alone."""

    @property
    def smallest(self) -> tuple[float, Attack] | None:
        """Over all attacks, and which it was."""
        found = [(eps, attack) for eps, attack in zip(self.budgets, self.attacks, strict=True) if eps is not None]
        return min(found, key=lambda one: (one[0], repr(one[1])), default=None)

    @property
    def played(self) -> str:
        """On which episodes, for people."""
        words = [counted(self.episodes, "episode")]
        if self.conditions:
            plan = self.conditions.plan
            words += filter(None, [LEVELS.get(levels_of(plan.game))])
            words += ["with varied starts"] if plan.starts == "varied" else []
            words += [f"(the first finished of {plan.copies()} copies)"] if plan.protocol == "first" else []
        return f"{' '.join(words)}, evaluation seed {self.seed}"

    def __str__(self) -> str:
        """The one number of this agent, for people."""
        played = f"({format_return(self.nominal)} without attack; {self.played})"
        if self.smallest is None:
            return f"no budget brings the return below {format_return(self.threshold)} {played}"
        eps, attack = self.smallest
        least = f"{self.shown(eps)} under {attack_label(attack)}"
        return f"smallest budget that brings the return below {format_return(self.threshold)}: {least} {played}"

    def shown(self, eps: float | None) -> str:
        """A budget for people, rounded."""
        return "never" if eps is None else f"{255 * eps:.3g}/255" if self.image else f"{eps:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data. `attacks` is for people; `adversaries` is what they are rebuilt from."""
        facts = {name: getattr(self, name) for name in _FACTS}
        facts |= {"attacks": [*map(repr, self.attacks)], "adversaries": [*map(attack_to_dict, self.attacks)]}
        return facts | (self.conditions.to_dict() if self.conditions else {})

    @classmethod
    def from_row(cls, row: dict[str, Any], source: str) -> "Breaking":
        """The inverse of `to_dict`."""
        # Earlier versions named the agent `policy`, and stored nothing else of the conditions.
        conditions = None if "policy" in row else Conditions.from_row(row, source)
        with store.fitting(source, "delete it, and find the budget again"):
            adversaries = row.get("adversaries") or map(attack_of, row.get("attacks", ()))
            attacks = tuple(map(attack_from_dict, adversaries))
            facts = typed_values(cls, {name: row[name] for name in _FACTS})
            found = cls(attacks=attacks, conditions=conditions, **facts)
            if len(found.attacks) != len(found.budgets):
                raise ValueError("it has not as many budgets as attacks")
            return found


_FACTS = ("threshold", "nominal", "episodes", "seed", "image", "budgets")


def read_breaking(results: Results, agent: str) -> list[Breaking]:
    """What searches for this agent found, joined; the latest last."""
    rows = results.searches.read(agent)
    return _joined(Breaking.from_row(row, f"the search in {source}") for source, row in rows)


def _joined(searches: Iterable[Breaking]) -> list[Breaking]:
    """One for all under equal conditions with one threshold: a later one with weaker attacks does not make the smallest
    budget larger."""
    found = dict[tuple[Conditions | None, float], Breaking]()
    for one in searches:
        key = one.conditions, one.threshold
        budgets = dict[Attack, float | None]()
        for search in filter(None, (found.pop(key, None), one)):
            budgets |= zip(search.attacks, search.budgets, strict=True)
        found[key] = replace(one, attacks=tuple(budgets), budgets=tuple(budgets.values()))
    return [*found.values()]


def refuse_learned(attacks: Sequence[Attack]) -> None:
    """What cannot be searched with; before anything else is played."""
    if any(isinstance(attack, Learned) for attack in attacks):
        raise ConfigError("a learned adversary would be trained at every budget", "find the budget with other attacks")


def find_breaking(
    policy: Policy,
    plan: Plan,
    attacks: Sequence[Attack],
    results: Results,
    threshold: float | None = None,
    progress: Begin = no_progress,
    published: Sequence[Certificate] = (),
) -> Breaking:
    """Bisection, a round's budgets at once; by default the threshold is halfway from the lowest return to nominal. With
    what earlier searches under the same conditions found. `published`: certificates beside those of the results."""
    refuse_learned(attacks)
    conditions = plan.conditions(fingerprint(policy), policy.device.type)
    known = read_breaking(results, conditions.agent)
    nominal = next(run_suite(policy, plan, [Cell(None, 0.0)], results.search, progress)).mean
    floor = LOWEST_RETURNS.get(plan.game.id, 0.0)
    if threshold is None:
        threshold = floor + SHARE * (nominal - floor)
        fails_already = nominal <= floor
    else:
        fails_already = nominal < threshold
    if fails_already:
        what = f"without attack the return is {format_return(nominal)}, which is below the threshold already"
        raise ConfigError(what, "give a --threshold below it")
    grids: list[tuple[float, ...]] = [(0.0, *FIRST_ROUND) for _ in attacks]
    for _ in range(ROUNDS + 1):
        cells = [Cell(attack, eps) for attack, grid in zip(attacks, grids, strict=True) for eps in grid[1:]]
        scores = run_suite(policy, plan, cells, results.search, progress, published=published)
        means = {(s.attack, s.eps): s.mean for s in scores}
        for number, (attack, grid) in enumerate(zip(attacks, grids, strict=True)):
            broken = (i for i, eps in enumerate(grid[1:], 1) if means[recorded(attack), eps] < threshold)
            first = next(broken, 0)
            grids[number] = tuple(np.linspace(grid[first - 1], grid[first], INSIDE + 2).tolist()) if first else ()
    budgets = tuple(grid[-1] if grid else None for grid in grids)
    image = len(policy.spec.obs_shape) == 3
    searched = tuple(map(recorded, attacks))
    search = Breaking(threshold, nominal, plan.episodes, plan.seed, searched, image, budgets, conditions)
    found = _joined([*known, search])[-1]
    if found not in known:
        results.searches.append(search.to_dict())
    return found
