"""Games of somebody's own that fail or hang, as a person at a terminal meets them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = """
import os, time
from pathlib import Path
import gymnasium
import numpy as np


class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault):
        self.fault = getattr(self, fault)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            self.fault()
        return np.zeros(2, np.float32), 1.0, self.steps == 20, False, {}

    def raises(self):
        raise ValueError("of the game's own")

    def sleeps(self):
        Path(f"pid-{os.getpid()}").touch()
        time.sleep(1000)

    def deaf(self):
        Path(f"pid-{os.getpid()}").touch()
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass


for fault in ("raises", "sleeps", "deaf"):
    gymnasium.register(f"{fault.title()}-v0", Own, kwargs={"fault": fault})
"""
TINY = [
    *("--network.hidden=8", "--dqn.steps=400", "--dqn.num_envs=2", "--dqn.batch_size=16", "--dqn.replay_initial=32"),
    *("--dqn.buffer_size=200", "--evaluation.episodes=1", "--device=cpu"),
]


@pytest.mark.parametrize(
    "more", [[], ["--parallel", "2"], ["--parallel", "2", "--game.processes", "true"]], ids=" ".join
)
def test_a_game_that_raises_is_one_sentence_above_its_own_traceback(
    in_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    (tmp_path / "own_games.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = in_folder("train", "own_games:Raises-v0", "--out", "run", *TINY, *more)
    assert (code, out) == (2, "")
    _, _, complaint = err.partition("bcl: ")
    sentence, *below = complaint.splitlines()
    flags = " --parallel 2" if more else ""
    assert sentence == (
        "'own_games:Raises-v0' failed in step (ValueError: of the game's own); its own traceback is below; "
        f"continue with: bcl resume run --device cpu{flags}"
    )
    assert below[0] == "Traceback (most recent call last):"
    assert below[-1] == "ValueError: of the game's own"
    assert "in raises" in below[-3]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("game", "more"),
    [
        ("Sleeps", []),
        ("Deaf", []),
        ("Deaf", ["--game.processes", "true"]),
        ("Deaf", ["--game.processes", "true", "--parallel", "2"]),
    ],
    ids=["sleeps", "deaf", "deaf processes", "deaf processes of a worker"],
)
def test_a_second_ctrl_c_ends_a_game_that_hangs_with_all_its_processes(
    tmp_path: Path, game: str, more: list[str]
) -> None:
    (tmp_path / "own_games.py").write_text(MODULE)
    words = [sys.executable, "-m", "bcl", "train", f"own_games:{game}-v0", "--out", "run", *TINY, *more]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "log"
    with (
        open(log, "wb") as out,
        subprocess.Popen(words, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True) as process,
    ):
        try:
            hung = 2 if "--game.processes" in more else 1
            wait_until(lambda: len([*tmp_path.glob("pid-*")]) == hung or process.poll() is not None)
            os.killpg(process.pid, signal.SIGINT)  # a terminal tells all processes
            wait_until(lambda: b"interrupt again to stop at once" in log.read_bytes() or process.poll() is not None)
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(timeout=100)
            wait_until(lambda: not any(alive(int(path.name[4:])) for path in tmp_path.glob("pid-*")))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    said = log.read_text()
    assert code == 130, said
    assert said.splitlines()[-1].startswith("bcl: interrupted; continue with: bcl resume run --device cpu"), said
    assert said.count("interrupt again") == 1  # nobody but the first process speaks
    assert "Traceback" not in said
