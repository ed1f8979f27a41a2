"""The examples run, each in this process as `python examples/NAME.py` would run it: importing takes longer than most of them."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest

from bcl.runs import store

ROOT = Path(__file__).parents[1]
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run an example in an empty folder; gives what it and its processes printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        known = {*gymnasium.registry}
        try:
            runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        finally:
            for game in {*gymnasium.registry} - known:  # a new process would not know it
                del gymnasium.registry[game]
        return capfd.readouterr().out

    return run


def test_the_demo_runs_and_draws(tmp_path: Path, run: Run) -> None:
    words = ["--quick", "--parallel", "1", "--out", "run"]
    done = run("demo.py", *words)
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
    again = run("demo.py", *words)  # finished: read, not done again
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
def test_an_example_runs_and_what_it_trained_is_read_again(
    tmp_path: Path, run: Run, name: str, words: list[str], said: list[str]
) -> None:
    first = run(name, *words)
    for phrase in said:
        assert phrase in first
    if any(tmp_path.iterdir()):
        assert run(name, *words).splitlines()[-3:] == first.splitlines()[-3:]


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in (ROOT / "examples").glob("*.py") if path.name not in text] == []
