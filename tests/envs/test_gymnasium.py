"""Environments of somebody's own that do something wrong: one sentence that names the environment and the call."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec

from bcl.envs import VectorEnv, make_env
from bcl.errors import GameError
from bcl.games import GymnasiumGame

GOOD = np.zeros(2, np.float32)
EXIT = os._exit  # as an extension module would call it


class Unpicklable(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(lambda: (one, two))


class Faulty(gymnasium.Env[Any, Any]):
    """Answers well until its third step, which `answer` makes; or its first reset, if that is to fail."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 # as Gymnasium has it

    def __init__(self, call: str, answer: Callable[[], Any], render_mode: str | None = None) -> None:
        self.call, self.answer, self.steps, self.render_mode = call, answer, 0, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.answer() if self.call == "reset" else (GOOD, {"why": lambda: "not every info can travel"})

    def step(self, action: Any) -> Any:
        self.steps += 1
        wrong = self.call == "step" and self.steps == 3
        return self.answer() if wrong else (GOOD, 1.0, False, False, {"why": lambda: "not every info can travel"})

    def render(self) -> Any:
        return self.answer()

    def close(self) -> None:
        raise RuntimeError("in close, which changes no result")


def raise_it(kind: type[BaseException], *args: Any) -> Callable[[], Any]:
    def fails_deep_inside() -> Any:
        raise kind(*args)

    return fails_deep_inside


def step_with(**changes: Any) -> Callable[[], Any]:
    good = {"obs": GOOD, "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
    return lambda: tuple((good | changes).values())


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VectorEnv]:
    def make(call: str, answer: Callable[[], Any], processes: bool = False, render: bool = False) -> VectorEnv:
        spec = EnvSpec("Faulty-v0", entry_point=lambda **more: Faulty(call, answer, **more))
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
        return make_env(GymnasiumGame(spec.id, processes=processes), 2, render=render)

    return make


def play(envs: VectorEnv) -> None:
    envs.reset(0)
    for _ in range(3):
        envs.send(torch.tensor([0, 1]))
        envs.recv()


RAISED = [
    ("reset", raise_it(ValueError, "two\nlines"), "failed in reset (ValueError: two lines)"),
    ("step", raise_it(ZeroDivisionError), "failed in step (ZeroDivisionError:)"),
    ("step", raise_it(SystemExit, 3), "failed in step (SystemExit: 3)"),
    ("step", raise_it(GeneratorExit), "failed in step (GeneratorExit:)"),
    ("step", raise_it(Unpicklable, 1, 2), "failed in step (Unpicklable: <function"),
    ("step", raise_it(EOFError, "its own"), "failed in step (EOFError: its own)"),
]
WRONG = [
    ("reset", lambda: (np.zeros(3), {}), "an observation of shape (3,) and type float64 in reset; its observation_space has shape (2,) and type float32"),
    ("reset", lambda: (GOOD, {}, 1), "failed in reset (ValueError: too many values to unpack"),
    ("reset", lambda: (np.array([0, np.nan], np.float32), {}), "nan as observation in reset; it has to be finite"),
    ("step", step_with(obs=np.zeros((2, 2), np.float32)), "an observation of shape (2, 2) and type float32 in step"),
    ("step", step_with(obs=None), "an observation of shape () and type object in step"),
    ("step", step_with(obs=["a", "b"]), "an observation of shape (2,) and type <U1 in step"),
    ("step", step_with(obs=np.zeros(2, complex)), "type complex128 in step"),
    ("step", step_with(obs=[[0.0], [1.0, 2.0]]), "failed in step (ValueError: setting an array element"),
    ("step", step_with(obs=np.float32([0, np.inf])), "inf as observation in step"),
    ("step", step_with(obs=np.float32([0, np.nan]), terminated=True), "nan as observation in step"),
    ("step", step_with(reward="1.0"), "'1.0' as reward in step; it has to be one number"),
    ("step", step_with(reward=None), "None as reward in step"),
    ("step", step_with(reward=[1.0, 2.0]), "[1.0, 2.0] as reward in step"),
    ("step", step_with(reward=float("nan")), "nan as reward in step; it has to be finite"),
    ("step", step_with(reward=1e300), "1e+300 as reward in step; it has to be finite in float32"),
    ("step", step_with(terminated=float("nan")), "nan as terminated in step"),
    ("step", step_with(reward=float("inf")), "inf as reward in step; it has to be finite"),
    ("step", step_with(reward=-np.float64("inf")), "-inf as reward in step"),
    ("step", step_with(terminated=None), "None as terminated in step"),
    ("step", step_with(truncated=[False, False]), "[False, False] as truncated in step"),
    ("step", lambda: (GOOD, 1.0, False, {}), "failed in step (ValueError: not enough values to unpack"),
]  # fmt: skip


@pytest.mark.parametrize("processes", [False, True], ids=["here", "processes"])
@pytest.mark.parametrize(("call", "answer", "words"), RAISED, ids=[words for *_, words in RAISED])
def test_an_error_of_the_game_is_one_sentence_above_its_own_traceback(
    faulty, capfd: pytest.CaptureFixture[str], call: str, answer: Callable[[], Any], words: str, processes: bool
) -> None:
    envs = faulty(call, answer, processes)
    with pytest.raises(GameError) as caught:
        play(envs)
    envs.close()
    assert str(caught.value).startswith(f"'Faulty-v0' {words}")
    assert "\n" not in str(caught.value)
    [note] = caught.value.__notes__
    assert note.startswith("Traceback")
    assert "in fails_deep_inside" in note
    assert "bcl/envs/gymnasium.py" not in note
    assert capfd.readouterr() == ("", "")  # it is shown once


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (False, r"'Faulty-v0' failed in step \(SystemExit: os._exit\(3\)\); its own"),
        (True, r"the process of a copy of 'Faulty-v0' ended without a result \(exit code 3\) in step; often"),
    ],
    ids=["here", "processes"],
)
def test_a_game_that_ends_the_process_is_one_sentence(faulty, processes: bool, words: str) -> None:
    envs, exit_now = faulty("step", lambda: os._exit(3), processes), os._exit
    with pytest.raises(GameError, match=f"^{words}"):
        play(envs)
    envs.close()
    assert os._exit is exit_now


@pytest.mark.parametrize("processes", [False, True], ids=["here", "processes"])
@pytest.mark.parametrize(("call", "answer", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_an_answer_of_the_wrong_form_is_one_sentence(
    faulty, capfd: pytest.CaptureFixture[str], call: str, answer: Callable[[], Any], words: str, processes: bool
) -> None:
    envs = faulty(call, answer, processes)
    with pytest.raises(GameError) as caught:
        play(envs)
    envs.close()
    assert words in str(caught.value)
    assert str(caught.value).startswith("'Faulty-v0' ")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("answer", "words"),
    [(raise_it(ValueError, "no picture"), "failed in render"), (lambda: None, "None in render; it has to be an array")],
)
def test_a_picture_that_cannot_be_had_is_one_sentence(faulty, answer: Callable[[], Any], words: str) -> None:
    envs = faulty("render", answer, render=True)
    envs.reset(0)
    with pytest.raises(GameError, match=words):
        envs.screen()


def test_answers_that_mean_the_same_are_taken(faulty) -> None:
    envs = faulty("step", step_with(obs=[0, 1], reward=np.array([2], np.int8), terminated=np.bool_(False), truncated=1))
    envs.reset(0)
    for _ in range(3):
        envs.send(torch.tensor([0, 1]))
        step = envs.recv()
    assert step.reward.tolist() == [2.0, 2.0]
    assert step.truncated.tolist() == [True, True]
    assert step.final_obs.tolist() == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize(
    ("die", "words"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"), (lambda: EXIT(3), r"\(exit code 3\)")],
)
def test_a_process_that_dies_is_told_as_such(faulty, call: str, die: Callable[[], Any], words: str) -> None:
    envs = faulty(call, die, processes=True)
    with pytest.raises(GameError, match=rf"^the process of a copy of 'Faulty-v0' .*{words} in {call}; "):
        play(envs)
    envs.close()


def test_a_process_that_hangs_is_killed_by_closing(faulty) -> None:
    envs = faulty("step", lambda: time.sleep(1000), processes=True)
    envs.reset(0)
    for _ in range(2):
        envs.send(torch.tensor([0, 1]))
        envs.recv()
    envs.send(torch.tensor([0, 1]))
    processes = envs._envs.processes
    envs.close()
    assert not any(process.is_alive() for process in processes)


def test_a_game_that_fails_as_it_is_made_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        raise_it(ValueError, "first line\nsecond line")()

    monkeypatch.setitem(gymnasium.registry, "Faulty-v0", EnvSpec("Faulty-v0", entry_point=make))
    with pytest.raises(GameError, match="cannot make 'Faulty-v0' \\(first line second line\\)") as caught:
        make_env(GymnasiumGame("Faulty-v0"), 1)
    assert "in fails_deep_inside" in caught.value.__notes__[0]
    with pytest.raises(GameError) as caught:
        make_env(GymnasiumGame("NoSuchGame-v0"), 1)
    assert not hasattr(caught.value, "__notes__")  # the sentence says it all
