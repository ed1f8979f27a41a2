"""Runs that are trained before they are asked for: by hand, and that they change no decision."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from bcl.curriculum import Guess, Scored, as_candidates, bcl, likely_next
from bcl.curriculum_rules import Candidate, CurriculumResult, Phase, Rules

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
        (C, 1, 3, True, (2, 1)),  # the best so far probably stays it
        (MOS, 1, 1, True, (2, 1)),
        (MOS, 1, 1, False, (1, 2)),
        (MOS, 1, 3, True, (2, 1)),
        (MOS, 1, 3, False, (2, 1)),
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
    judged = [Candidate(run, met=False, value=-run, scores={}) for run in range(1, k)]  # the first is the best
    found = likely_next(at, k, made, succeeds, judged)
    assert (found and (found.phase.index, found.number)) == expected
    if found and found.phase != at:
        assert found.phase == Phase(phase + 1, LEVELS[phase], LEVELS[phase + 1], made.runs)


@pytest.mark.parametrize(
    ("rules", "succeeds", "values", "kept"),
    [
        (C, True, (3.0, 2.0), 1),
        (C, True, (2.0, 3.0), 2),
        (MOS, False, (2.0, 3.0), 2),
        (MOS, True, (2.0, 3.0), 3),  # the run that is judged meets the thresholds, which none did before
    ],
)
def test_whose_agent_the_next_phase_probably_starts_from(
    rules: dict[str, Any], succeeds: bool, values: tuple[float, float], kept: int
) -> None:
    made = Rules(eps=LEVELS, **rules)
    judged = [Candidate(run, None, value, {}) for run, value in enumerate(values, 1)]
    assert likely_next(Phase(1, 0.0, 1.0, 3), 3, made, succeeds, judged) == Guess(Phase(2, 1.0, 2.0, 3), 1, kept)
    assert likely_next(Phase(3, 2.0, 3.0, 3), 3, made, succeeds, judged) is None, "it is the last phase"


def test_nobody_knows_whether_a_ratchet_keeps_its_incumbent() -> None:
    made = Rules(eps=LEVELS, ratchet=True, **MOS)
    judged = [Candidate(1, False, 1.0, {}), Candidate(2, False, 2.0, {})]
    assert likely_next(Phase(1, 0.0, 1.0, 3), 3, made, False, judged) is None


def score(agent: Fake, eps: float) -> float:
    return agent[int(eps)]


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
        agents: dict[Any, Fake] = {}
        for k in range(1, phase.runs + 1):
            if self.guessed:
                hit = self.guessed == (parent, phase.index, k)
                self.right += hit
                self.unused += not hit
                self.guessed = None
            agent = self.agent(parent, phase.index, k)
            scored = {number: Scored(done, score) for number, done in agents.items()}
            judged = as_candidates(scored, phase, self.rules) if scored else []
            agents[k] = agent
            if found := likely_next(phase, k, self.rules, self.succeeds, judged):
                starts_from = parent if found.starts_from is None else agents[found.starts_from]
                self.guessed = (starts_from, found.phase.index, found.number)
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

        def run(train: Any) -> CurriculumResult[Fake]:
            return bcl((11.0, 3.0, 3.0, 3.0), rules, train=train, score=score)

        assert run(world.train) == run(world.plain)
        right += world.right
        unused += world.unused + (world.guessed is not None)
    assert right > 0
    assert (unused == 0) == (settings == {})
    if settings == C:  # of the six guesses of every world, two are which of three runs is the best
        assert unused < 50 * 2 / 2
