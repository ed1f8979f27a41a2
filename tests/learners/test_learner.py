"""What both learners share. One is gone the moment nobody holds it: CUDA graphs that die late take others' memory with them (bcl/device.py)."""

import gc
import weakref
from unittest.mock import Mock

import pytest
import torch

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
