"""Names and frozen suites: changing one changes what published numbers mean."""

import pytest

from bcl.attacks import APGD, PGD, RIFGSM, SUITES, Learned, Square, attack_by_name, suite
from bcl.attacks.suites import ATTACK_NAMES
from bcl.errors import ConfigError

PAPER = [
    "PGD(steps=30, step=0.1, random_start=False, restarts=1, objective=CrossEntropy())",
    "RIFGSM(objective=CrossEntropy())",
    "Multi(starts=1000)",
    "MultiT(starts=1000)",
]
FROZEN = {
    "quick": ["PGD(steps=10, step=0.2, random_start=False, restarts=1, objective=CrossEntropy())"],
    "paper": PAPER,
    "strong": [
        *PAPER,
        "PGD(steps=50, step=0.1, random_start=True, restarts=5, objective=CrossEntropy())",
        "PGD(steps=50, step=0.1, random_start=True, restarts=5, objective=Margin())",
        "PGD(steps=50, step=0.1, random_start=True, restarts=5, objective=MinBest())",
        "WorstAction(steps=50, step=0.1, random_start=True)",
        "PGD(steps=50, step=0.1, random_start=True, restarts=1, objective=KL())",
        "APGD(steps=100, objective=CrossEntropy())",
        "APGD(steps=100, objective=Margin())",
        "Square(queries=500, area=0.8)",
    ],
}
FROZEN["learned"] = [*FROZEN["strong"], "Learned(training=60000)"]


def test_suites_are_frozen():
    assert {name: [repr(attack) for attack in attacks] for name, attacks in SUITES.items()} == FROZEN
    assert suite("paper") is SUITES["paper"]


@pytest.mark.parametrize("attack", SUITES["learned"], ids=repr)
def test_labels_are_unambiguous_and_attacks_cannot_change(attack):
    assert [repr(other) for other in SUITES["learned"]].count(repr(attack)) == 1
    with pytest.raises(AttributeError):
        attack.training = 1


def test_attacks_by_name():
    assert attack_by_name("pgd-30") == attack_by_name("pgd") == PGD(steps=30, step=0.1)
    assert attack_by_name("pgd-10") == SUITES["quick"][0]
    assert attack_by_name("apgd-20") == APGD(steps=20)
    assert attack_by_name("pgd-1") == PGD(steps=1, step=1.0)
    assert attack_by_name("ri-fgsm") == RIFGSM()
    assert attack_by_name("apgd") == APGD()
    assert attack_by_name("square") == Square()
    assert attack_by_name("learned-20000") == Learned(training=20_000)
    assert len({repr(attack_by_name(name)) for name in ATTACK_NAMES}) == len(ATTACK_NAMES)


@pytest.mark.parametrize(
    ("lookup", "name", "hint"),
    [
        (suite, "papr", "did you mean 'paper'"),
        (attack_by_name, "pgd-30x", "did you mean 'pgd-30'"),
        (attack_by_name, "PGD-50", "did you mean 'pgd-50'"),
        (attack_by_name, "apgd-20x", "did you mean 'apgd-20'"),
        (attack_by_name, "learnt-500", "did you mean 'learned-1000'"),
        (attack_by_name, "fgsm-3", "did you mean 'fgsm'"),
        (suite, "xyz", "one of quick, paper, strong"),
        (attack_by_name, "rifgsm", "did you mean 'ri-fgsm'"),
        (attack_by_name, "PGD30", "did you mean 'pgd"),
        (attack_by_name, "pgd-0", "1 to 9999 steps"),
        (attack_by_name, "zzzzzz", "one of apgd"),
    ],
)
def test_unknown_names_get_a_way_out(lookup, name, hint):
    with pytest.raises(ConfigError, match=hint):
        lookup(name)
