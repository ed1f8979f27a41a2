"""A learner is gone the moment nobody holds it: CUDA graphs that die late take others' memory with them (bcl/graphs.py)."""

import gc
import weakref

import pytest


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
