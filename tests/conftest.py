import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The same examples in every run of continuous integration; fresh ones at home. No deadlines: machines are shared.
settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # tests run side by side


@pytest.fixture
def released() -> Path:
    """The folder of published checkpoints, where there is one."""
    folder = os.environ.get("BCL_RELEASED_WEIGHTS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no released weights: set BCL_RELEASED_WEIGHTS to their folder")
    return Path(folder)
