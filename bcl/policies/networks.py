"""The networks of the paper, and small ones for vector observations.

Each maps observations (float; images in [0, 1]) to one number per action: Q-values, or logits for the actor-critics.
`chain()` is what certificates bound: plain layers from the observation to scores whose differences between actions are
those of the output, in a dueling network the body and the advantage head: the rest cancels.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bcl import dqn_kernels, small_convs
from bcl.layers import PatchConv, Residual

Activation = Literal["relu", "tanh", "elu"]
ACTIVATIONS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


class Dueling(nn.Module):
    """Q = V + A - mean(A) over a shared body; the heads see the flattened body."""

    def __init__(self, body: nn.Sequential, features: int, hidden: Sequence[int], actions: int) -> None:
        super().__init__()
        self.cnn = body  # the published checkpoints call it so
        self.advantage = mlp(features, hidden, actions)
        self.value = mlp(features, hidden, 1)

    def forward(self, obs: Tensor) -> Tensor:
        features = _through(self.cnn, obs)
        advantage = _last_in_full(self.advantage, features)  # (B, A)
        return _last_in_full(self.value, features) + advantage - advantage.mean(dim=1, keepdim=True)

    def chain(self) -> nn.Sequential:
        return nn.Sequential(*self.cnn, *self.advantage)

    def value_chain(self) -> nn.Sequential:
        return nn.Sequential(*self.cnn, *self.value)


class Plain(nn.Module):
    """Scores from one stack of layers (the v1 network, and imported MLPs)."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.model = layers

    def forward(self, obs: Tensor) -> Tensor:
        return _last_in_full(self.model, obs)

    def chain(self) -> nn.Sequential:
        return self.model


class Custom(nn.Module):
    """A module of the user's own. Certificates bound it where it is a stack of layers that have bounds."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, obs: Tensor) -> Tensor:
        return self.module(obs)

    def chain(self) -> nn.Sequential:
        return self.module if type(self.module) is nn.Sequential else nn.Sequential(self.module)


_SIZES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding"),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.ReLU: ("inplace",),
    nn.ELU: ("alpha",),
    nn.Tanh: (),
    nn.Identity: (),
}


def layers_of(module: nn.Module) -> list[Any] | None:
    """A module as plain data from which `from_layers` builds it; none where a layer has no description."""
    if type(module) is nn.Sequential:
        inner = [layers_of(layer) for layer in module]
        return None if None in inner else ["Sequential", inner]
    if (names := _SIZES.get(type(module))) is None:
        return None
    sizes: dict[str, Any] = {name: getattr(module, name) for name in names}
    if isinstance(module, nn.Linear | nn.Conv2d):
        sizes["bias"] = module.bias is not None
    described = [type(module).__name__, sizes]
    return described if repr(from_layers(described)) == repr(module) else None  # else it has more choices than these


def from_layers(description: Any) -> nn.Module:
    """The inverse of `layers_of`, with fresh weights."""
    name, about = description
    if name == "Sequential":
        return nn.Sequential(*map(from_layers, about))
    kind = next(kind for kind in _SIZES if kind.__name__ == name)
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in about.items()})


class ActorCritic(nn.Module):
    """Logits and a state value from one body; the policy output is the logits."""

    def __init__(self, body: nn.Sequential, features: int, actions: int) -> None:
        super().__init__()
        self.body = body
        self._in_full = 1 + next((i for i, layer in enumerate(body) if [*layer.parameters()]), -1)  # layers
        self.logits = nn.Linear(features, actions)
        self.value = nn.Linear(features, 1)
        head = torch.empty(actions + 1, features)  # initialised as one matrix, as in the reference's shared head
        nn.init.orthogonal_(head, gain=0.01)
        with torch.no_grad():
            self.logits.weight.copy_(head[:-1])
            self.value.weight.copy_(head[-1:])
            self.logits.bias.zero_()
            self.value.bias.zero_()

    def forward(self, obs: Tensor) -> Tensor:
        return _in_full(self.logits, self._features(obs))

    def logits_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self._features(obs)
        return _in_full(self.logits, features), _in_full(self.value, features).squeeze(1)

    def _features(self, obs: Tensor) -> Tensor:
        layers = [*self.body]
        if not torch.is_autocast_enabled(kind := obs.device.type):
            return self.body(obs.to(self.logits.weight.dtype))
        half = torch.get_autocast_dtype(kind)
        # The first layers in full precision, since bf16 would round a perturbation of 1/255 away; what they give is the
        # largest tensor of all, so the rest is in half the memory.
        if len(layers) > 1 and small_convs.fits_pool(obs, *layers[:2]):
            x = small_convs.conv_pool(obs, layers[0], half)
            layers = layers[2:]
        else:
            x = obs
            for layer in layers[: self._in_full]:
                x = _in_full(layer, x)
            x = x.to(half)
            layers = layers[self._in_full :]
        while layers:
            layer = layers.pop(0)
            if layers and small_convs.fits_pool(x, layer, layers[0]):
                x = small_convs.conv_pool(x, layer)
                layers.pop(0)
            else:
                x = layer(x)
        return x

    def chain(self) -> nn.Sequential:
        return nn.Sequential(*self.body, self.logits)


def mlp(inputs: int, hidden: Sequence[int], outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    sizes = [inputs, *hidden]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


Network = Dueling | Plain | ActorCritic


def build(
    kind: str, shape: Sequence[int], actions: int, hidden: Sequence[int] = (), activation: Activation = "relu"
) -> Network:
    """A network with fresh weights; `hidden` and `activation` are those of MLPs."""
    size = math.prod(shape)
    match kind:
        case "dueling-cnn":  # the paper's DQN: 84x84x1 gives 3136 features
            body = nn.Sequential(*_nature_layers(shape[0]))
            return Dueling(body, _features(body, shape), (512,), actions)
        case "plain-cnn":  # RADIAL's v1 DQN: 80x80x1 gives 2304 features
            body = nn.Sequential(*_nature_layers(shape[0]))
            return Plain(nn.Sequential(*body, *mlp(_features(body, shape), (512,), actions)))
        case "impala":
            return _impala(shape, actions)
        case "dueling-mlp":  # the last hidden layer belongs to the heads
            *first, head = hidden
            layers = [nn.Flatten(), *list(mlp(size, first, 1))[:-1]]
            return Dueling(nn.Sequential(*layers), [size, *first][-1], (head,), actions)
        case "actor-critic-mlp":
            layers = [nn.Flatten(), *list(mlp(size, hidden, 1, ACTIVATIONS[activation]))[:-1]]
            return ActorCritic(nn.Sequential(*layers), [size, *hidden][-1], actions)
        case "plain-mlp":  # what Q-networks of other libraries become
            return Plain(nn.Sequential(nn.Flatten(), *mlp(size, hidden, actions, ACTIVATIONS[activation])))
    raise ValueError(f"no network is called '{kind}'")


def _impala(shape: Sequence[int], actions: int) -> ActorCritic:
    """The paper's PPO network: three stages of 16, 32 and 32 channels; 64x64x3 gives 2048 features."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in (16, 32, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [Residual(width), Residual(width)]
        channels = width
    layers += [nn.Flatten(), nn.ReLU()]
    features = _features(nn.Sequential(*layers), shape)
    return ActorCritic(nn.Sequential(*layers, nn.Linear(features, 256), nn.ReLU()), 256, actions)


def _last_in_full(layers: nn.Sequential, x: Tensor) -> Tensor:
    """All layers, the last in full precision even under autocast: half would round differences between actions away."""
    *body, head = layers
    return _in_full(head, _through(body, x))


def _through(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    layers = [*layers]
    if dqn_kernels.fits(layers, x):
        (x,) = dqn_kernels.conv_relu(layers, x)
        layers = layers[2:]
    for layer in layers:
        x = layer(x)
    return x


def _in_full(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        weight = next(layer.parameters(), x)  # a Flatten has none
        return layer(x.to(weight.dtype))


def _nature_layers(channels: int) -> list[nn.Module]:
    return [
        PatchConv(channels, 32, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(),
    ]  # fmt: skip


def _features(body: nn.Sequential, shape: Sequence[int]) -> int:
    with torch.no_grad():
        return body(torch.zeros(1, *shape)).shape[1]
