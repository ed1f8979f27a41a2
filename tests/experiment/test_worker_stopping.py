"""Runs that are asked to stop, and what they leave behind: nothing, and a result as if they had not been stopped."""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bcl import experiment
from bcl.config import Config, resolve, resolve_stages
from bcl.envs import make_env
from bcl.errors import StoreError, TrainingError
from bcl.experiment import Dispatcher, train_run
from bcl.learners import dqn
from bcl.learners.learner import Task
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint, load
from bcl.runs import store
from bcl.runs.directory import RunDirectory, make_room
from bcl.runs.executors import Watch
from bcl.settings import parse_settings

TINY = [
    *("--network.hidden=16", "--dqn.steps=320", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *("--dqn.buffer_size=200", "--dqn.replay_initial=32", "--dqn.ramp_steps=300", "--dqn.log_steps=40"),
    *("--dqn.checkpoint_steps=80", "--dqn.checkpoint_replay=true", "--evaluation.episodes=2"),
]
TASK = Task("standard", 0.0, 0.0, seed=3)


class Crash(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def tiny(*more: str) -> Config:
    return resolve("cartpole", settings=parse_settings([*TINY, *more]))


def numbers(folder: Path) -> list[dict]:
    """The rows of metrics without their timings."""
    rows = store.read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k != "steps_per_second" and "share" not in k} for row in rows]


@pytest.mark.parametrize("end", [None, TrainingError("broken"), KeyboardInterrupt()], ids=repr)
def test_a_small_network_is_trained_by_one_thread_and_the_caller_keeps_its_own(
    tmp_path: Path, end: BaseException | None
) -> None:
    seen: set[int] = set()

    def progress(done: int, of: int) -> None:
        seen.add(torch.get_num_threads())
        if end:
            raise end

    torch.set_num_threads(2)
    with pytest.raises(type(end)) if end else contextlib.nullcontext():
        train_run(tmp_path, tiny(), TASK, None, "cpu", progress=progress)
    assert (seen, torch.get_num_threads()) == ({1}, 2)


def stop_at(step: int) -> Callable[[], bool]:
    """A request to stop that comes with this step, of 8 copies."""
    asked = itertools.count(1)
    return lambda: 8 * next(asked) >= step


def steps_done(folder: Path, config: Config) -> list[int]:
    """The steps that finishing the run takes."""
    done: list[int] = []
    train_run(folder, config, TASK, None, "cpu", progress=lambda step, of: done.append(step))
    return done


def test_by_time_a_stop_request_leaves_a_checkpoint_of_that_step(tmp_path: Path) -> None:
    config = tiny("--dqn.checkpoint_steps", "0")
    with pytest.raises(KeyboardInterrupt):
        train_run(tmp_path, config, TASK, None, "cpu", stop=stop_at(104))
    assert steps_done(tmp_path, config)[0] == 112


@pytest.mark.parametrize(
    ("near", "asked", "resumed_at"),
    [(1e9, 40, 80), (1e9, 104, 160), (1e9, 160, 160), (0.0, 40, 0), (0.0, 104, 80), (0.0, 160, 160)],
)
def test_by_steps_a_run_that_was_asked_to_stop_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: float, asked: int, resumed_at: int
) -> None:
    whole = train_run(tmp_path / "whole", tiny(), TASK, None, "cpu")
    monkeypatch.setattr("bcl.learners.learner.NEAR", near)
    with pytest.raises(KeyboardInterrupt):
        train_run(tmp_path / "cut", tiny(), TASK, None, "cpu", stop=stop_at(asked))
    assert steps_done(tmp_path / "cut", tiny())[0] == resumed_at + 8
    assert fingerprint(load(tmp_path / "cut" / "policy.safetensors")) == fingerprint(whole)
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")


def test_a_run_that_is_asked_to_stop_near_its_end_comes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bcl.learners.learner.NEAR", 1e9)
    train_run(tmp_path, tiny(), TASK, None, "cpu", stop=stop_at(248))  # its last checkpoint is at 240
    assert (tmp_path / "result.json").exists()


def test_checkpoints_are_counted_in_steps_or_go_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(dqn.Learner, "state", lambda learner: saved.append(learner.step) or {"step": learner.step})
    config = tiny()
    config = replace(config, dqn=replace(config.dqn, checkpoint_minutes=1e-9))
    train_run(tmp_path, config, TASK, None, "cpu")
    assert saved == [80, 160, 240]


def test_a_stop_request_during_the_verdict_loses_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = resolve_stages("cartpole", settings=parse_settings(TINY))
    experiment.create(tmp_path, stages, "cpu", None)
    monkeypatch.setattr(sys.modules["bcl.evaluation.play"], "COMPARE_EVERY", 1)  # asked every step
    with pytest.raises(KeyboardInterrupt):
        experiment.finish(tmp_path, Dispatcher(watch=Watch(stop=(tmp_path / "evals" / "0-progress.json").exists)))
    assert not (tmp_path / "result.json").exists()
    trained = (tmp_path / "stages" / "1-vanilla" / "result.json").stat()
    assert len(experiment.finish(tmp_path, Dispatcher()).evaluation.scores) == 1
    assert (tmp_path / "stages" / "1-vanilla" / "result.json").stat() == trained


def agent() -> Policy:
    env = make_env(resolve("cartpole").game, 1)
    return Policy(PolicySpec("dueling-mlp", env.obs_shape, env.num_actions, env.low, env.high, (16,), game=env.game))


def content(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("files", range(4))  # run.json, init, the stage's configuration, then config.toml
def test_a_creation_that_was_killed_leaves_nothing_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    stages = resolve_stages("cartpole", recipe="at", settings=parse_settings(TINY))
    replace, left, run = os.replace, [files], tmp_path / "run"

    def killed(*args: str) -> None:
        if not left[0]:
            raise Crash
        left[0] -= 1
        replace(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a kill leaves the temporary file
        with pytest.raises(Crash):
            experiment.create(run, stages, "cpu", agent())
    assert any(name.endswith(".tmp") for name in content(run))
    with pytest.raises(StoreError, match="not a run directory") as caught:
        RunDirectory.open(run)
    assert ("cut short: run 'bcl train' again" in str(caught.value)) == (files > 0)

    other = resolve_stages("cartpole", recipe="sa", settings=parse_settings(TINY))
    experiment.create(run, other, "cpu", None)
    experiment.create(tmp_path / "fresh", other, "cpu", None)
    assert content(run) == content(tmp_path / "fresh") == {"config.toml", "run.json", "stages/1-sa/config.toml"}
    with pytest.raises(StoreError, match="exists already"):
        experiment.create(run, other, "cpu", None)


@pytest.mark.parametrize(
    "files",
    [
        ["stages/thesis.tex"],
        ["run.json", "stages/1-at/policy.safetensors"],
        ["run.json", "notes.txt"],
        ["stages/1-at/config.toml"],  # a creation writes run.json first
        ["init/policy.safetensors"],
        ["seed0/config.toml"],
        ["seed0/run.json", "seed1/config.toml"],
        ["run.json", "config.toml"],
    ],
    ids=" ".join,
)
def test_files_of_someone_else_are_not_taken_for_those_of_a_killed_creation(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        store.write_text(tmp_path / name, "")
    with pytest.raises(StoreError, match="exists already"):
        make_room(tmp_path)
    assert content(tmp_path) == {*files}


def test_repeats_that_were_killed_while_they_were_made_leave_nothing_to_the_next(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        for name in ("run.json", "lock", "stages/1-at/config.toml", *(["config.toml"] if seed < 2 else [])):
            store.write_text(tmp_path / f"seed{seed}" / name, "")
    make_room(tmp_path)
    assert os.listdir(tmp_path) == []


def test_resuming_sweeps_what_killed_writers_left_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    experiment.create(tmp_path, resolve_stages("cartpole", settings=parse_settings(TINY)), "cpu", None)
    swept = [f".report.html.{dead.pid}.tmp", f"stages/1-vanilla/.checkpoint.pt.{dead.pid}.tmp", f".a.{os.getpid()}.tmp"]
    kept = [f"evals/.eps-0.json.{os.getppid()}.tmp", ".notes.tmp"]  # of a process at work, and nobody's of ours
    for name in (*swept, *kept):
        store.write_text(tmp_path / name, "")
    experiment.finish(tmp_path, Dispatcher())
    assert {name for name in content(tmp_path) if name.endswith(".tmp")} == {*kept}
