"""How many functions of this package lie between `bcl attack` and the stored score."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import bcl as package
from bcl.runs import store

MOST = 10


def frames() -> Iterator[str]:
    """Functions of this package that are being run."""
    frame: FrameType | None = sys._getframe(1)
    ours = str(Path(package.__file__).parent)
    while frame:
        if frame.f_code.co_filename.startswith(ours):
            yield frame.f_code.co_qualname
        frame = frame.f_back


def test_few_frames_from_the_command_to_the_stored_score(bcl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, found = store.append_row, list[list[str]]()

    def counted(path: Path, row: dict[str, object]) -> None:
        found.append([*frames(), append.__name__])
        append(path, row)

    monkeypatch.setattr(store, "append_row", counted)
    assert bcl("attack", "p.safetensors", "--eps", "0.1", "--episodes", "1")[0] == 0
    assert len(found) == 2  # without attack, and PGD-10
    for names in found:
        assert "evaluate" in names
        assert len(names) <= MOST, names
