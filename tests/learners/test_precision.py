"""Training takes half precision and quick kernels of a GPU where they can be trusted, and leaves everybody else's settings
as they were."""

from unittest.mock import Mock

import pytest
import torch

from bcl.errors import ConfigError
from bcl.learners import dqn, ppo, precision
from bcl.learners.precision import SHARE, acceleration, quick_kernels, uses_bf16


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


@pytest.mark.parametrize(
    ("device", "share", "image", "bf16"),
    [
        ("cuda", None, True, True),
        ("cuda", "100", True, True),
        ("cuda", "100.0", True, True),
        ("cuda", "35", True, False),
        ("cuda", "99.5", True, False),
        ("cuda", "a third", True, False),
        ("cuda", None, False, False),
        ("cpu", None, True, False),
    ],
)
def test_automatic_precision_is_half_for_images_on_a_whole_gpu(monkeypatch, device, share, image, bf16):
    monkeypatch.setenv(SHARE, share) if share else monkeypatch.delenv(SHARE, raising=False)
    assert uses_bf16("auto", torch.device(device), image) == bf16
    assert not uses_bf16("fp32", torch.device(device), image)


def test_half_precision_on_a_share_of_a_gpu_is_refused(monkeypatch):
    monkeypatch.setenv(SHARE, "60")
    with pytest.raises(ConfigError, match=SHARE):
        uses_bf16("bf16", torch.device("cuda"), True)
    assert uses_bf16("bf16", torch.device("cpu"), True)


@pytest.mark.parametrize("answer", [False, True])
def test_learners_ask(monkeypatch, make, make_ppo, answer):
    for module, build in ((dqn, make), (ppo, make_ppo)):
        asked = Mock(return_value=answer)
        monkeypatch.setattr(module, "uses_bf16", asked)
        assert build(precision="auto", world={"image": True}).bf16 == answer
        asked.assert_called_once_with("auto", torch.device("cpu"), True)


@pytest.mark.parametrize(
    ("asked", "device", "steps", "compiler", "expected"),
    [
        ("auto", "cuda", 4_500_000, "/usr/bin/cc", "full"),
        ("auto", "cuda", 999_999, "/usr/bin/cc", "graphs"),  # over before compiling is earned back
        ("auto", "cuda", 4_500_000, None, "graphs"),
        ("graphs", "cuda", 4_500_000, "/usr/bin/cc", "graphs"),
        ("full", "cuda", 100, None, "full"),
        ("none", "cuda", 4_500_000, "/usr/bin/cc", "none"),
        ("full", "cpu", 4_500_000, "/usr/bin/cc", "none"),
    ],
)
def test_networks_are_compiled_where_that_is_possible_and_worth_it(
    monkeypatch, asked, device, steps, compiler, expected
):
    monkeypatch.setattr(precision.shutil, "which", lambda name: compiler)
    monkeypatch.setattr(precision.importlib.util, "find_spec", lambda name: Mock())
    assert acceleration(asked, torch.device(device), steps) == expected
