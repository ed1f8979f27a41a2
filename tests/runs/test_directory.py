"""The run directory: made, opened, refused, listed; and those of version 0.1."""

import ast
import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bcl
from bcl.config import Config, resolve_stages
from bcl.errors import StoreError
from bcl.recipes import Stage
from bcl.runs import store
from bcl.runs.directory import (
    Clock,
    Repeats,
    RunDirectory,
    StageFolder,
    TrainingFolder,
    make_room,
    read_config,
    runs_of,
)

PACKAGE = Path(bcl.__file__).parent


class Crash(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def stages(recipe: str = "at", **settings: Any) -> list[tuple[Stage, Config]]:
    return resolve_stages("cartpole", recipe=recipe, settings=settings)


def test_create_and_open(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "run", stages(seed=7), {"version": "x"}, b"weights")
    run = RunDirectory.open(tmp_path / "run")
    assert run == made
    assert run.config == stages(seed=7)[-1][1]
    assert (run.about()["version"], run.about()["format"]) == ("x", 2)
    assert run.init.policy.read_bytes() == b"weights"
    assert not run.finished
    with pytest.raises(StoreError, match=r"exists already; give another --out$"):
        RunDirectory.create(tmp_path / "run", stages(), {})
    with pytest.raises(StoreError, match="not a run directory"):
        RunDirectory.open(tmp_path)


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"config\.toml' is damaged"):
        RunDirectory.open(tmp_path)
    (tmp_path / "config.toml").write_text("[dqn]\nstepz = 3\n")
    with pytest.raises(StoreError, match=r"config\.toml' is damaged: unknown setting 'dqn\.stepz'"):
        read_config(tmp_path)
    with pytest.raises(StoreError, match="name too long"):
        RunDirectory.open(tmp_path / ("x" * 300))
    with pytest.raises(StoreError, match="name too long"):
        RunDirectory.create(tmp_path / ("x" * 300), stages(), {})


def test_a_part_of_a_run_is_not_the_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, stages(), {})
    with pytest.raises(StoreError, match="is a part of a run; give the run's own directory"):
        RunDirectory.open(run.stages()[0].path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(StoreError, match=r"has no run\.json; copy the run again with all its files"):
        RunDirectory.open(tmp_path)


def test_another_directory_or_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(StoreError, match="exists already; give another --out"):
            RunDirectory.create(path, stages(), {})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_creation_cut_short_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, made = os.replace, list[str]()

    def killed(old: str, new: str) -> None:
        made.append(Path(new).name)
        if len(made) > 1:
            raise Crash
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Crash):
            RunDirectory.create(tmp_path, stages(seed=1), {"version": "x"})
    assert made[0] == "run.json"
    (tmp_path / "lock").touch()
    assert not RunDirectory(tmp_path).exists
    RunDirectory.create(tmp_path, stages(seed=2), {"version": "y"})
    assert RunDirectory.open(tmp_path).config.seed == 2


def test_resume_under_other_settings_names_them(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, stages(seed=1), {})
    run.check_settings({"seed": 1})
    with pytest.raises(StoreError, match=r"other settings \(dqn\.steps, seed\)"):
        run.check_settings({"seed": 2, "dqn": {"steps": 7}})


def test_training_under_other_settings_names_some_of_them_and_how_to_go_on(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, stages("at", seed=1), {})
    many = {"steps": 7, "num_envs": 3, "batch_size": 9, "gamma": 0.5, "n_step": 2, "log_steps": 5}
    for settings, named in (
        ({"seed": 2, "dqn": {"steps": 7}}, "dqn.steps, seed"),
        ({"seed": 2, "dqn": many}, "dqn.batch_size, dqn.gamma, dqn.log_steps, dqn.n_step, dqn.num_envs and 2 more"),
    ):
        with pytest.raises(StoreError) as refused:
            run.check_same(stages("at", **settings)[-1][1])
        assert refused.value.message == f"'{tmp_path}' was started with other settings ({named})"
        assert refused.value.hint == f"continue it with 'bcl resume {tmp_path}', or give another --out"


def listed(run: RunDirectory) -> list[tuple[int, str, str, bool]]:
    return [(stage.number, stage.path.name, stage.strategy, stage.own) for stage in run.stages()]


@pytest.mark.parametrize("init", [None, b"weights"])
@pytest.mark.parametrize("recipe", ["vanilla", "at", "bcl-mos-at", "bcl-radial+at"])
def test_the_stages_of_a_run_of_version_0_1_are_told_by_its_recipe(
    tmp_path: Path, recipe: str, init: bytes | None
) -> None:
    run = RunDirectory.create(tmp_path, stages(recipe), {"init": init and "fingerprint"}, init)
    found = listed(run)
    assert all(stage.config.recipe == recipe for stage in run.stages())
    about = {name: value for name, value in run.about().items() if name not in ("format", "stages")}
    store.write_json(tmp_path / "run.json", about)
    assert listed(run) == found
    assert [stage.shares_median for stage in run.stages()].count(True) == (recipe == "bcl-radial+at")


def test_a_run_of_a_later_version_is_refused(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, stages(), {})
    store.write_json(tmp_path / "run.json", run.about() | {"format": 99})
    with pytest.raises(StoreError, match="made by a later version of bcl; update bcl"):
        run.stages()


@pytest.mark.parametrize("value", [None, "text", 3, [[1]], [{}]])
def test_an_edited_list_of_stages_or_settings_is_refused(tmp_path: Path, value: object) -> None:
    run = RunDirectory.create(tmp_path, stages(), {})
    about = run.about()
    (tmp_path / "run.json").write_text(json.dumps(about | {"stages": value}))  # without a checksum, as by hand
    with pytest.raises(StoreError, match=r"run\.json' does not fit \(.*\); copy the run again"):
        run.stages()
    (tmp_path / "run.json").write_text(json.dumps(about | {"settings": value}))
    if value is not None:  # version 0.1 has none
        with pytest.raises(StoreError, match=r"run\.json' does not fit \(.*\); copy the run again"):
            run.check_unchanged()


@pytest.mark.parametrize("edit", [{"step": None}, {"step": "text"}, {"step": ...}, {"return": "text"}, {"eps": [1]}])
def test_an_edited_row_of_metrics_is_refused(tmp_path: Path, edit: dict[str, object]) -> None:
    training = TrainingFolder(tmp_path)
    whole = {"step": 100, "return": None, "eps": 0.1, "steps_per_second": 10.0}
    row = {name: value for name, value in (whole | edit).items() if value is not ...}
    training.metrics_file.write_text(f"{json.dumps(whole)}\n{json.dumps(row)}\n")
    with pytest.raises(StoreError, match=r"line 2 of '.*metrics\.jsonl' does not fit \(.*\); delete that line"):
        training.seconds()


@pytest.mark.parametrize("sessions", [3, ["text"], [[]], [[0.0, None]], [None]])
def test_an_edited_clock_is_refused(tmp_path: Path, sessions: object) -> None:
    [*_, stage] = RunDirectory.create(tmp_path, stages(), {}).stages()
    stage.clock.write_text(json.dumps({"seconds": 1.0, "sessions": sessions}))
    with pytest.raises(StoreError, match=r"clock\.json' does not fit \("):
        stage.on_clock(5.0)


@pytest.mark.parametrize("name", ["config.toml", "stages/1-vanilla/config.toml", "stages/2-at/clock.json"])
def test_a_folder_in_place_of_a_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    run = RunDirectory.create(tmp_path / "run", stages(), {})
    Clock(run.stages()[-1])
    run.finish({"files": run.digests()})
    run.check_unchanged()
    file = run.path / name
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match=f"^cannot read '{file}': Is a directory; check the path$"):
        run.check_unchanged()


def test_a_run_in_a_folder_that_may_not_be_searched_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path / "run", stages(), {})
    stage = run.stages()[-1]

    def denied(path: Path, **_: object) -> os.stat_result:  # no permission would stop root
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", denied)
    asks: list[Callable[[], object]] = [
        lambda: runs_of(run.path),
        lambda: RunDirectory.open(run.path),
        lambda: RunDirectory.around(run.best),
        lambda: run.exists,
        lambda: run.finished,
        run.result,
        run.check_unchanged,
        stage.metrics,
        stage.wall_seconds,
        stage.unused_training,
    ]
    for ask in asks:
        with pytest.raises(StoreError, match=r"^cannot read '.*': Permission denied; check the path$"):
            ask()


def test_repeats(tmp_path: Path) -> None:
    repeats = Repeats(tmp_path)
    assert (repeats.exists, repeats.runs(), runs_of(tmp_path)) == (False, [], [RunDirectory(tmp_path)])
    for seed in (0, 1):
        RunDirectory.create(tmp_path / f"seed{seed}", stages(seed=seed), {})
    repeats.write(["seed0", "seed1"])
    assert [run.config.seed for run in runs_of(tmp_path)] == [0, 1]
    assert all(run.repeats == Repeats(tmp_path) for run in repeats.runs())
    store.write_json(tmp_path / "seed0/result.json", {})
    assert repeats.shown().path.name == "seed1"  # the first that has not ended
    repeats.finish({"median": "seed0"})
    assert repeats.shown().path.name == "seed0"


def test_a_clock_counts_processes_up_to_what_they_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = RunDirectory.create(tmp_path, stages(), {}).stages()[-1]
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.time", lambda: 5000.0 + now[0])
    clock = Clock(stage)
    now[0] = 130.0
    assert clock.keep() == 30.0
    now[0] = 150.0  # not stored: killed
    clock = Clock(stage)
    now[0] = 155.0
    assert clock.keep() == 35.0
    assert [stage.on_clock(moment) for moment in (5099.0, 5110.0, 5155.0, None)] == [None, 10.0, 35.0, None]


@pytest.mark.parametrize("name", ["unused.json", "in-vain.json"])
def test_unused_training_is_kept_in_one_file_by_its_name_of_today_or_before(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "stages" / "2-at"
    store.write_json(folder / name, {"runs": [{"run": "phases/001/run2", "seconds": 5.0}]})
    stage = StageFolder(tmp_path, 2, Stage("at", "next"), own=True)
    (run := stage.phase(2).run(1)).path.mkdir(parents=True)
    stage.discard(run)
    assert stage.unused_training() == [("phases/001/run2", 5.0), ("phases/002/run1", 0.0)]
    assert [path.name for path in folder.glob("*.json")] == [name]
    assert list(RunDirectory(tmp_path).digests()) == [f"stages/2-at/{name}"]


def test_room_is_made_where_a_creation_was_killed(tmp_path: Path) -> None:
    for name in ("run.json", "init/policy.safetensors", "stages/1-at/config.toml"):
        store.write_text(tmp_path / name, "")
    make_room(tmp_path)
    assert os.listdir(tmp_path) == ["run.json"]


# Names in a run directory and in a folder of results, which `bcl/runs` alone knows.
FILES = (
    *("config.toml", "run.json", "repeats.json", "result.json", "metrics.jsonl", "checkpoint.pt", "policy.safetensors"),
    *("decision.json", "clock.json", "clock-after", "time-after", "unused.json", "ahead.json", "progress.json"),
    *("wandb.json", "report.html", "frames.npz", ".jsonl", "learned-at", ".results"),
)
FOLDERS = {"evals", "certs", "phases", "snapshots", "discarded"}
# All that other modules join to a path: files of the package, of the user and of programs that we call.
JOINED = {
    "api/agents.py": {"*.safetensors"},  # in a folder that is no run
    "api/showing.py": {".mp4", ".gif"},
    "api/training.py": {"runs"},
    "config.py": {"presets"},
    "device.py": {"control"},
    "experiment/run.py": {".git"},
    "recipes.py": {"recipes.toml"},
    "reports/published.py": {"published.toml"},
    "reports/video.py": {"video.mp4", "fonts", "ttf"},
    "zoo/__init__.py": {"runs", "zoo-", "*/"},
}
MAKE_PATHS = {"glob", "rglob", "joinpath", "with_name", "with_stem", "with_suffix", "Path"}
OTHERS = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(PACKAGE / "runs")]


def texts(node: ast.AST) -> set[str]:
    """String literals, f-strings by their parts."""
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def joined(tree: ast.AST) -> set[str]:
    """Literals that are joined to a path."""
    found = set[str]()
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            parts = node.args if called in MAKE_PATHS else []
        for part in parts:
            if isinstance(part, ast.Constant | ast.JoinedStr):
                found |= texts(part)
    return found


def test_the_names_are_those_of_runs() -> None:
    known = {text for path in (PACKAGE / "runs").glob("*.py") for text in texts(ast.parse(path.read_text()))}
    for name in (*FILES, *FOLDERS):
        assert any(name in text for text in known), name


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_module_joins_paths_inside_a_run(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {text for text in texts(tree) if not re.search(r"\s", text)}  # else it is a sentence for people
    assert not {text for text in names if text in FOLDERS or any(file in text for file in FILES)}
    assert joined(tree) <= JOINED.get(path.relative_to(PACKAGE).as_posix(), set())
