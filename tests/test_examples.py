"""The examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bcl.runs import store

ROOT = Path(__file__).parents[1]


def run(name: str, folder: Path, *words: str) -> str:
    script = [sys.executable, str(ROOT / "examples" / name), *words]
    done = subprocess.run(script, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_runs_and_draws(tmp_path: Path) -> None:
    words = ["--quick", "--parallel", "1", "--out", "run"]
    done = run("demo.py", tmp_path, *words)
    assert "a quick look, not the paper's protocol" in done
    assert "worst return within each budget, 1 episode " in " ".join(done.split())  # the title may be broken into lines
    assert not re.search(r"\d{4,}%", done)  # an agent at the floor has nothing of which a share could be kept
    assert (tmp_path / "run" / "demo" / "return-against-budget.png").stat().st_size > 10_000
    report = (tmp_path / "run" / "report.html").read_text()
    assert "start (vanilla), worst within" in report
    assert "its start (vanilla) has" in re.search(r"<h1>(.*?)</h1>", report, re.DOTALL)[1]  # type: ignore[index]
    assert "start (vanilla), crown-ibp" in report
    # Certificates are of the episodes of the table.
    scores = store.read_metrics(tmp_path / "run" / "evals" / "scores.jsonl")
    [proof] = store.read_metrics(tmp_path / "run" / "certs" / "certificates.jsonl")
    assert (proof["seed"], proof["nominal"]) in {(s["seed"], s["mean"]) for s in scores if s["attack"] == "none"}
    assert "Nothing has been proven" not in report
    again = run("demo.py", tmp_path, *words)  # finished: read, not done again
    assert "'run' is finished" in again
    assert again.splitlines()[-6:] == done.splitlines()[-6:]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "five_lines.py",
            ["--quick"],
            ["no attack:", "RI-FGSM at 0.06", "worst within 0.06", "crown at 0.01: ACR", "report.html"],
        ),
        ("own_agent.py", [], ["at 0.1 the worst attack leaves", "crown-ibp at 0.01: ACR"]),
        ("own_game.py", ["--quick"], ["no attack: ", "crown at 0.01: ACR"]),
        ("walkthrough.py", ["--quick"], ["turns the action in", "phase 1 up to 0.02", "curriculum:", "ACR"]),
    ],
)
def test_an_example_runs_and_runs_again(tmp_path: Path, name: str, words: list[str], said: list[str]) -> None:
    first, again = run(name, tmp_path, *words), run(name, tmp_path, *words)
    for phrase in said:
        assert phrase in first
    assert again.splitlines()[-3:] == first.splitlines()[-3:]


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in (ROOT / "examples").glob("*.py") if path.name not in text] == []
