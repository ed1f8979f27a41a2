"""What the terminal shows of work under way, and how Ctrl-C asks it to stop."""

import io
import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from bcl import experiment
from bcl.api import console
from bcl.config import resolve_stages
from bcl.experiment.status import training_left
from bcl.runs import store
from bcl.runs.directory import RunDirectory
from bcl.settings import parse_settings


def test_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view, folder = console.live(tmp_path), tmp_path / "stages" / "2-at" / "phases" / "003" / "run2"
    told = {"name": "phase 3 run 2", "doing": "training", "done": 1000, "of": 10_000}
    store.write_text(
        folder / "metrics.jsonl", '{"step": 1, "return": 12.345, "eps": 0.05, "steps_per_second": 100.0}\n'
    )
    for second in range(1, 62):
        now[0] = second
        store.write_json(folder / "progress.json", told | {"done": 100 * second})
        view.tick()
    store.write_json(folder / "progress.json", told | {"doing": "nominal", "done": 1, "of": 2})
    now[0] = 95
    view.tick()
    assert capsys.readouterr().err.splitlines() == [
        "phase 3 run 2: 30%, 0:01:10 left, training 3,000 of 10,000, return 12.35, eps 0.05, 100 steps/s",
        "phase 3 run 2: 60%, 0:00:40 left, training 6,000 of 10,000, return 12.35, eps 0.05, 100 steps/s",
        "phase 3 run 2: 50%, nominal",
    ]


def test_the_time_left_of_the_whole_is_shown_while_a_curriculum_judges_its_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    settings = parse_settings(["--dqn.steps=4000", "--bootstrap=vanilla"])
    stages = resolve_stages("cartpole", recipe="bcl-mos-at", settings=settings)
    told = {"name": "choosing", "doing": "nominal", "done": 1, "of": 2}

    def lines(run: Path) -> list[str]:
        view = console.live(run)
        store.write_json(run / "stages" / "2-at" / "evals" / "0-progress.json", told)
        now[0] += 31.0
        view.tick()
        return capsys.readouterr().err.splitlines()

    experiment.create(tmp_path / "new", stages, "cpu", None)
    assert lines(tmp_path / "new") == ["all training: 0%, time left: once a run trains", "choosing: 50%, nominal"]
    experiment.create(tmp_path / "resumed", stages, "cpu", None)
    vanilla = RunDirectory(tmp_path / "resumed").stages()[0]
    store.write_json(vanilla.result_file, {"policy": "p"})
    store.write_text(vanilla.path / "metrics.jsonl", '{"step": 4000, "steps_per_second": 100.0}\n')
    _, most = training_left(tmp_path / "resumed", []) or (0, 0)
    left = timedelta(seconds=(most - 4000) / 100)
    assert lines(tmp_path / "resumed")[0] == f"all training: {4000 / most:.0%}, {left} left, at most"


def test_a_long_evaluation_tells_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with console.progress() as bar:
        bar.start(13)
        report = bar.begin("PGD-30 at 3/255")
        for second in range(100):
            now[0] = second
            report(second, 1000)
        bar.finished("PGD-30 at 3/255: 21")
    assert capsys.readouterr().err.splitlines() == [
        "PGD-30 at 3/255: 3% of all, 0:16:10 left, 0 of 13 done",
        "PGD-30 at 3/255: 6% of all, 0:15:40 left, 0 of 13 done",
        "PGD-30 at 3/255: 9% of all, 0:15:10 left, 0 of 13 done",
        "PGD-30 at 3/255: 21",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_what_how_far_and_how_long_in_one_line(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=screen, force_terminal=True, width=width))
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar = console.progress()
    bar.start(130)
    report = bar.begin("start (vanilla): PGD-50 x5 margin at 10/255 and 13 more")
    report(0, 1000)
    now[0] = 10.0
    report(20, 1000)
    with console.err.capture() as shown:
        console.err.print(bar.drawn)
    [line] = shown.get().splitlines()
    plain = re.sub("\x1b[^m]*m", "", line)
    assert plain.startswith("start (vanilla): PGD-50 x5 marg\N{HORIZONTAL ELLIPSIS}   2% 0:08:10 left")
    assert len(plain.rstrip()) <= width


def test_a_second_request_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with console.stop_requests() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
