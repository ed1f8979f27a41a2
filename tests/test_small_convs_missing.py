"""Where the kernels cannot be built, PyTorch's layers are taken."""

import pytest
import torch

from bcl import small_convs
from bcl.layers import Residual


def test_what_triton_cannot_build_is_tried_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nand much more")

    monkeypatch.setattr(small_convs, "_pool", no_compiler)
    small_convs._builds.cache_clear()
    with pytest.warns(UserWarning, match="PyTorch's layers, which is slower: Failed to find C compiler.$") as told:
        found = [small_convs._builds(torch.device("cpu")) for _ in range(2)]
    assert found == [False, False]
    assert len(told) == 1
    small_convs._builds.cache_clear()


def test_without_triton_layers_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_convs, "triton", None)
    x = torch.rand(2, 16, 4, 4).half()
    assert not small_convs.available(x)
    layer = Residual(16).half()
    assert torch.equal(layer(x), x + layer.path(x))
