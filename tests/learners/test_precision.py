"""Training takes quick kernels of the GPU and leaves everybody else's settings as they were."""

import pytest
import torch

from bcl.learners.precision import quick_kernels


def chosen():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark


@pytest.fixture(autouse=True)
def everybody_elses():
    before = chosen()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = before


def train(enabled, seen):
    with quick_kernels(enabled):
        seen.append(chosen())
        raise ZeroDivisionError


@pytest.mark.parametrize("before", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("enabled", [False, True])
def test_kernels_are_quick_only_inside(before, enabled):
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = before
    seen = []
    with pytest.raises(ZeroDivisionError):
        train(enabled, seen)
    assert seen == [(True, True) if enabled else before]
    assert chosen() == before
