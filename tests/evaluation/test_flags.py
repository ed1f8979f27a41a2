"""Each flag fires on a case made for it, and stays silent on a healthy evaluation."""

import dataclasses
import re
from pathlib import Path

import pytest

from bcl.attacks import APGD, PGD, Attack, CornerNoise, Learned, Margin, MultiT, Square
from bcl.evaluation import Score, flags, worse_than_start
from bcl.evaluation.flags import EXPLAINED, clearly_lower
from bcl.runs.results import Flag

PGD30, PGD50 = PGD(steps=30, step=0.1), PGD(steps=50, step=0.1, random_start=True, restarts=5)


def score(attack: Attack | None, eps: float, mean: float, **more: object) -> Score:
    returns = (mean - 0.1, mean + 0.1, mean, mean)
    defaults = {"lengths": (9,) * 4, "changed": 0.5, "max_perturbation": eps, "zero_gradient": 0.0, "seed": 0}
    return Score(**{"attack": attack, "eps": eps, "returns": returns, "protocol": "fixed", **defaults, **more})  # type: ignore[arg-type]


NOMINAL = score(None, 0.0, 20.0, changed=0.0)
FLOOR = score(None, 0.0, -21.0, changed=0.0)
HEALTHY = [NOMINAL, score(PGD30, 0.01, 15.0), score(MultiT(), 0.01, 15.2), score(PGD30, 0.02, 3.0)]


def names(scores: list[Score], floor: Score | None = None) -> list[str]:
    return [flag.name for flag in flags(scores, floor)]


def test_a_healthy_evaluation_raises_nothing() -> None:
    assert flags(HEALTHY) == []
    assert flags([*HEALTHY, score(PGD30, 1.0, -20.9)], FLOOR) == []


def test_zero_gradients() -> None:
    found = flags([NOMINAL, score(PGD30, 0.01, 15.0, zero_gradient=0.4)])
    assert found == [Flag("zero-gradients", "the gradient is exactly zero on 40% of sampled states")]


@pytest.mark.parametrize("rival", [MultiT(), Square(), CornerNoise()])
def test_masking(rival: Attack) -> None:
    assert names([NOMINAL, score(PGD30, 0.01, 19.0), score(rival, 0.01, 5.0)]) == ["masking"]
    with_apgd = [NOMINAL, score(PGD30, 0.01, 5.1), score(APGD(), 0.01, 19.0), score(rival, 0.01, 5.0)]
    assert names(with_apgd) == []


def test_pgd_that_finds_it_with_less_is_not_masked() -> None:
    rival = score(MultiT(), 0.02, 5.0)
    overshot = [NOMINAL, score(PGD30, 0.01, 5.0), score(PGD30, 0.02, 19.0), rival]
    assert names(overshot) == ["bigger-budget-weaker"]
    assert names([NOMINAL, *overshot[2:], score(PGD30, 0.03, 5.0)]) == ["masking"]  # with more does not count


def test_weak_pgd() -> None:
    margin = APGD(objective=Margin())
    beaten = [NOMINAL, score(PGD30, 0.01, 20.0), score(PGD50, 0.01, 19.0), score(margin, 0.01, -8.0)]
    assert flags(beaten) == [Flag("weak-pgd", "APGD-100 margin (-8) beats PGD-50 x5 (19) at 0.01")]
    plain = score(APGD(), 0.01, 18.0)
    for pair in ([plain, beaten[3]], [beaten[3], plain]):  # the stronger is named, wherever it stands
        assert flags([*beaten[:3], *pair]) == flags(beaten)
    assert names([*beaten[:3], score(APGD(), 0.01, -8.0)]) == ["weak-pgd"]
    assert names([*beaten[:3], score(margin, 0.01, 18.5)]) == []  # not by much
    assert names([*beaten[:3], score(margin, 0.01, 10.0, returns=(19.0, 19.0, 19.0, -17.0))]) == []  # chance
    assert names([*beaten[:3], score(margin, 0.02, -8.0)]) == []  # at another budget


def test_small_differences_are_not_masking() -> None:
    assert names([NOMINAL, score(PGD30, 0.01, 15.0), score(Square(), 0.01, 14.5)]) == []


def test_few_courses() -> None:
    assert names([score(None, 0.0, 20.0, courses=3), score(PGD30, 0.01, 15.0, courses=4)]) == []
    repeated = [score(None, 0.0, 20.0, courses=2), score(PGD30, 0.01, 15.0, courses=1)]
    assert flags(repeated) == [Flag("few-courses", "the 4 episodes under PGD-30 at 0.01 took only 1 course")]
    assert flags(repeated[:1]) == [Flag("few-courses", "the 4 episodes without attack took only 2 courses")]
    few = dataclasses.replace(repeated[0], returns=(20.0, 20.0), courses=1)
    assert flags([few]) == []


def test_worse_than_the_start() -> None:
    start = [score(None, 0.0, 20.0), score(PGD30, 0.01, 5.0), score(PGD30, 0.02, 9.0)]
    agent = [score(None, 0.0, 20.0), score(PGD30, 0.01, 4.0), score(PGD30, 0.02, 8.0)]
    what = "it has 4 within 0.01 instead of 5; there the agent it started from is the better choice: a.safetensors"
    assert worse_than_start(agent, start, "a.safetensors") == [Flag("worse-than-start", what)]  # 0.02 says the same
    assert worse_than_start(start, agent, "a.safetensors") == []
    near = [start[0], score(PGD30, 0.01, 4.0, returns=(2.0, 4.0, 4.0, 6.0)), start[2]]  # [2.5, 5.5] and [4.95, 5.05]
    assert worse_than_start(near, start, "a.safetensors") == []
    few = [score(None, 0.0, 1.0, returns=(1.0, 1.0))]
    assert worse_than_start(few, start, "a.safetensors") == []
    same = [score(None, 0.0, 1.0, returns=(1.0, 1.0, 1.0))]  # no spread: a point
    assert "it has 1 without attack instead of 20" in worse_than_start(same, start, "a.safetensors")[0].message
    assert worse_than_start([score(PGD30, 0.03, 1.0)], start, "a.safetensors") == []  # judged at no budget in common


def test_no_effect() -> None:
    assert names([NOMINAL, score(PGD30, 0.01, 20.0, changed=0.0)]) == ["no-effect"]


def test_planning_wins() -> None:
    learned = Learned()
    won = [NOMINAL, score(PGD30, 0.01, 15.0), score(PGD50, 0.01, 12.0), score(learned, 0.01, -8.0)]
    what = "Learned (-8) beats PGD-50 x5 (12), the least that anything else left within 0.01"
    assert flags(won) == [Flag("planning-wins", what)]
    assert names([*won[:3], score(learned, 0.01, 11.9)]) == []  # not by much
    assert names([*won[:3], score(learned, 0.01, 0.0, returns=(12.0, 12.0, 12.0, -36.0))]) == []  # intervals meet
    assert names([*won[:3], score(PGD30, 0.005, -8.0), won[3]]) == ["bigger-budget-weaker"]  # less is as strong
    assert names([NOMINAL, won[3]]) == []  # nothing to beat
    spread = (-2.0, -2.0, 2.0, 2.0)  # a standard error of 1
    wide = [score(attack, 0.01, 12.0, returns=tuple(12 + d for d in spread)) for attack in (PGD30, PGD50)]
    for mean, raised in ((8.5, []), (7.5, ["planning-wins"])):  # [6.5, 10.5] meets [10, 14]; [5.5, 9.5] does not
        low = score(learned, 0.01, mean, returns=tuple(mean + d for d in spread))
        assert clearly_lower(low, wide[0], NOMINAL)  # by more than chance, 2 * sqrt(2)
        assert names([NOMINAL, *wide, low]) == raised
    assert names([*won[:3], score(learned, 0.01, -8.0, instead="Worst action-50")]) == []  # nothing was planned
    helped = [score(None, 0.0, -9.0, changed=0.0), *won[1:]]
    assert "planning-wins" not in names(helped)  # without attack the return is as low


def test_a_bigger_budget_that_hurts_less() -> None:
    assert names([NOMINAL, score(PGD30, 0.01, 5.0), score(PGD30, 0.02, 15.0)]) == ["bigger-budget-weaker"]


def test_more_effort_that_hurts_less() -> None:
    few, many = PGD(steps=10, step=0.1), PGD(steps=50, step=0.1)
    assert names([NOMINAL, score(few, 0.01, 5.0), score(many, 0.01, 15.0)]) == ["more-effort-weaker"]
    assert names([NOMINAL, score(PGD(steps=10, step=0.2), 0.01, 5.0), score(many, 0.01, 15.0)]) == []  # other step
    one, five = PGD(steps=50, step=0.1, random_start=True), PGD50
    assert names([NOMINAL, score(one, 0.01, 5.0), score(five, 0.01, 15.0)]) == ["more-effort-weaker"]


def test_a_survived_budget_of_one() -> None:
    assert names([*HEALTHY, score(PGD30, 1.0, -5.0)], FLOOR) == ["full-budget-survived"]


def test_a_budget_of_one_may_be_used_in_part() -> None:
    found = [NOMINAL, score(MultiT(), 0.02, -21.0), score(PGD30, 1.0, -5.0)]
    assert names(found, FLOOR) == []
    assert names([NOMINAL, *found[2:]], FLOOR) == ["full-budget-survived"]


def test_an_attack_that_helps() -> None:
    helped = [NOMINAL, score(PGD30, 0.01, 25.0), score(MultiT(), 0.01, 24.0)]
    what = "Multi-T 1000 (24), the worst attack at 0.01, leaves more than no attack (20)"
    assert flags(helped) == [Flag("attack-helps", what)]
    assert names([*helped, score(Square(), 0.01, 19.0)]) == ["masking"]  # one that does not is enough
    assert names([NOMINAL, score(PGD30, 0.01, 20.2)]) == ["attack-helps"]  # a little, and certainly
    assert names([NOMINAL, score(PGD30, 0.01, 20.05)]) == []  # within the intervals
    assert names([NOMINAL, score(PGD30, 0.01, 25.0, returns=(20.0, 20.0, 20.0, 40.0))]) == []  # chance


def test_too_few_episodes_prove_nothing() -> None:
    few = [
        dataclasses.replace(s, returns=s.returns[:2])
        for s in (NOMINAL, score(PGD30, 0.01, 5.0), score(PGD30, 0.02, 15.0))
    ]
    assert flags(few) == []


def test_a_stochastic_policy() -> None:
    assert names([NOMINAL, score(PGD30, 0.01, 15.0, stochastic=True)]) == ["stochastic-policy"]


def test_every_flag_has_its_paragraph() -> None:
    text = (Path(__file__).parents[2] / "docs" / "flags.md").read_text()
    source = (Path(__file__).parents[2] / "bcl" / "evaluation" / "flags.py").read_text()
    assert {*re.findall(r"^## ([a-z-]+)$", text, re.MULTILINE)} == {*EXPLAINED}  # the sentences of reports
    for name in {*re.findall(r'Flag\("([a-z-]+)"', source), *EXPLAINED}:
        section = text.split(f"## {name}\n")[1].split("\n## ")[0]
        for part in ("**Raised if**", "**Meaning**", "**Do**"):
            assert part in section, (name, part)
