"""A policy: a network with what is needed to use, evaluate and rebuild it."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bcl.errors import ConfigError
from bcl.games import Game
from bcl.policies import networks

Kind = Literal["dueling-cnn", "plain-cnn", "impala", "dueling-mlp", "actor-critic-mlp", "plain-mlp", "custom"]
CUSTOM: Kind = "custom"  # a module of the user's own: rebuilt from a file where it is made of plain layers
KINDS: tuple[str, ...] = tuple(kind for kind in get_args(Kind) if kind != CUSTOM)
ACTOR_CRITICS: tuple[Kind, ...] = ("impala", "actor-critic-mlp")
MAX_SIZE = 2**20
MIN_IMAGE = 36  # smallest side for which the Nature CNN leaves a pixel


@dataclass(frozen=True)
class PolicySpec:
    """Everything about a policy but its weights."""

    kind: Kind
    obs_shape: tuple[int, ...]
    """Shape of one observation: channels, height, width, or the length of a vector."""
    num_actions: int
    low: tuple[float, ...]
    """Smallest valid observation: one number for all, or one per dimension; may be -inf."""
    high: tuple[float, ...]
    hidden: tuple[int, ...] = ()
    """Units of each hidden layer (MLPs only)."""
    activation: networks.Activation = "relu"
    """Between the layers of `plain-mlp` and `actor-critic-mlp`; every other network has ReLU."""
    game: Game | None = None
    parent: str = ""
    """Origin of the weights: the policy before, by fingerprint; `FORMAT:FILE` of an import; empty: a fresh network."""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def algo(self) -> Literal["dqn", "ppo"]:
        """The learner that can train it on: logits are PPO's, Q-values are DQN's."""
        return "ppo" if self.kind in ACTOR_CRITICS else "dqn"


class Policy(nn.Module):
    """`policy(obs)` gives the action scores (Q-values or logits) for float observations; its best is the action."""

    low: Tensor
    high: Tensor

    def __init__(self, spec: PolicySpec, network: nn.Module | None = None) -> None:
        """`network` is given for the kind `custom`, and built for every other."""
        super().__init__()
        _check(spec)
        self.spec = spec
        self.network = _build(spec) if network is None else networks.Custom(network)
        shape = (-1,) if len(spec.obs_shape) == 1 else (-1, 1, 1)
        self.register_buffer("low", torch.tensor(spec.low).view(shape), persistent=False)
        self.register_buffer("high", torch.tensor(spec.high).view(shape), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where its weights are; those of a network may be buffers."""
        return self.low.device

    def forward(self, obs: Tensor) -> Tensor:  # (B, *obs_shape) float -> (B, A)
        return self.network(obs)

    def chain(self) -> nn.Sequential:
        """Plain layers whose outputs differ between actions as the policy's do; what certificates bound."""
        return self.network.chain()


def as_float(obs: Tensor) -> Tensor:
    """Observations as networks and attacks take them: bytes become [0, 1]; vectors are scaled already."""
    return obs / 255 if obs.dtype == torch.uint8 else obs


def default_kind(obs_shape: tuple[int, ...], algo: str) -> Kind:
    """The paper's network for observations of this shape and this learner."""
    if len(obs_shape) == 1:
        return "dueling-mlp" if algo == "dqn" else "actor-critic-mlp"
    if algo == "ppo":
        return "impala"
    return "plain-cnn" if obs_shape == (1, 80, 80) else "dueling-cnn"


def _check(spec: PolicySpec) -> None:
    """Refuse sizes and bounds that no network of ours can have."""
    sizes = (*spec.obs_shape, spec.num_actions, *spec.hidden)
    if len(spec.obs_shape) not in (1, 3) or not all(0 < n <= MAX_SIZE for n in sizes):
        hint = f"observations have 1 or 3 dimensions of 1 to {MAX_SIZE}"
        raise ConfigError(f"a policy cannot have sizes {sizes}", hint)
    if spec.kind == "dueling-mlp" and not spec.hidden:
        raise ConfigError(f"network '{spec.kind}' needs hidden layers", "give their sizes")
    for bound in (spec.low, spec.high):
        if len(bound) not in (1, spec.obs_shape[0]):
            what = f"{len(bound)} bounds for observations of shape {spec.obs_shape}"
            raise ConfigError(what, "give one, or one each")
    if not all(low < high for low, high in zip(spec.low, spec.high, strict=False)):  # NaN included
        raise ConfigError("the smallest valid observation is not below the largest", "correct low and high")


def _build(spec: PolicySpec) -> networks.Network:
    if spec.kind == "custom":
        raise ConfigError("a network of your own cannot be built from its description", "give it to 'bcl.wrap'")
    image = len(spec.obs_shape) == 3
    if image != (not spec.kind.endswith("mlp")):
        fitting = [kind for kind in KINDS if kind.endswith("mlp") != image]
        what = f"network '{spec.kind}' cannot read observations of shape {spec.obs_shape}"
        raise ConfigError(what, f"one of {', '.join(fitting)}")
    if image and min(spec.obs_shape[1:]) < MIN_IMAGE and spec.kind != "impala":
        raise ConfigError(f"network '{spec.kind}' needs images of at least {MIN_IMAGE} pixels a side", "take 'impala'")
    return networks.build(spec.kind, spec.obs_shape, spec.num_actions, spec.hidden, spec.activation)
