"""An attack is stored as its kind and fields, and rebuilt from them."""

import importlib
import json
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Generator

from bcl.attacks import (
    FGSM,
    KL,
    PGD,
    SUITES,
    Attack,
    CornerNoise,
    Learned,
    LowestScored,
    Margin,
    MixedPGD,
    Multi,
    MultiT,
    OwnValue,
    Square,
    UniformNoise,
    attack_from_dict,
    attack_label,
    attack_labels,
    attack_to_dict,
    lacks_source,
    perturb,
    rank,
    recorded,
)
from bcl.attacks.records import OtherAttack
from bcl.errors import BclError, ConfigError
from bcl.runs.version_0_1 import attack_of

OURS: list[Attack] = [
    *SUITES["learned"],
    *(FGSM(KL()), UniformNoise(), CornerNoise(), PGD(3, 0.5, objective=OwnValue()), LowestScored()),
    MixedPGD(3, 0.5, random_start=False, large_steps=0.25),
]


@dataclass(frozen=True)
class Flip:
    rate: float = 0.5
    objective: object = KL()

    def __call__(self, policy, obs, eps, generator):
        return obs


@pytest.mark.parametrize("attack", OURS, ids=repr)
def test_every_attack_is_rebuilt_from_what_is_stored(attack: Attack) -> None:
    data = json.loads(json.dumps(attack_to_dict(attack)))
    assert attack_from_dict(data) == attack
    assert data["kind"] == type(attack).__name__


@pytest.mark.parametrize("attack", OURS, ids=repr)
def test_the_repr_that_version_0_1_stored_is_read(attack: Attack) -> None:
    assert attack_from_dict(attack_of(repr(attack))) == attack


def test_no_attack_of_version_0_1() -> None:
    assert attack_of("none") is None


def test_what_does_not_matter_to_the_result_is_not_stored() -> None:
    assert recorded(Multi(starts=5, chunk=64)) == Multi(starts=5)
    assert recorded(Learned(found=FGSM())) == Learned()
    assert recorded(None) is None


def test_an_attack_of_ones_own_is_known_by_its_name_and_fields() -> None:
    stored = recorded(Flip(0.25))
    assert isinstance(stored, OtherAttack)
    assert stored.kind == f"{__name__}:Flip"
    assert (attack_label(stored), recorded(stored)) == ("Flip", stored)
    assert stored == recorded(Flip(0.25)) != recorded(Flip(0.5))
    assert repr(stored) == "Flip(rate=0.25, objective=KL())"
    with pytest.raises(BclError, match="known by its name alone"):
        perturb(stored, torch.nn.Identity(), torch.zeros(1, 2), 0.1, Generator())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "label"), [("Flip(steps=3, rate=0.5)", "Flip-3"), ("PGD(knots=3)", "PGD"), ("<odd>", "<odd>")]
)
def test_what_cannot_be_rebuilt_keeps_its_name(text: str, label: str) -> None:
    found = attack_from_dict(attack_of(text))
    assert isinstance(found, OtherAttack)
    assert attack_label(found) == label
    assert attack_from_dict(attack_to_dict(found)) == found


@pytest.mark.parametrize(
    ("attack", "label"),
    [
        (None, "no attack"),
        (PGD(steps=30, step=0.1), "PGD-30"),
        (PGD(steps=50, step=0.1, random_start=True, restarts=5, objective=Margin()), "PGD-50 x5 margin"),
        (MultiT(starts=1000), "Multi-T 1000"),
        (Square(queries=500, area=0.8), "Square 500"),
    ],
)
def test_attacks_have_short_names(attack: Attack | None, label: str) -> None:
    assert attack_label(attack) == label


def test_the_paper_s_attacks_stand_first() -> None:
    ranks = [rank(attack) for attack in SUITES["paper"]]
    assert ranks == sorted(ranks)
    others = [rank(attack) for attack in (*SUITES["strong"][len(ranks) :], recorded(Flip()))]
    assert max(ranks) < max(others) == rank(recorded(Flip()))


@dataclass(frozen=True)
class Masked:
    """An attack whose field would stand where its class is named."""

    kind: str = "FGSM"

    def __call__(self, policy, obs, eps, generator):
        return obs


def test_an_attack_cannot_be_stored_as_another() -> None:
    with pytest.raises(ConfigError, match=r"Masked has a field 'kind'.*rename the field"):
        attack_to_dict(Masked())


def own_attack(folder: Path, name: str, source: str) -> Attack:
    """An object of class A of a module with this source, imported anew."""
    (folder / f"{name}.py").write_text(source)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    linecache.clearcache()
    return importlib.import_module(name).A()


A = """from dataclasses import dataclass

@dataclass(frozen=True)
class A:
    def __call__(self, policy, obs, eps, generator):
        return obs + eps
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit within a second would not be seen
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_an_edited_attack_is_another(modules: Path) -> None:
    first = recorded(own_attack(modules, "first", A))
    assert recorded(own_attack(modules, "first", A)) == first
    edited = recorded(own_attack(modules, "first", A.replace("+", "-")))
    assert edited != first
    assert attack_from_dict(json.loads(json.dumps(attack_to_dict(edited)))) == edited
    assert len({*attack_labels([first, edited]).values()}) == 2


def test_attacks_of_one_name_are_told_apart(modules: Path) -> None:
    one, other = (recorded(own_attack(modules, name, A)) for name in ("one", "other"))
    assert attack_labels([None, one, PGD(30, 0.1)]) == {None: "no attack", one: "A", PGD(30, 0.1): "PGD-30"}
    assert [*attack_labels([one, other, None, one]).values()] == ["one:A", "other:A", "no attack"]
    fields = [recorded(Flip(0.25)), recorded(Flip(0.5))]
    assert [*attack_labels(fields).values()] == [f"{__name__}:{attack}" for attack in fields]
    ours = [PGD(30, 0.1), PGD(30, 0.2)]
    assert [*attack_labels(ours).values()] == [*map(repr, ours)]


def test_an_attack_without_source_says_so() -> None:
    space: dict[str, object] = {"__name__": "typed_in"}
    exec(A, space)
    typed_in = space["A"]()  # type: ignore[operator]
    assert lacks_source(typed_in)
    assert lacks_source(PGD(3, 0.5, objective=typed_in))
    assert not any(map(lacks_source, (None, Flip(), PGD(3, 0.5), recorded(Flip()))))


def test_a_cell_of_a_notebook_is_a_source() -> None:
    cell = "<a cell of a notebook>"
    linecache.cache[cell] = (len(A), None, A.splitlines(keepends=True), cell)
    space: dict[str, object] = {"__name__": "a notebook"}
    exec(compile(A, cell, "exec"), space)
    assert not lacks_source(space["A"]())  # type: ignore[operator]


def test_an_attack_with_an_objective_is_stored_again_as_it_was_read() -> None:
    stored = recorded(Flip())
    assert json.loads(json.dumps(attack_to_dict(stored))) == attack_to_dict(Flip())
