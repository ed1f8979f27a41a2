"""The examples run, each in this process as `python examples/NAME.py` would run it: importing takes longer than most of
them."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from bcl.cli.main import main
from bcl.runs import store

ROOT = Path(__file__).parents[1]
Run = Callable[..., str]
pytestmark = pytest.mark.usefixtures("short_games")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example in an empty folder; gives what it and the commands that it starts printed."""
    monkeypatch.chdir(tmp_path)
    start = subprocess.run

    def here(words: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        if words[:3] != [sys.executable, "-m", "bcl"]:
            return start(words, **options)
        with pytest.raises(SystemExit) as ended:
            main(words[3:])
        return subprocess.CompletedProcess(words, int(ended.value.code or 0))

    monkeypatch.setattr(subprocess, "run", here)

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        known = {*gymnasium.registry}
        try:
            runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        finally:
            for game in {*gymnasium.registry} - known:  # a new process would not know it
                del gymnasium.registry[game]
        return capsys.readouterr().out

    return run


def test_the_demo_runs_and_draws(tmp_path: Path, run: Run) -> None:
    words = ["--quick", "--parallel", "1", "--out", "run"]
    done = run("demo.py", *words)
    assert "a quick look, not the paper's protocol" in done
    assert "worst return within each budget, 1 episode " in " ".join(done.split())  # the title may be broken into lines
    assert (tmp_path / "run" / "demo" / "return-against-budget.png").stat().st_size > 10_000
    report = (tmp_path / "run" / "report.html").read_text()
    assert "start (vanilla), worst within" in report
    assert "its start (vanilla) has" in re.search(r"<h1>.*?</ul>", report, re.DOTALL)[0]  # type: ignore[index]
    assert "start (vanilla), crown-ibp" in report
    # Certificates are of the episodes of the table.
    scores = store.read_metrics(tmp_path / "run" / "evals" / "scores.jsonl")
    [proof] = store.read_metrics(tmp_path / "run" / "certs" / "certificates.jsonl")
    assert (proof["seed"], proof["nominal"]) in {(s["seed"], s["mean"]) for s in scores if s["attack"] == "none"}
    assert "Nothing has been proven" not in report
    again = run("demo.py", *words)  # finished: read, not done again
    assert again.splitlines()[-6:] == done.splitlines()[-6:]


def test_an_agent_at_the_floor_has_nothing_of_which_a_share_could_be_kept() -> None:
    cell = runpy.run_path(str(ROOT / "examples" / "demo.py"))["cell"]
    assert cell({0.0: -500.0, 0.05: -500.0}, 0.05, floor=-500.0) == "-500"
    assert cell({0.0: -100.0, 0.05: -300.0}, 0.05, floor=-500.0) == "-300  (50%)"


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
