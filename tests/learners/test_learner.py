"""What both learners share. One is gone the moment nobody holds it: CUDA graphs that die late take others' memory with
them (bcl/device.py)."""

import contextlib
import gc
import weakref
from unittest.mock import Mock

import pytest
import torch

import bcl
from bcl.errors import TrainingError
from bcl.learners import learner as learner_module


@pytest.mark.parametrize("loss", ["standard", "at", "radial"])
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_learners_do_not_wait_for_the_garbage_collector(make, make_ppo, play, algo, loss):
    gc.disable()
    try:
        if algo == "dqn":
            learner = make(loss)
            play(learner, 8)
        else:
            learner = make_ppo(loss)
            learner.update(learner.rollout(learner.restart())[0])
        gone = weakref.ref(learner)
        del learner
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("answer", [False, True])
def test_learners_ask(monkeypatch, make, make_ppo, answer):
    for build in (make, make_ppo):
        asked = Mock(return_value=answer)
        monkeypatch.setattr(learner_module, "uses_bf16", asked)
        assert build(precision="auto", world={"image": True}).bf16 == answer
        asked.assert_called_once_with("auto", torch.device("cpu"), True)


@pytest.mark.parametrize("rate", ["1e-3", "1e30"])  # one that ends, one that diverges
def test_a_training_in_this_process_leaves_the_threads_as_they_were(tmp_path, rate):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    small = {"steps": 200, "num_envs": 4, "batch_size": 8, "samples_per_step": 2, "buffer_size": 100, "log_steps": 40}
    dqn = small | {"replay_initial": 8, "ramp_steps": 100, "learning_rate": rate}
    try:
        with contextlib.suppress(TrainingError):
            bcl.train(
                "cartpole",
                out=tmp_path / "run",
                dqn=dqn,
                evaluation={"episodes": 1},
            )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
