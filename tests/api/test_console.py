"""What the terminal shows of work under way, and how Ctrl-C asks it to stop."""

import importlib
import io
import os
import re
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from bcl import experiment
from bcl.api import console
from bcl.config import resolve_stages
from bcl.curriculum_rules import INCUMBENT, Candidate, Decision, Phase
from bcl.experiment.status import Work, speeds, work_of
from bcl.reports import tables
from bcl.result import Table
from bcl.runs import store
from bcl.runs.directory import Piece, RunDirectory, StageFolder
from bcl.settings import parse_settings

Watching = tuple[list[float], list[str]]
"""The time, which tests set, and the lines that people see."""
LINE = (
    "the paper's run was stopped; continue with: bcl resume 'my runs/one' --device cpu; or give 'bcl train pong' anew"
)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_terminal_breaks_lines_between_words_and_what_is_copied_stays_whole(width: int) -> None:
    lines = console.folded(LINE, Console(file=io.StringIO(), force_terminal=True, width=width), 2).split("\n")
    assert len(lines) > 1
    assert " ".join(line.strip() for line in lines) == LINE
    assert all(line.startswith("  ") for line in lines[1:])
    copied = ("bcl resume 'my runs/one' --device cpu", "'bcl train pong'")
    assert all(any(command in line for line in lines) for command in copied)
    assert all(len(line) <= width or line.strip().startswith("bcl resume") for line in lines)


def test_without_a_terminal_no_line_is_broken_and_no_table_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.folded(LINE * 10, Console(file=io.StringIO(), width=80)) == LINE * 10
    name = "a-run-with-a-name-that-tells-all-of-its-settings"
    cells = (name, *["20 ± 0.35 [19.25, 20.75]"] * 12)
    tables.print_table(Table(LINE, ("agent", *map(str, range(12))), (cells,), notes=(LINE,)), console.out)
    title, *drawn, note = capsys.readouterr().out.splitlines()
    assert (title, note) == (LINE, LINE)
    assert [cell.strip() for cell in drawn[3].strip("│").split("│")] == [*cells]


def test_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view, folder = console.live(tmp_path), tmp_path / "stages" / "2-at" / "phases" / "003" / "run2"
    told = {"name": "phase 3 run 2", "doing": "training", "done": 1000, "of": 10_000}
    row = '{"step": 1, "return": 12.345, "eps": 0.05, "steps_per_second": 100.0}\n'
    for second in range(1, 62):
        now[0] = second
        store.write_json(folder / "progress.json", told | {"done": 100 * second})
        view.tick()
        store.write_text(folder / "metrics.jsonl", row)
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
    assert lines(tmp_path / "new") == ["the whole run: 0%, time left: not known yet", "choosing: 50%, nominal"]
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
    assert line.endswith(f"{timedelta(seconds=round(seconds))} left, about, at most")


@pytest.mark.parametrize(("rise_steps", "increments"), [(500, 6), (1500, 2), (5000, 0)])
def test_the_time_left_of_the_whole_has_the_choice_of_the_agent_and_the_verdict_in_it(
    tmp_path: Path, rise_steps: int, increments: int
) -> None:
    settings = parse_settings(["--dqn.steps=4000", "--curriculum.judged_by=pgd-30", "--evaluation.eps=0.03,0.06"])
    settings["curriculum"]["rise_steps"] = rise_steps
    stages = resolve_stages("acrobot", recipe="paced-at", settings=settings)
    experiment.create(tmp_path, stages, "cpu", None)
    vanilla, paced = RunDirectory(tmp_path).stages()
    train = {"name": "vanilla", "doing": "training", "done": 2000, "of": 4000}
    row = '{"step": 2000, "episodes": 20, "steps_per_second": 100.0, "share_act": 0.1}\n'
    store.write_text(vanilla.path / "metrics.jsonl", row)
    view = console.live(tmp_path)
    store.write_json(vanilla.path / "progress.json", train)
    [whole, _] = view._under_way()
    held = increments  # at most, in 4000 steps
    agents = (2 + held) * (1 + 2 * 30) + 2 * (1 + 2 * 10)  # start, those held and the last; then two for the verdict
    evaluating = 100 * agents * 16 * 0.1 / 100
    assert whole.seconds_left == pytest.approx(6000 / 100 + evaluating)
    assert whole.share == pytest.approx(20 / (80 + evaluating))
    store.remove(vanilla.path / "progress.json")
    for folder in (vanilla, paced.paced_run):
        store.write_json(folder.result_file, {"policy": "p"})
    [whole] = console.live(tmp_path)._under_way()  # nothing was held: there are two agents to choose from
    assert whole.seconds_left == pytest.approx(100 * (2 * 61 + 2 * 21) * 16 * 0.1 / 100)


def trains(stage: StageFolder, done: int) -> None:
    """A training run under way, at 100 steps a second."""
    told = {"name": stage.name, "doing": "training", "done": done, "of": stage.config.dqn.steps}
    store.write_json(stage.path / "progress.json", told)
    store.write_text(stage.path / "metrics.jsonl", '{"step": 1, "episodes": 1, "steps_per_second": 100.0}\n')


def test_the_time_left_is_of_all_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Work, "seconds", lambda work, speed, _: (work.steps / speed, work.most_steps / speed))
    stages = resolve_stages("acrobot", recipe="vanilla", settings=parse_settings(["--dqn.steps=4000"]))
    first, second, third = runs = [tmp_path / f"seed{seed}" for seed in range(3)]
    for run in runs:
        experiment.create(run, stages, "cpu", None)
    view = console.live(first, others=[second, third])
    trains(RunDirectory(first).stages()[0], 1000)
    [whole, _] = view._under_way()
    assert (whole.name, whole.numbers) == ("all 3 repeats", "about")
    assert whole.share == pytest.approx(1000 / 12_000)
    assert whole.seconds_left == pytest.approx(11_000 / 100)
    store.write_json(RunDirectory(first).stages()[0].result_file, {"policy": "p"})
    store.write_json(first / "result.json", {})
    [whole] = console.live(second, others=[first, third])._under_way()  # by the speed of the first, which has ended
    assert whole.seconds_left == pytest.approx(8000 / 100)


@pytest.mark.parametrize(
    ("limits", "runs"),
    [
        ([], None),
        (["--curriculum.max_runs=5"], 5),
        (["--curriculum.max_hours=2"], None),
    ],
)
def test_an_open_ended_curriculum_takes_at_most_what_it_is_allowed(
    tmp_path: Path, limits: list[str], runs: int | None
) -> None:
    settings = parse_settings(["--dqn.steps=4000", "--evaluation.eps=0.03", *limits])
    experiment.create(tmp_path, resolve_stages("cartpole", recipe="bcl-radial", settings=settings), "cpu", None)
    work = work_of(tmp_path, ())
    before = 2 * 4000  # vanilla, and RADIAL once
    assert (work and work.most_steps) == (runs and before + runs * 4000)
    assert work is None or work.at_most


def test_an_open_ended_curriculum_takes_as_many_runs_as_fit_into_its_hours(tmp_path: Path) -> None:
    settings = parse_settings(["--dqn.steps=4000", "--evaluation.eps=0.03", "--curriculum.max_hours=2"])
    experiment.create(tmp_path, resolve_stages("cartpole", recipe="bcl-radial", settings=settings), "cpu", None)
    stage = RunDirectory(tmp_path).stages()[-1]
    kept = Candidate(INCUMBENT, None, None, {})
    trained = (Candidate(1, True, 1.0, {}), Candidate(2, True, 2.0, {}))
    for index, candidates in ((0, (kept,)), (1, trained)):
        decision = Decision(
            Phase(index, 0.0, 0.02 * index, 3), (None, None), candidates, candidates[-1].run, index, (), index + 1, None
        )
        stage.phase(index).keep(decision, lambda: 2000.0)
    for run in (1, 2):
        store.write_json(stage.phase(1).run(run).result_file, {"policy": "p"})
    work = work_of(tmp_path, ())
    assert work
    # Two runs took 2000 s: after seven there are 200 s left, in which one more begins.
    assert work.most_steps == (2 + 8) * 4000


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_takes_the_starts_of_multi_many_at_a_time(tmp_path: Path, device: str) -> None:
    settings = parse_settings(["--evaluation.suite=paper", "--evaluation.eps=1/255", "--evaluation.score_eps=1/255"])
    stages = resolve_stages("pong", recipe="at", settings=settings)
    experiment.create(tmp_path, stages, device, None)
    [vanilla, _] = RunDirectory(tmp_path).stages()
    row = '{"step": 4000, "episodes": 4, "steps_per_second": 640.0, "share_act": 0.5}\n'
    store.write_text(vanilla.path / "metrics.jsonl", row)
    work = work_of(tmp_path, ())
    assert work
    # The start and the agent, each at its budgets, the target among them: PGD-30, RI-FGSM, Multi and Multi-T.
    budgets = len({1 / 255, stages[-1][1].curriculum.target})
    assert work.most_passes == 2 * (1 + budgets * (30 + 1 + 2 * (1000 if device == "cpu" else 84)))
    # A pass as long as acting of 128 copies, and 1000 steps an episode.
    assert speeds(tmp_path) == (640.0, 640 / (128 * 0.5) / 1000 if device == "cpu" else 5000 / 1000, True)


@pytest.mark.parametrize(
    ("episodes", "length"),
    [((16, 32), 2000 / 32), ((16, 1), 500), ((0, 0), 500)],
    ids=["all copies ended one", "one copy did", "none did"],
)
def test_episodes_are_taken_to_be_no_longer_than_they_can_be(
    tmp_path: Path, episodes: tuple[int, int], length: float
) -> None:
    experiment.create(tmp_path, resolve_stages("cartpole", recipe="radial"), "cpu", None)
    vanilla, radial = RunDirectory(tmp_path).stages()
    rows = [
        f'{{"step": {2000 * n}, "episodes": {ended}, "steps_per_second": 160.0, "share_act": 0.1}}\n'
        for n, ended in enumerate(episodes, 1)
    ]
    store.write_text(vanilla.path / "metrics.jsonl", "".join(rows))
    assert speeds(tmp_path) == pytest.approx((160.0, 100 / length, True))
    explores = '{"step": 2000, "episodes": 200, "steps_per_second": 160.0, "share_act": 0.1}\n'
    store.write_text(radial.path / "metrics.jsonl", explores)
    assert speeds(tmp_path) == pytest.approx((160.0, 100 / length, True))


def test_the_time_left_goes_by_how_fast_evaluations_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stages = resolve_stages("acrobot", recipe="vanilla", settings=parse_settings(["--dqn.steps=4000"]))
    experiment.create(tmp_path, stages, "cpu", None)
    [vanilla] = RunDirectory(tmp_path).stages()
    store.write_json(vanilla.result_file, {"policy": "p"})
    store.write_text(vanilla.path / "metrics.jsonl", '{"step": 4000, "episodes": 40, "steps_per_second": 100.0}\n')
    now[0] = -20.0
    view = console.live(tmp_path)
    view._under_way()  # while it trained
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
    now = [-30.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with console.progress() as bar:
        bar.start(13)
        train = bar.prepare("training the adversary")
        for second in range(31):
            now[0] = second - 30
            train(second, 40)
        report = bar.begin("PGD-30 at 3/255")
        for second in range(100):
            now[0] = second
            report(second, 1000)
        bar.finished("PGD-30 at 3/255: 21")
    assert capsys.readouterr().err.splitlines() == [
        "training the adversary: 75%, 0:00:10 left, 0 of 13 done",
        "PGD-30 at 3/255: 3% of all, 0:16:10 left, 0 of 13 done",
        "PGD-30 at 3/255: 6% of all, 0:15:40 left, 0 of 13 done",
        "PGD-30 at 3/255: 9% of all, 0:15:10 left, 0 of 13 done",
        "PGD-30 at 3/255: 21",
    ]


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines: list[str] = []
    monkeypatch.setattr(console, "say", lines.append)
    return now, lines


def test_the_time_left_goes_by_the_last_minute(watching: Watching) -> None:
    now, lines = watching
    report = console.progress().begin("PGD-10 at 0.1")
    for second in range(121):
        now[0] = second
        report(min(10 * second, 300) + max(0, second - 30), 1000)  # ten times as fast in the first 30 s
    assert [line.split(", ")[1] for line in lines] == ["0:01:10 left", "0:02:02 left", "0:10:40 left", "0:10:10 left"]


def test_a_training_that_fills_its_memory_tells_no_time_left(tmp_path: Path, watching: Watching) -> None:
    now, lines = watching
    stages = resolve_stages("acrobot", recipe="radial", settings=parse_settings(["--dqn.steps=4000"]))
    experiment.create(tmp_path, stages, "cpu", None)
    vanilla, radial = RunDirectory(tmp_path).stages()
    store.write_text(vanilla.path / "metrics.jsonl", '{"step": 4000, "updates": 9, "steps_per_second": 100.0}\n')
    store.write_json(vanilla.result_file, {"policy": "p"})
    view = console.live(tmp_path)
    for second in range(1, 130):
        now[0] = second
        if second == 60:  # it has filled its memory at 40 steps a second, and goes on at 8
            filled = '{"step": 2000, "updates": 0, "steps_per_second": 40.0}\n'
            store.write_text(radial.path / "metrics.jsonl", filled)
        if second == 80:
            rows = filled + '{"step": 2600, "updates": 9, "steps_per_second": 20.0}\n'
            store.write_text(radial.path / "metrics.jsonl", rows)
        done = 40 * min(second, 60) + 8 * max(0, second - 60)
        store.write_json(
            radial.path / "progress.json", {"name": "radial", "doing": "training", "done": done, "of": 4000}
        )
        view.tick()
    whole, piece = lines[::2], lines[1::2]
    assert [" left" in line for line in piece] == [False, False, True, True]
    assert ["time left: not known yet" in line for line in whole] == [True, True, False, False]
    assert [" left, about" in line for line in whole] == [False, False, True, True]
    assert piece[-1].startswith(f"radial: 72%, {timedelta(seconds=(4000 - 2400 - 8 * 60) // 8)} left")
    left = [datetime.strptime(line.split(", ")[1], "%H:%M:%S left") for line in (whole[-1], piece[-1])]
    assert left[0] >= left[1]  # of which it is a part


def test_the_time_left_is_known_soon_after_more_work_was_found(watching: Watching) -> None:
    now, lines = watching
    report = console.progress().begin("PGD-10 at 0.1")
    for second in range(121):
        now[0] = second
        report(second, 200 if second < 80 else 2000)
    lefts = [timedelta(seconds=seconds) for seconds in (200 - 30, 200 - 60, 2000 - 90, 2000 - 120)]
    assert [line.split(", ")[1] for line in lines] == [f"{left} left" for left in lefts]


def test_an_episode_longer_than_any_before_has_a_little_time_left(watching: Watching) -> None:
    now, lines = watching
    report = console.progress().begin("PGD-10 at 0.1")
    for second in range(301):
        now[0] = second
        report(second, max(100, round(1.1 * second)))  # as evaluations count it: a tenth more than there was
    assert [line.split(", ")[1] for line in lines][-3:] == ["0:00:24 left", "0:00:27 left", "0:00:30 left"]


def test_a_resumed_training_tells_no_time_left_before_its_first_row(tmp_path: Path, watching: Watching) -> None:
    now, lines = watching
    experiment.create(tmp_path, resolve_stages("acrobot", settings=parse_settings(["--dqn.steps=4000"])), "cpu", None)
    [vanilla] = RunDirectory(tmp_path).stages()
    before = '{"step": 1000, "updates": 9, "steps_per_second": 100.0}\n'
    store.write_text(vanilla.path / "metrics.jsonl", before)
    view = console.live(tmp_path)
    for second in range(1, 100):
        now[0] = second
        if second == 50:
            row = '{"step": 2000, "updates": 9, "steps_per_second": 20.0}\n'
            store.write_text(vanilla.path / "metrics.jsonl", before + row)
        done = 1000 + 20 * second
        store.write_json(
            vanilla.path / "progress.json", {"name": "vanilla", "doing": "training", "done": done, "of": 4000}
        )
        view.tick()
    pieces = [line for line in lines if line.startswith("vanilla: ")]
    assert [" left" in line for line in pieces] == [False, True, True]


@pytest.mark.parametrize("of", [10**18, 10**30])
def test_work_without_an_end_in_sight_has_years_left(watching: Watching, of: int) -> None:
    now, lines = watching
    report = console.progress().begin("PGD-10 at 0.1")
    for second in (0, 40):
        now[0] = second
        report(10**3 * second, of)
    assert lines == ["PGD-10 at 0.1: 0% of all, years left"]
    piece = Piece("vanilla", "training", 100, of, {"steps_per_second": 100.0})
    assert console.piece_line(piece).startswith("vanilla: 0%, years left")


def test_steps_beyond_what_a_float_holds_do_not_end_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    settings = parse_settings(["--dqn.steps=1e308"])
    experiment.create(tmp_path, resolve_stages("cartpole", recipe="at", settings=settings), "cpu", None)
    view = console.live(tmp_path)
    trains(RunDirectory(tmp_path).stages()[0], 1000)
    now[0] = 31.0
    view.tick()


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


def test_a_second_request_during_an_import_raises_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(console, "end_all", lambda message: said.append(message) or sys.exit())
    (tmp_path / "interrupted.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n" * 2)
    monkeypatch.syspath_prepend(tmp_path)
    with console.stop_requests("continue"), pytest.raises(SystemExit):
        importlib.import_module("interrupted")
    assert said == ["bcl: interrupted; continue\n"]
