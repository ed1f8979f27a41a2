"""How work runs on a machine: graphed functions do what they do without, precision and kernels are chosen where they
can be trusted, and other people's settings are left as they were."""

import gc
import os
import weakref
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from bcl import device as machine
from bcl.device import SHARE, Graphed, acceleration, enough_memory, quick_kernels, takes_turns, uses_bf16
from bcl.errors import ConfigError, TrainingError


def test_without_a_graph_it_is_the_function_itself():
    generator, made = torch.Generator().manual_seed(0), []

    def draw():
        made.append(torch.rand(3, generator=generator))
        return made[-1]

    graphed = Graphed(draw, generator, enabled=False)
    for calls in range(1, 6):
        assert graphed() is made[-1]
        assert len(made) == calls
    assert len({tuple(numbers.tolist()) for numbers in made}) == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_with_a_graph_every_call_counts_once():
    runs = []
    for enabled in (True, False):
        generator = torch.Generator("cuda").manual_seed(3)
        given, total, host = torch.zeros((), device="cuda"), torch.zeros((), device="cuda"), []

        def draw(generator=generator, given=given, total=total, host=host):
            host.append(None)
            total.add_(given)
            return torch.rand(5, generator=generator, device="cuda") + total

        graphed, results, places = Graphed(draw, generator, enabled=enabled), [], set()
        for call in range(8):
            given.fill_(call)
            result = graphed()
            results.append(result.clone())
            places.add(result.data_ptr() if call > 2 else 0)
        assert total.item() == sum(range(8))  # warming up and capturing included
        assert len(host) == (3 if enabled else 8)
        if enabled:
            assert len(places) == 2  # one fixed place from the third call on
        runs.append((torch.stack(results), generator.get_state()))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])


def test_it_dies_with_its_owner():
    class Owner:
        def __init__(self):
            self.graphed = Graphed(self.answer, torch.Generator(), enabled=False)

        def answer(self):
            return 42

    owner = Owner()
    assert owner.graphed() == 42
    gone = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert gone() is None
    finally:
        gc.enable()


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
    ("device", "share", "units", "image", "bf16"),
    [
        ("cuda", None, {}, True, True),
        ("cuda", "100", {}, True, True),
        ("cuda", "100.0", {}, True, True),
        ("cuda", "35", {"avx512_bf16": True}, True, False),
        ("cuda", "99.5", {}, True, False),
        ("cuda", "a third", {}, True, False),
        ("cuda", None, {}, False, False),
        ("cpu", None, {}, True, False),
        ("cpu", None, {"avx512_bf16": False, "amx_bf16": False}, True, False),
        ("cpu", None, {"avx512_bf16": True}, True, True),
        ("cpu", "35", {"amx_bf16": True}, True, True),  # a share of the GPU says nothing about the CPU
        ("cpu", None, {"avx512_bf16": True}, False, False),
        ("cpu", None, None, True, False),
    ],
)
def test_automatic_precision_is_half_for_images_where_the_device_has_it(monkeypatch, device, share, units, image, bf16):
    """`units`: of the CPU; none: PyTorch cannot tell."""
    monkeypatch.setenv(SHARE, share) if share else monkeypatch.delenv(SHARE, raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", None if units is None else lambda: units, raising=False)
    assert uses_bf16("auto", torch.device(device), image) == bf16
    assert not uses_bf16("fp32", torch.device(device), image)


def test_half_precision_on_a_share_of_a_gpu_is_refused(monkeypatch):
    monkeypatch.setenv(SHARE, "60")
    with pytest.raises(ConfigError, match=SHARE):
        uses_bf16("bf16", torch.device("cuda"), True)
    assert uses_bf16("bf16", torch.device("cpu"), True)


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
    monkeypatch.setattr(machine.shutil, "which", lambda name: compiler)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: Mock())
    assert acceleration(asked, torch.device(device), steps) == expected


@pytest.mark.parametrize(
    ("shape", "rows", "load", "expected"),
    [
        ((4,), 512, 0.0, 1),  # vectors
        ((1, 84, 84), 1, 0.0, 1),  # one episode of Pong
        ((1, 84, 84), 20, 0.0, 4),  # idle
        ((1, 84, 84), 20, 3.0, 1),  # three of four cores are taken
        ((1, 84, 84), 20, 9.0, 1),
    ],
)
def test_threads_by_the_work_and_by_what_others_leave(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], rows: int, load: float, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(machine.time, "process_time", lambda: 0.0)
    assert machine.useful_threads(shape, rows) == expected


def test_running_out_of_memory_names_the_settings():
    with pytest.raises(TrainingError, match="more memory than there is; lower a or b"), enough_memory("a", "b"):
        raise torch.OutOfMemoryError("CUDA")
    with pytest.raises(RuntimeError, match="shape"), enough_memory("a"):
        raise RuntimeError("shape")


def test_processes_take_turns_where_mps_is_there_but_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not takes_turns()
    monkeypatch.setattr("shutil.which", {"nvidia-cuda-mps-control": "/usr/bin/nvidia-cuda-mps-control"}.get)
    assert takes_turns()
    (tmp_path / "control").touch()
    assert not takes_turns()
