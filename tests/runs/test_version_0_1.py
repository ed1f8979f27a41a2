"""Rows that version 0.1 stored, as rows of today."""

import pytest

from bcl.runs.version_0_1 import attack_of, current_flag, current_row


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"precision": "half"}, {"asked": "fast"}),
        ({"precision": "full"}, {"asked": "full"}),
        ({"prefixes": [3, 4]}, {"starts": "varied"}),
        ({"prefixes": []}, {"starts": "game"}),
        ({"policy": "f00d on cuda"}, {"agent": "f00d", "device": "cuda"}),
        ({"attack": "none"}, {"adversary": None}),
        ({"attack": "RIFGSM()", "adversary": {"kind": "Mine"}}, {"adversary": {"kind": "Mine"}}),
    ],
)
def test_what_an_older_row_lacks_follows_from_what_it_has(row: dict[str, object], expected: dict[str, object]) -> None:
    found = current_row(row)
    assert {name: found[name] for name in expected} == expected


def test_a_flag_is_read_from_its_text() -> None:
    flag = {"name": "masking", "message": "a: b"}
    assert current_flag("masking: a: b") == current_flag(flag) == flag


@pytest.mark.parametrize(
    "stored", [3, None, ["masking"], {"name": "masking"}, {"name": "a", "message": "b", "more": 1}]
)
def test_what_is_neither_is_no_flag(stored: object) -> None:
    with pytest.raises(TypeError, match="is not a flag"):
        current_flag(stored)


def test_an_attack_is_read_from_its_repr() -> None:
    assert attack_of("PGD(steps=30, objective=CrossEntropy(), sizes=(1, 2))") == {
        "kind": "PGD", "steps": 30, "objective": {"kind": "CrossEntropy"}, "sizes": (1, 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["Mine(actions={1, 2})", "Mine(weights=([1], 2))", "Mine(weights=[1])", "Mine(3)", "-" * 20_000 + "1", "no repr"],
)
def test_one_that_cannot_be_rebuilt_has_its_text_for_a_name(text: str) -> None:
    assert attack_of(text) == {"kind": text}


def test_what_is_no_text_is_no_attack() -> None:
    assert attack_of(["PGD()"]) == {}
