"""Runs that are trained before they are asked for: by hand, and that they change no decision."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from bcl.curriculum import bcl, likely_next
from bcl.curriculum_rules import CurriculumResult, Phase, Rules

Fake = tuple[float, ...]  # returns by level: nominal, at eps 1, at eps 2, ...
LEVELS = (0.0, 1.0, 2.0, 3.0)
MOS: dict[str, Any] = {"runs": 3, "nominal_threshold": 10, "attacked_threshold": 5, "skip": 1.0}
C: dict[str, Any] = {"runs": 3, "min_runs": 3}


@pytest.mark.parametrize(
    ("rules", "phase", "k", "succeeds", "expected"),
    [
        ({}, 1, 1, False, (2, 1)),  # NCL keeps its only run, whatever it is worth
        ({}, 3, 1, True, None),  # the last phase
        ({}, 0, 0, True, (1, 1)),  # the bootstrap
        (C, 1, 1, True, (1, 2)),  # all three runs are made
        (C, 1, 2, True, (1, 3)),
        (C, 1, 3, True, None),  # which of them is kept is open
        (MOS, 1, 1, True, (2, 1)),
        (MOS, 1, 1, False, (1, 2)),
        (MOS, 1, 3, True, (2, 1)),
        (MOS, 1, 3, False, None),
        (MOS, 3, 1, True, None),
        (MOS, 3, 1, False, (3, 2)),
        (MOS | {"min_runs": 2}, 1, 1, True, (1, 2)),
        (MOS | {"min_runs": 2}, 1, 2, True, None),  # the first may be better
        (MOS | {"runs": 1, "ratchet": True}, 1, 1, False, None),  # the incumbent may stay
        (MOS | {"runs": 1, "ratchet": True}, 1, 1, True, (2, 1)),
    ],
)
def test_what_probably_comes_next(
    rules: dict[str, Any], phase: int, k: int, succeeds: bool, expected: tuple[int, int] | None
) -> None:
    made = Rules(eps=LEVELS, **rules)
    at = Phase(phase, LEVELS[max(0, phase - 1)], LEVELS[phase], made.runs if phase else 0)
    found = likely_next(at, k, made, succeeds)
    assert (found and (found[0].index, found[1])) == expected
    if found and found[0] != at:
        assert found[0] == Phase(phase + 1, LEVELS[phase], LEVELS[phase + 1], made.runs)


class Ahead:
    """A world in which every run is begun when it is guessed, while the run before it is judged."""

    def __init__(self, rules: Rules, seed: int) -> None:
        self.rules = rules
        self.seed = seed
        self.guessed: tuple[Fake, int, int] | None = None
        self.succeeds = True
        self.right = 0
        self.unused = 0

    def agent(self, parent: Fake, phase: int, k: int) -> Fake:
        draw = random.Random(f"{self.seed} {parent} {phase} {k}")
        nominal = draw.choice([9.0, 10.0, 11.0])
        return (nominal, *(draw.choice([3.0, 5.0, 7.0]) for _ in LEVELS[1:]))

    def train(self, parent: Fake, phase: Phase) -> Iterator[Fake]:
        for k in range(1, phase.runs + 1):
            if self.guessed:
                hit = self.guessed == (parent, phase.index, k)
                self.right += hit
                self.unused += not hit
                self.guessed = None
            agent = self.agent(parent, phase.index, k)
            if found := likely_next(phase, k, self.rules, self.succeeds):
                self.guessed = (parent if found[0] == phase else agent, found[0].index, found[1])
            self.succeeds = True
            yield agent
            self.succeeds = False

    def plain(self, parent: Fake, phase: Phase) -> Iterator[Fake]:
        for k in range(1, phase.runs + 1):
            yield self.agent(parent, phase.index, k)


@pytest.mark.parametrize("settings", [{}, C, MOS, MOS | {"skip": 0.0}, MOS | {"ratchet": True}], ids=str)
def test_guesses_change_no_decision_and_wrong_ones_are_counted(settings: dict[str, Any]) -> None:
    rules = Rules(eps=LEVELS, **settings)
    right = unused = 0
    for seed in range(50):
        world = Ahead(rules, seed)

        def score(agent: Fake, eps: float) -> float:
            return agent[int(eps)]

        def run(train: Any, score: Any = score) -> CurriculumResult[Fake]:
            return bcl((11.0, 3.0, 3.0, 3.0), rules, train=train, score=score)

        assert run(world.train) == run(world.plain)
        right += world.right
        unused += world.unused + (world.guessed is not None)
    assert right > 0
    certain = settings in ({}, C)
    assert (unused == 0) == certain
