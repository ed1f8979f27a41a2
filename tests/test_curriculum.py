"""Hand-worked curricula. A fake policy is its returns by level: (nominal, at eps 1, at eps 2, ...)."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from bcl.curriculum import ALL_TRAINED, TARGET_MISSED, TARGET_REACHED, bcl
from bcl.curriculum_rules import CurriculumResult, Decision, Phase, Rules, Tried, budgets, refuse_weak_start
from bcl.errors import BclError

Fake = tuple[float, ...]
LEVELS = (0.0, 1.0, 2.0, 3.0)  # eps_0..eps_3
MOS: dict[str, Any] = {"runs": 3, "nominal_threshold": 10, "attacked_threshold": 5, "skip": 1.0}
OPEN: dict[str, Any] = {"runs": 3, "nominal_threshold": 10, "value": "nominal", "failed_phases": 2}


class World:
    """Serves prepared runs by phase, and notes every call."""

    def __init__(self, runs: dict[int, list[Fake]]) -> None:
        self.runs = runs
        self.scored: Counter[tuple[Fake, float]] = Counter()
        self.trained: list[tuple[Fake, Phase]] = []
        self.made: Counter[int] = Counter()
        self.alive: list[Iterator[Fake]] = []
        self.closed: list[int] = []
        self.decided: list[Decision] = []

    def score(self, policy: Fake, eps: float) -> float:
        self.scored[policy, eps] += 1
        return policy[int(eps)]

    def train(self, policy: Fake, phase: Phase) -> Iterator[Fake]:
        self.trained.append((policy, phase))
        self.alive.append(self._runs(phase))  # held, so that only an explicit close ends it
        return self.alive[-1]

    def _runs(self, phase: Phase) -> Iterator[Fake]:
        try:
            for run in self.runs[phase.index]:
                self.made[phase.index] += 1
                yield run
        finally:
            self.closed.append(phase.index)

    def play(self, bootstrap: Fake, rules: Rules, **more: Any) -> CurriculumResult[Fake]:
        result = bcl(bootstrap, rules, train=self.train, score=self.score, decided=self.decided.append, **more)
        assert list(result.decisions) == self.decided
        assert self.closed == [phase.index for _, phase in self.trained]
        return result

    def budgets_scored(self) -> set[float]:
        return {eps for _, eps in self.scored}


def kept(result: CurriculumResult[Fake]) -> list[object]:
    return [d.kept for d in result.decisions]


def path(result: CurriculumResult[Fake]) -> list[int]:
    return [d.phase.index for d in result.decisions]


def test_naive_curriculum_takes_every_budget_in_turn_and_scores_nothing() -> None:
    world = World({1: [(1, 1)], 2: [(2, 2)], 3: [(3, 3)]})
    result = world.play((9, 9), Rules(eps=LEVELS))
    assert [policy for policy, _ in world.trained] == [(9, 9), (1, 1), (2, 2)]
    assert [phase for _, phase in world.trained] == [
        Phase(1, 0.0, 1.0, 1),
        Phase(2, 1.0, 2.0, 1),
        Phase(3, 2.0, 3.0, 1),
    ]
    assert (result.policy, result.stopped) == ((3, 3), ALL_TRAINED)
    assert (result.best, result.best_phase) == ((3, 3), 3)  # nothing to tell them apart by
    assert [d.next for d in result.decisions] == [1, 2, 3, None]
    assert not world.scored


def test_naive_curriculum_reports_the_best_on_the_path_by_the_final_score() -> None:
    # nominal + (at 1 + at 3) / 2: bootstrap 10, then 11, 14, 6
    world = World({1: [(9, 4, 0, 0)], 2: [(9, 6, 5, 4)], 3: [(4, 2, 2, 2)]})
    result = world.play((10, 0, 0, 0), Rules(eps=LEVELS, scored_at=(1.0, 3.0)))
    assert (result.best, result.best_phase, result.policy) == ((9, 6, 5, 4), 2, (4, 2, 2, 2))
    assert [d.best_phase for d in result.decisions] == [0, 1, 2, 2]
    assert world.budgets_scored() == {0.0, 1.0, 3.0}
    assert max(world.scored.values()) == 1


def test_the_first_of_equals_is_the_best_on_the_path() -> None:
    world = World({1: [(6, 8)], 2: [(8, 6)]})
    result = world.play((0, 0), Rules(eps=(0.0, 1.0, 2.0), scored_at=(1.0,)))
    assert (result.best, result.best_phase) == ((6, 8), 1)


def test_bcl_c_keeps_the_best_of_k_runs_by_v_k() -> None:
    # V_k of phase 2 = nominal + (at 2 + at 1) / 2: 10, 12.5, 12
    world = World({1: [(8, 4, 0)] * 3, 2: [(8, 3, 1), (9, 4, 3), (4, 9, 7)]})
    result = world.play((9, 0, 0), Rules(eps=(0.0, 1.0, 2.0), runs=3, min_runs=3))
    assert [c.value for c in result.decisions[2].candidates] == [10, 12.5, 12]
    assert kept(result) == ["incumbent", 1, 2]  # phase 1 is a tie of three: the first wins
    assert result.decisions[2].candidates[1].scores == {0.0: 9, 1.0: 4, 2.0: 3}
    assert [c.met for c in result.decisions[2].candidates] == [None] * 3


def test_bcl_c_scores_three_returns_a_run_and_no_skipping() -> None:
    runs: dict[int, list[Fake]] = {i: [(k, i, k, i) for k in range(3)] for i in (1, 2, 3)}
    world = World(runs)
    world.play((9, 0, 0, 0), Rules(eps=LEVELS, runs=3, min_runs=3))
    # eps_0 = 0 is the nominal return; neither the bootstrap nor a budget above the phase's is ever scored
    assert world.scored == Counter(
        {(f, float(e)): 1 for i, fs in runs.items() for f in fs for e in {0, i, i - 1}},
    )


def test_no_threshold_means_no_early_stop() -> None:
    world = World({1: [(1, 1), (3, 3), (2, 2)]})
    result = world.play((0, 0), Rules(eps=(0.0, 1.0), runs=3, min_runs=1))
    assert world.made[1] == 3
    assert result.policy == (3, 3)


def test_early_stop_on_success_closes_the_training() -> None:
    world = World({1: [(9, 9), (10, 5), (99, 99)]})  # 9 misses the nominal threshold
    result = world.play((0, 0), Rules(eps=(0.0, 1.0), **MOS))
    assert (world.made[1], world.closed) == (2, [1])
    assert (result.policy, result.stopped) == ((10, 5), TARGET_REACHED)  # met, though its V_k 17.5 is below 18
    assert [(c.met, c.value) for c in result.decisions[1].candidates] == [(False, 18), (True, 17.5)]


def test_early_stop_waits_for_k_min() -> None:
    world = World({1: [(10, 5), (12, 6), (99, 99)]})
    result = world.play((0, 0), Rules(eps=(0.0, 1.0), **MOS, min_runs=2))
    assert (world.made[1], result.policy) == (2, (12, 6))  # both met: the higher V_k


def test_mos_scores_no_more_than_it_needs() -> None:
    boot, second, last = (10, 5, 4, 9), (11, 5, 6, 4), (10, 3, 4, 5)
    world = World({2: [second], 3: [last]})
    result = world.play(boot, Rules(eps=LEVELS, **MOS))
    assert (path(result), result.stopped) == ([0, 2, 3], TARGET_REACHED)
    assert result.decisions[-1].tried == ()  # no budget is left
    assert world.scored == Counter(
        {(boot, 0.0): 1, (boot, 1.0): 1, (boot, 2.0): 1}  # EvalRobust up to the first failure
        | {(second, 0.0): 1, (second, 2.0): 1, (second, 3.0): 1}  # met at 2, not robust at 3; no V_k for one run
        | {(last, 0.0): 1, (last, 3.0): 1}
    )


def test_robust_bootstrap_skips_ahead() -> None:
    eps = budgets(0.0, 6.0, 1.0)
    world = World({5: [(10, 5, 5, 5, 5, 5, 5)]})
    result = world.play((10, 9, 8, 7, 6, 0, 0), Rules(eps=eps, **MOS))
    assert world.trained == [((10, 9, 8, 7, 6, 0, 0), Phase(5, 4.0, 5.0, 3))]
    assert [(t.eps, t.score, t.robust) for t in result.decisions[0].tried] == [
        (0, 10, True), (1, 9, True), (2, 8, True), (3, 7, True), (4, 6, True), (5, 0, False),
    ]  # fmt: skip
    assert result.decisions[1].tried == (Tried(0.0, 10, True), Tried(6.0, 5, True))
    assert result.stopped == TARGET_REACHED


def test_bootstrap_robust_to_all_needs_no_training() -> None:
    world = World({})
    result = world.play((10, 5, 5, 5), Rules(eps=LEVELS, **MOS))
    assert (result.policy, result.best, result.stopped) == ((10, 5, 5, 5), (10, 5, 5, 5), TARGET_REACHED)
    assert (path(result), world.trained) == ([0], [])


def test_a_phase_missed_does_not_matter_to_an_agent_robust_from_there_to_the_target() -> None:
    world = World({1: [(10, 4, 5, 5)]})
    result = world.play((9, 0, 0, 0), Rules(eps=LEVELS, **MOS | {"runs": 1}))
    assert (result.decisions[1].candidates[0].met, result.stopped) == (False, TARGET_REACHED)


@pytest.mark.parametrize("robust_to", ["every", "any"])
def test_nominal_failure_is_robust_to_nothing(robust_to: Any) -> None:
    world = World({i: [(10, 0, 0, 0)] * 3 for i in (1, 2, 3)})
    result = world.play((9, 5, 5, 5), Rules(eps=LEVELS, **MOS, robust_to=robust_to))
    assert result.decisions[0].tried == (Tried(0.0, 9, False),)
    assert path(result) == [0, 1, 2, 3]


@pytest.mark.parametrize(("robust_to", "first", "tried"), [("every", 2, [0, 1, 2]), ("any", 4, [0, 5, 4, 3])])
def test_robustness_with_a_hole_has_two_readings(robust_to: Any, first: int, tried: list[float]) -> None:
    done = [(10, 5, 5, 5, 5, 5)]
    world = World({2: done, 4: done})
    result = world.play((10, 6, 4, 7, 4, 4), Rules(eps=budgets(0.0, 5.0, 1.0), **MOS, robust_to=robust_to))
    assert result.decisions[0].next == first
    assert [t.eps for t in result.decisions[0].tried] == tried


@pytest.mark.parametrize(("share", "first"), [(0.0, 1), (0.5, 3), (0.7, 3), (0.75, 4), (1.0, 5)])
def test_select_takes_a_share_of_the_possible_skip(share: float, first: int) -> None:
    world = World({i: [(0, 0, 0, 0, 0, 0)] for i in range(1, 6)})
    result = world.play(
        (10, 5, 5, 5, 5, 0), Rules(eps=budgets(0.0, 5.0, 1.0), nominal_threshold=10, attacked_threshold=5, skip=share)
    )
    assert path(result) == [0, *range(first, 6)]  # {1..5} at first; afterwards nothing is robust
    assert bool(result.decisions[0].tried) == (share > 0)  # always next needs no EvalRobust


def test_a_share_that_rounds_badly_is_taken_in_full() -> None:
    world = World({30: [(1.0,) * 102]})
    rules = Rules(eps=budgets(0.0, 101.0, 1.0), attacked_threshold=1, skip=0.29)  # 0.29 * 100 is 28.999999999999996
    result = world.play((*[1.0] * 101, 0.0), rules, limit_reached=asked(None, "stop"))
    assert path(result) == [0, 30]


def test_a_phase_whose_runs_all_fail_still_replaces_the_agent_and_is_not_repeated() -> None:
    world = World({1: [(4, 0), (6, 1), (5, 1)], 2: [(3, 0, 0)] * 3})
    result = world.play((10, 4, 4), Rules(eps=(0.0, 1.0, 2.0), **MOS))
    assert [policy for policy, _ in world.trained] == [(10, 4, 4), (6, 1)]
    assert path(result) == [0, 1, 2]
    assert (result.policy, result.best, result.stopped) == ((3, 0, 0), (10, 4, 4), TARGET_MISSED)


def test_the_ratchet_keeps_the_incumbent_and_stops_without_progress() -> None:
    boot = (10, 4, 4, 0)
    world = World({1: [(4, 0), (6, 1), (5, 1)], 2: [(3, 0, 0)] * 3})
    result = world.play(boot, Rules(eps=LEVELS, **MOS, ratchet=True, failed_phases=2))
    assert [policy for policy, _ in world.trained] == [boot, boot]
    assert kept(result) == ["incumbent"] * 3
    assert [c.run for c in result.decisions[1].candidates] == ["incumbent", 1, 2, 3]
    assert result.decisions[1].candidates[0].value == 10 + (4 + 10) / 2
    assert (result.policy, result.stopped) == (boot, "2 failing phases in a row")
    assert max(n for (policy, _), n in world.scored.items() if policy == boot) == 1


def test_under_the_ratchet_a_better_agent_is_progress_and_a_tie_is_not() -> None:
    low = (0, 0, 0, 0)
    world = World({1: [low, (10, 4.5, 0, 0), low], 2: [(10, 4.5, 0, 0)] * 3, 3: [low, low, (10, 4.5, 2, 2)]})
    result = world.play((10, 4, 4, 0), Rules(eps=LEVELS, **MOS, ratchet=True, failed_phases=2))
    assert kept(result) == ["incumbent", 2, "incumbent", 3]  # V: 17.25 over 17; 12.25 twice; 12 over 10
    assert result.stopped == TARGET_MISSED


def test_an_incumbent_that_meets_the_thresholds_does_not_fail() -> None:
    boot = (12, 9, 9, 9)
    world = World({i: [(10, 5, 5, 5)] for i in (1, 2, 3)})
    result = world.play(
        boot, Rules(eps=LEVELS, nominal_threshold=10, attacked_threshold=5, ratchet=True, failed_phases=1)
    )
    assert (kept(result), result.policy, result.stopped) == (["incumbent"] * 4, boot, TARGET_REACHED)


def test_open_ended_run_stops_after_m_failing_phases_and_reports_the_last_good_one() -> None:
    world = World(
        {
            1: [(12,), (99,)],
            2: [(8,), (9,), (11,)],
            3: [(8,), (9,), (7,)],  # fails once, keeps the highest nominal return
            4: [(10,)],
            5: [(6,), (5,), (4,)],
            6: [(1,), (2,), (9,)],
        }
    )
    result = world.play((20,), Rules(eps=budgets(1 / 255, None, 1 / 255), **OPEN))
    assert [policy for policy, _ in world.trained] == [(20,), (12,), (11,), (9,), (10,), (6,)]
    assert [phase.eps for _, phase in world.trained] == [k / 255 for k in range(2, 8)]
    assert (result.policy, result.best, result.best_phase) == ((9,), (10,), 4)
    assert result.stopped == "2 failing phases in a row"
    assert world.budgets_scored() == {0.0}


def test_open_ended_run_that_only_fails_reports_its_bootstrap() -> None:
    world = World({1: [(9,)], 2: [(8,)]})
    result = world.play((20,), Rules(eps=budgets(0.0, None, 0.1), **OPEN | {"runs": 1}))
    assert (result.best, result.best_phase, result.policy) == ((20,), 0, (8,))


def asked(*answers: str | None) -> Any:
    """A `limit_reached` with these answers; one question too many fails."""
    pending = iter(answers)
    return lambda phase, run: next(pending)


def test_limit_reached_before_any_training() -> None:
    result = World({}).play((9, 0), Rules(eps=(0.0, 1.0)), limit_reached=asked("0 runs allowed"))
    assert (result.policy, result.stopped, path(result)) == ((9, 0), "0 runs allowed", [0])
    assert result.decisions[0].next is None


@pytest.mark.parametrize(
    ("answers", "made", "policy"),
    [((None, "stop"), 1, (3, 0, 0)), ((None, None, "stop"), 2, (5, 0, 0)), ((None, None, None, "stop"), 3, (6, 0, 0))],
)
def test_limit_reached_judges_the_runs_that_are_done(answers: Any, made: int, policy: Fake) -> None:
    world = World({1: [(3, 0, 0), (5, 0, 0), (6, 0, 0)]})
    result = world.play((9, 0, 0), Rules(eps=(0.0, 1.0, 2.0), **MOS), limit_reached=asked(*answers))
    assert (world.made[1], result.policy, result.stopped) == (made, policy, "stop")
    assert len(result.decisions[1].candidates) == made
    assert bool(result.decisions[1].tried) == (made == 3)  # a phase cut short does not evaluate what comes next


def test_a_phase_cut_short_has_not_failed() -> None:
    world = World({1: [(3, 0, 0)] * 3})
    result = world.play(
        (9, 0, 0), Rules(eps=(0.0, 1.0, 2.0), **MOS, failed_phases=1), limit_reached=asked(None, "stop")
    )
    assert result.stopped == "stop"


def test_success_and_target_come_before_the_budget() -> None:
    world = World({1: [(10, 5)]})
    result = world.play((9, 0), Rules(eps=(0.0, 1.0), **MOS), limit_reached=asked(None))  # asked once
    assert result.stopped == TARGET_REACHED


def test_normalised_values_keep_another_run() -> None:
    # RoadRunner's thresholds. Raw 39000 + 3000 over 30000 + 11250; normalised 0.975 + 0.25 under 0.75 + 0.9375.
    greedy, robust = (39_000, 4_000, 2_000), (30_000, 11_500, 11_000)
    for value, expected in (("raw", greedy), ("normalised", robust)):
        world = World({2: [greedy, robust]})
        rules = Rules(
            eps=(0.0, 1.0, 2.0), runs=2, nominal_threshold=40_000, attacked_threshold=12_000, skip=1.0, value=value
        )  # type: ignore[arg-type]
        result = world.play((40_000, 12_000, 0), rules)
        assert result.policy == expected
    assert [c.value for c in result.decisions[1].candidates] == pytest.approx([1.225, 1.6875])


def test_normalised_values_count_from_the_floor() -> None:
    world = World({1: [(-21, -21), (20, -21)]})
    rules = Rules(eps=(0.0, 1.0), runs=2, nominal_threshold=20, attacked_threshold=20, value="normalised", floor=-21)
    result = world.play((0, 0), rules)
    assert [c.value for c in result.decisions[1].candidates] == pytest.approx([0, 1 + 0.5])


def test_adaptive_thresholds_are_shares_of_the_bootstraps_return() -> None:
    world = World({2: [(16, 0, 0)]})
    rules = Rules(
        eps=(0.0, 1.0, 2.0), nominal_threshold=0.9, attacked_threshold=0.5, adaptive=True, floor=-21, skip=1.0
    )
    result = world.play((20, 0, -1), rules)  # -21 + 0.9 * 41 = 15.9 and -21 + 0.5 * 41 = -0.5
    assert result.decisions[0].thresholds == pytest.approx((15.9, -0.5))
    assert [t.robust for t in result.decisions[0].tried] == [True, True, False]
    assert result.decisions[1].candidates[0].met is True
    with pytest.raises(BclError, match=r"-21 is not above the floor -21"):
        World({}).play((-21, 0, 0), rules)


def test_a_bootstrap_that_plays_badly_does_not_shrink_adaptive_thresholds() -> None:
    adaptive = Rules(
        eps=(0.0, 1.0),
        nominal_threshold=0.9,
        attacked_threshold=0.8,
        adaptive=True,
        floor=-21,
        skip=1.0,
        expected_return=21,
    )
    weak = (12.5, 12.5)  # just below -21 + 0.8 * 42 = 12.6; its own thresholds, 9.15 and 5.8, it would meet untrained
    assert World({}).play(weak, adaptive).stopped == TARGET_REACHED
    with pytest.raises(BclError, match=r"12\.5 is far below the 21 .* --curriculum.expected_return none"):
        refuse_weak_start(adaptive, 12.5)
    refuse_weak_start(adaptive, 12.6)
    refuse_weak_start(replace(adaptive, expected_return=None), 12.5)
    refuse_weak_start(replace(adaptive, adaptive=False, nominal_threshold=16, attacked_threshold=12), 12.5)


def test_ppo_rules_threshold_on_train_levels_and_an_attack_that_is_too_weak() -> None:
    # `score` plays PGD on the train levels; there is no nominal threshold. RI-FGSM is the training attack.
    first, second = (28, 26, 10, 0), (29, 26, 25, 20)
    world = World({1: [first], 2: [second]})
    ri_fgsm = {(first, 3.0): 20.0, (second, 3.0): 27.6}  # at the target; 0.95 * 29 = 27.55
    rules = Rules(eps=LEVELS, attacked_threshold=25.0, skip=1.0, weak_attack_share=0.95)
    result = world.play((30, 10, 5, 0), rules, training_score=lambda f, eps: ri_fgsm[f, eps])
    assert result.stopped == "the training attack is too weak: it leaves 27.6 of 29 at the target"
    assert (result.policy, path(result)) == (second, [0, 1, 2])
    assert result.decisions[1].tried == (Tried(2.0, 10, False), Tried(3.0, 20.0, False, "training attack"))
    without = World({1: [first], 2: [second], 3: [(1, 1, 1, 1)]})
    assert without.play((30, 10, 5, 0), rules).stopped == TARGET_MISSED
    assert 0.0 not in without.budgets_scored()


@pytest.mark.parametrize(("left", "useless"), [(17.9, False), (18.0, True)])  # -21 + 0.95 * 41 = 17.95
def test_a_weak_attack_is_counted_from_the_floor(left: float, useless: bool) -> None:
    world = World({1: [(20, 0, 0)], 2: [(20, 0, 0)]})
    rules = Rules(eps=(0.0, 1.0, 2.0), attacked_threshold=5, skip=1.0, floor=-21, weak_attack_share=0.95)
    assert len(world.play((0, 0, 0), rules, training_score=lambda f, eps: left).decisions) == (2 if useless else 3)


@pytest.mark.parametrize("nominal", [10.0, 0.0, -2.0])
def test_an_agent_that_forgot_how_to_play_stops_at_no_weak_attack(nominal: float) -> None:
    fallen = (nominal, nominal, nominal)
    world = World({1: [fallen], 2: [fallen]})
    result = world.play(
        (30, 0, 0),
        Rules(eps=(0.0, 1.0, 2.0), attacked_threshold=25, skip=1.0, weak_attack_share=0.95),
        training_score=lambda f, eps: f[0],
    )
    assert result.stopped == TARGET_MISSED


def test_training_is_closed_when_scoring_fails_and_not_asked_for_more_than_k() -> None:
    world = World({1: [(1,), (2,), (3,)]})
    with pytest.raises(IndexError):  # the fakes have no return at eps 1
        bcl((9.0, 0.0), Rules(eps=(0.0, 1.0), runs=2), train=world.train, score=world.score)
    assert (world.made[1], world.closed) == (2, [1])


def test_any_iterator_will_do_but_an_empty_one() -> None:
    result = bcl((0.0,), Rules(eps=(0.0, 1.0)), train=lambda f, phase: iter([(5.0,)]), score=lambda f, eps: 0.0)
    assert result.policy == (5.0,)
    with pytest.raises(ValueError, match="phase 1 trained no run"):
        World({1: []}).play((0, 0), Rules(eps=(0.0, 1.0), ratchet=True))


def test_replay_reproduces_every_decision_and_decisions_are_plain_data() -> None:
    def once() -> CurriculumResult[Fake]:
        world = World({1: [(4, 0), (6, 1), (5, 1)], 2: [(10, 5, 5, 4)], 3: [(3, 0, 0, 0)] * 3})
        return world.play((10, 4, 4, 4), Rules(eps=LEVELS, **MOS))

    assert once() == once()
    data = json.loads(json.dumps([asdict(d) for d in once().decisions]))
    assert data[1]["phase"] == {"index": 1, "start": 0.0, "eps": 1.0, "runs": 3}
    assert data[1]["candidates"][1] == {"run": 2, "met": False, "value": 9.5, "scores": {"0.0": 6, "1.0": 1}}
    assert (data[1]["kept"], data[1]["next"], data[-1]["stop"]) == (2, 2, TARGET_MISSED)
