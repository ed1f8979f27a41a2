"""Where the kernels cannot be built, PyTorch's layers are taken."""

from types import ModuleType

import pytest
import torch

from bcl import dqn_kernels, small_convs
from bcl.layers import Residual


@pytest.mark.parametrize(
    ("module", "first"), [(small_convs, "_pool"), (dqn_kernels, "interval_relu")], ids=["small_convs", "dqn_kernels"]
)
def test_what_triton_cannot_build_is_tried_once_and_told(
    module: ModuleType, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nand much more")

    monkeypatch.setattr(module, first, no_compiler)
    monkeypatch.setattr(dqn_kernels._FirstConv, "apply", lambda *_: (None, None))
    small_convs.builds.cache_clear()
    with pytest.warns(UserWarning, match="PyTorch's layers, which is slower: Failed to find C compiler.$") as told:
        found = [small_convs.builds(module._attempt, torch.device("cpu")) for _ in range(2)]
    assert found == [False, False]
    assert len(told) == 1
    small_convs.builds.cache_clear()


def test_without_triton_layers_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_convs, "triton", None)
    x = torch.rand(2, 16, 4, 4).half()
    assert not small_convs.available(x)
    layer = Residual(16).half()
    assert torch.equal(layer(x), x + layer.path(x))
