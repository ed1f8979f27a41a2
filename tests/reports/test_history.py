"""Timeline and learning curves of a report, against files written by hand."""

from pathlib import Path

from bcl.reports import figures
from bcl.reports.collect import collect
from bcl.reports.history import Curve, Skip, TimelineBar, effort
from bcl.reports.page import page
from bcl.runs import store
from bcl.runs.directory import times
from tests.reports.conftest import metrics


def levels(*whole: int) -> list[float]:
    return [level / 255 for level in whole]


def test_the_timeline(pong_run: Path) -> None:
    timeline = collect(pong_run).timeline
    assert timeline is not None
    e3, e5, e6, e7, e25 = levels(3, 5, 6, 7, 25)
    assert timeline.bars == [
        TimelineBar(0, 1, 1, 0.0, 0.0, 40.0, "kept", False),
        TimelineBar(0, 1, 1, 1 / 255, 40.0, 80.0, "kept", False),
        TimelineBar(3, 1, 2, e6, 90.0, 110.0, "not kept", False),
        TimelineBar(3, 2, 2, e6, 110.0, 135.0, "kept", False),
        TimelineBar(4, 1, 3, e7, 140.0, 180.0, "kept", True),
        TimelineBar(4, 2, 3, e7, 140.0, 182.0, "not kept", False),
        TimelineBar(4, 3, 3, e7, 178.0, 183.0, "diverged", False),
    ]
    assert timeline.skips == [Skip(90.0, e3, e5), Skip(190.0, e7, e25)]
    assert timeline.target == e25


def test_runs_beside_the_one_that_ended_a_phase_are_drawn(pong_run: Path) -> None:
    phase = pong_run / "stages/3-at/phases/003"  # decided after 60 s of the stage, which begins at 80
    for k, seconds in ((3, 18.0), (4, 300.0)):  # one was done, the other cancelled
        metrics(phase / f"run{k}", [(100, 19.0, 100 / seconds)])
    store.write_json(phase / "run3/result.json", {"policy": "phase3run3"})
    timeline = collect(pong_run).timeline
    assert timeline is not None
    third = [bar for bar in timeline.bars if bar.phase == 3]
    assert [(bar.run, bar.of, bar.state) for bar in third] == [
        *((1, 4, "not kept"), (2, 4, "kept"), (3, 4, "not needed"), (4, 4, "not needed"))
    ]
    assert [(bar.start, bar.end) for bar in third] == [(90, 110), (110, 135), (122, 140), (90, 140)]
    assert [curve.kept for curve in timeline.panels[2].curves] == [False, True, False, False]
    assert effort(pong_run).runs == 5  # the paper's count
    figure = figures.timeline(timeline, 860)
    assert "run, not needed" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "hatched: runs beside it that were not needed" in page(collect(pong_run))


def test_of_version_0_1_a_run_began_as_long_before_its_end_as_it_trained(pong_run: Path) -> None:
    phase = pong_run / "stages/3-at/phases/003"
    for k, end in ((1, 30.0), (2, 55.0)):
        store.write_json(phase / f"run{k}/result.json", {"policy": f"phase3run{k}"})
        store.write_json(phase / f"clock-after-run{k}.json", {"seconds": end})
    timeline = collect(pong_run).timeline
    assert timeline is not None
    third = [(bar.start, bar.end) for bar in timeline.bars if bar.phase == 3]
    assert third == [(80 + 30 - 15, 110), (80 + 55 - 20, 135)]


def test_a_run_that_was_resumed_is_drawn_without_the_time_between(pong_run: Path) -> None:
    at = pong_run / "stages/3-at"
    store.write_json(at / "clock.json", {"seconds": 110.0, "sessions": [[1000.0, 0.0], [5000.0, 30.0]]})
    store.write_json(at / "phases/003/run2/result.json", {"policy": "a", "began": 1028.0, "ended": 5020.0})
    timeline = collect(pong_run).timeline
    assert timeline is not None
    assert [(bar.start, bar.end) for bar in timeline.bars if (bar.phase, bar.run) == (3, 2)] == [(108, 130)]


def test_runs_that_missed_their_thresholds_are_marked(pong_run: Path) -> None:
    path = pong_run / "stages/3-at/phases/003/decision.json"
    stored = store.read_json(path)
    stored["decision"]["candidates"][1]["met"] = False
    store.write_json(path, stored)
    timeline = collect(pong_run).timeline
    assert timeline is not None
    assert [(bar.phase, bar.run) for bar in timeline.bars if bar.missed] == [(3, 2)]
    figure = figures.timeline(timeline, 860)
    assert "missed its thresholds" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "a cross: it missed the thresholds" in page(collect(pong_run))


def test_learning_curves(pong_run: Path) -> None:
    timeline = collect(pong_run).timeline
    assert timeline is not None
    assert [panel.title for panel in timeline.panels] == [
        *("vanilla", "radial", "phase 3: 5 to 6/255", "phase 4: 6 to 7/255")
    ]
    vanilla, _, third, _ = timeline.panels
    assert (vanilla.curves[0].steps, vanilla.curves[0].returns) == ((200.0, 400.0), (-20.0, 20.0))
    assert [(curve.kept, curve.returns) for curve in third.curves] == [(False, (18.0, 12.0)), (True, (18.0, 20.0))]


def curve_of(pong_run: Path, rows: list[dict[str, float]]) -> Curve:
    """Of the first stage, with these rows of metrics alone."""
    (pong_run / "stages/1-vanilla/metrics.jsonl").unlink()
    for row in rows:
        store.append_row(pong_run / "stages/1-vanilla/metrics.jsonl", row)
    timeline = collect(pong_run).timeline
    assert timeline is not None
    return timeline.panels[0].curves[0]


def test_long_curves_are_thinned_to_means(pong_run: Path) -> None:
    curve = curve_of(pong_run, [{"step": n, "return": float(n), "episodes": 50.0} for n in range(300)])
    assert len(curve.steps) == 150  # two rows each
    assert curve.steps[1] == curve.returns[1] == 2.5


def test_rows_with_few_episodes_are_pooled(pong_run: Path) -> None:
    counts, returns = [30, 6, 2, 1, 1, 40, 9, 1], [21.0, 20.0, 10.0, 0.0, 10.0, 21.0, 20.0, 5.0]
    rows = [{"step": 10 * n, "return": r, "episodes": c} for n, (c, r) in enumerate(zip(counts, returns, strict=True))]
    curve = curve_of(pong_run, rows)
    assert curve.returns == (21.0, (6 * 20 + 2 * 10 + 10) / 10, 21.0, (9 * 20 + 5) / 10)
    assert curve.steps == (0.0, (60 + 40 + 30 + 40) / 10, 50.0, (9 * 60 + 70) / 10)


def test_a_last_row_with_few_episodes_joins_the_one_before(pong_run: Path) -> None:
    rows = [{"step": n, "return": 10.0 - n, "episodes": c} for n, c in enumerate([30, 10, 1])]
    assert curve_of(pong_run, rows).returns == (10.0, (9 * 10 + 8) / 11)


def test_training_time_leaves_out_rows_without_a_rate() -> None:
    rows = [{"step": 10, "steps_per_second": 5.0}, {"step": 20, "steps_per_second": None}]
    assert times([*rows, {"step": 50, "steps_per_second": 10.0}]) == [2.0, 2.0, 2.0 + 3.0]
