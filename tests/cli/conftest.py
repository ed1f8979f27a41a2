"""What tests of several commands share."""

from collections.abc import Callable

import pytest
import torch

import bcl as package
from bcl.config import resolve
from bcl.envs import make_env
from bcl.policies import Policy, PolicySpec


@pytest.fixture
def bcl(in_folder: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in a folder with a small CartPole agent, p.safetensors."""
    torch.manual_seed(0)
    game = resolve("cartpole").game
    env = make_env(game, 1)
    package.save(Policy(PolicySpec("dueling-mlp", (4,), 2, env.low, env.high, (16, 16), game=game)), "p.safetensors")
    return in_folder
