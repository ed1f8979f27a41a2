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
    assert lines(tmp_path / "new") == ["the whole run: 0%, time left: once a run trains", "choosing: 50%, nominal"]
    experiment.create(tmp_path / "resumed", stages, "cpu", None)
    vanilla = RunDirectory(tmp_path / "resumed").stages()[0]
    store.write_json(vanilla.result_file, {"policy": "p"})
    row = '{"step": 4000, "episodes": 40, "steps_per_second": 100.0, "share_act": 0.1}'
    store.write_text(vanilla.path / "metrics.jsonl", row + "\n")
    line = lines(tmp_path / "resumed")[0]
    runs = 1 + 3 * 3  # of the vanilla agent, and three at each of 0.02, 0.04 and 0.06
    # PGD-30 judges the start and all runs at two budgets; the verdict is on two agents under PGD-10 at three; episodes
    # have 100 steps.
    passes = (runs - 0.5) * (1 + 2 * 30) + 2 * (1 + 3 * 10)
    copies = stages[0][1].dqn.num_envs
    seconds = (runs - 1) * 4000 / 100 + 100 * passes * copies * 0.1 / 100
    assert line.endswith(f"{timedelta(seconds=round(seconds))} left, about")


def test_the_time_left_of_the_whole_has_the_choice_of_the_agent_and_the_verdict_in_it(tmp_path: Path) -> None:
    settings = parse_settings(["--dqn.steps=4000", "--curriculum.judged_by=pgd-30", "--evaluation.eps=0.03,0.06"])
    stages = resolve_stages("acrobot", recipe="paced-at", settings=settings)
    experiment.create(tmp_path, stages, "cpu", None)
    vanilla, paced = RunDirectory(tmp_path).stages()
    train = {"name": "vanilla", "doing": "training", "done": 2000, "of": 4000}
    row = '{"step": 2000, "episodes": 20, "steps_per_second": 100.0, "share_act": 0.1}\n'
    store.write_text(vanilla.path / "metrics.jsonl", row)
    view = console.live(tmp_path)
    store.write_json(vanilla.path / "progress.json", train)
    [whole, _] = view._under_way()
    agents = 8 * (1 + 2 * 30) + 2 * (1 + 2 * 10)  # start, six increments and the last; then two for the verdict
    evaluating = 100 * agents * 16 * 0.1 / 100
    assert whole.seconds_left == pytest.approx(6000 / 100 + evaluating)
    assert whole.share == pytest.approx(20 / (80 + evaluating))
    store.remove(vanilla.path / "progress.json")
    for folder in (vanilla, paced.paced_run):
        store.write_json(folder.result_file, {"policy": "p"})
    [whole] = console.live(tmp_path)._under_way()  # nothing was held: there are two agents to choose from
    assert whole.seconds_left == pytest.approx(100 * (2 * 61 + 2 * 21) * 16 * 0.1 / 100)


def test_the_time_left_goes_by_how_fast_evaluations_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stages = resolve_stages("acrobot", recipe="vanilla", settings=parse_settings(["--dqn.steps=4000"]))
    experiment.create(tmp_path, stages, "cpu", None)
    [vanilla] = RunDirectory(tmp_path).stages()
    store.write_json(vanilla.result_file, {"policy": "p"})
    store.write_text(vanilla.path / "metrics.jsonl", '{"step": 4000, "episodes": 40, "steps_per_second": 100.0}\n')
    view = console.live(tmp_path)
    left = []
    for second, done in ((0, 0), (10, 20), (60, 120)):
        now[0] = second
        told = {"name": "verdict", "doing": "nominal", "done": done, "of": 200}
        store.write_json(tmp_path / "evals" / "0-progress.json", told)
        whole, _ = view._under_way()
        left.append(whole.seconds_left)
    by_acting = 100 * 16 / 100  # one pass in each of 100 steps
    assert left == pytest.approx([by_acting, 90, 40])


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
