"""Where the results of an agent lie, and how rows of them are stored."""

from pathlib import Path

import pytest

from bcl.errors import StoreError
from bcl.runs import store
from bcl.runs.directory import RunDirectory
from bcl.runs.results import Results, RowsFolder, ScoresFolder


def test_results_lie_in_the_run_or_beside_the_policy_file(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).results.path == tmp_path
    beside = Results.beside(tmp_path / "agent.safetensors")
    assert beside.path == tmp_path / "agent.results"
    inside = {
        beside.scores.path: "evals",
        beside.certificates.path: "certs",
        beside.search.path: "breaking",
        beside.videos: "videos",
        beside.frames_file: "frames.npz",
        beside.report: "report.html",
        beside.scores.adversary(10 / 255, "f00d").path: "evals/learned-at-10-255-f00d",
    }
    assert {path.relative_to(beside.path).as_posix(): name for path, name in inside.items()} == {
        name: name for name in inside.values()
    }
    assert beside.searches.path == beside.search.path
    assert beside.search.certificates == beside.scores.certificates == beside.certificates


@pytest.mark.parametrize("name", ["scores", "certificates", "searches"])
def test_rows_of_all_processes_are_read_and_joined(tmp_path: Path, name: str) -> None:
    folder: RowsFolder = getattr(Results(tmp_path), name)
    folder.append({"agent": "a", "n": 0})
    folder.append({"agent": "b", "n": 1}, part=0)
    folder.append({"agent": "a", "n": 2}, part=1)
    store.write_json(folder.progress(1), {"done": 1, "of": 2, "agent": ""})
    found = [(source, row["n"]) for source, row in folder.read("a")]
    assert found == [
        (f"line 1 of '{folder.path / f'{name}-1.jsonl'}'", 2),
        (f"line 1 of '{folder.path / f'{name}.jsonl'}'", 0),
    ]
    folder.gather()
    assert [row["n"] for _, row in folder.read("")] == [0, 1, 2]
    assert sorted(path.name for path in folder.path.iterdir()) == ["1-progress.json", f"{name}.jsonl"]


def test_rows_of_version_0_1_are_a_file_each(tmp_path: Path) -> None:
    results = Results(tmp_path)
    store.write_json(results.scores.path / "eps-0-1-pgd-1234abcd.json", {"policy": "a on cpu"})
    store.write_json(results.scores.path / "verdict.json", {"policy": "a on cpu"})  # no score
    store.write_json(results.certificates.path / "ibp-0.1.json", {"policy": "a on cpu"})
    for folder in (results.scores, results.certificates):
        assert [(row["agent"], row["device"]) for _, row in folder.read("a")] == [("a", "cpu")]
        assert [*folder.read("b")] == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "evals").touch()
    with pytest.raises(StoreError, match="copy it to a folder that you may write to"):
        Results(tmp_path).scores.check_writable()
    ScoresFolder(tmp_path / "new").check_writable()
    assert [*(tmp_path / "new").iterdir()] == []
