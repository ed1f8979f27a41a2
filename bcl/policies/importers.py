"""Weights of other projects, read without running anything they carry.

`radial-dqn`: radial_rl_v2, SA-DQN natural and BCL's dueling networks. They see the image transposed (x[i, j] is row j,
column i); we transpose the kernels and the first dense layers instead, so that the upright network computes the same Q.
`radial-dqn-v1`: radial_rl's plain network (upright already). `radial-ppo`: the IMPALA networks of radial_rl_v2 and BCL.
`sb3`: Stable-Baselines3 DQN, PPO and A2C agents with an `MlpPolicy`, from the tensors and the plain JSON in their zip.
The scale of our observations moves into the first layer, and the statistics of `VecNormalize` too (docs/runs.md). The
zip of a DQN does not tell whether it was trained behind `VecNormalize`.
"""

import contextlib
import dataclasses
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcl.envs.gymnasium import GymnasiumEnvs
from bcl.errors import WeightsError, counted, did_you_mean
from bcl.games import AtariGame, Game, GymnasiumGame, ProcgenGame
from bcl.policies.networks import ACTIVATIONS, Activation
from bcl.policies.policy import Kind, Policy, PolicySpec

Weights = dict[str, Tensor]
MAX_BYTES = 1 << 28  # of one member, and of all weights: far more than any MLP has, far less than any machine's memory
SUPPORTED = (
    "only DQN, PPO and A2C agents with the MlpPolicy of Stable-Baselines3 and discrete actions can be rebuilt; "
    "bcl.wrap takes any PyTorch module"
)
VECTORS = "name a Gymnasium game with vector observations, such as CartPole-v1"
ACTOR_HEAD = "action_net"  # of PPO and A2C
EPSILON = 1e-8  # that VecNormalize adds to variances, unless told otherwise
MODULES = ("stable_baselines3.dqn.policies", "stable_baselines3.common.policies")
ACTIVATION_NAMES = {str(layer): name for name, layer in ACTIVATIONS.items()}
HARMLESS = {  # policy_kwargs that leave the way from a vector to the scores as the shapes and the activation tell it
    "activation_fn", "net_arch", "ortho_init", "log_std_init", "normalize_images", "share_features_extractor",
    "optimizer_class", "optimizer_kwargs", ":type:", ":serialized:",
}  # fmt: skip


def import_policy(path: str | Path, format: str, game: Game, normalise: Path | None = None) -> Policy:
    """A policy for `game` from a published checkpoint; `normalise`: statistics of an `sb3` agent's observations."""
    path = Path(path)
    if format not in FORMATS:
        raise WeightsError(f"unknown format '{format}'", did_you_mean(format, FORMATS, KNOWN_FORMATS))
    if normalise is not None and format != "sb3":
        raise WeightsError(f"format '{format}' has no statistics of observations", "--normalise is for sb3")
    if not path.is_file():
        raise WeightsError(f"'{path}' is not a file", "check the path")
    policy = _import_sb3(path, game, normalise) if format == "sb3" else _import_radial(path, format, game)
    if not all(bool(torch.isfinite(w).all()) for w in policy.network.state_dict().values()):
        raise WeightsError(f"'{path}' has weights that are not finite", "the training that wrote it diverged")
    return policy.eval()


def _import_radial(path: Path, format: str, game: Game) -> Policy:
    kind, shape, convert, head, engine, changes = _RADIAL[format]
    if not isinstance(game, engine):
        name = engine.engine.capitalize()
        what = f"format '{format}' is for {name} games, and '{game.id}' is not one"
        raise WeightsError(what, f"name a game of {name}")
    game = dataclasses.replace(game, **changes)
    weights = _read_checkpoint(path)
    try:
        converted = convert(weights)
        actions = len(converted[head])
        spec = PolicySpec(kind, shape, actions, (0.0,), (1.0,), game=game, parent=f"{format}:{path.name}")
        policy = Policy(spec)
        policy.network.load_state_dict(converted)
    except (KeyError, RuntimeError, IndexError, TypeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise WeightsError(f"'{path}' is not a {format} checkpoint ({what})", KNOWN_FORMATS) from None
    expected = game.num_actions if isinstance(game, AtariGame) else 15
    if expected and actions != expected:
        what = f"has {counted(actions, 'action')} but '{game.id}' has {expected}"
        raise WeightsError(f"'{path}' {what}", "name the game it was trained on")
    return policy


def _from_radial_dqn(weights: Weights) -> Weights:
    """Swap height and width in every kernel and in the columns of the layers that read the 64x7x7 features."""
    upright = dict(weights)
    for layer in ("cnn.0", "cnn.2", "cnn.4"):
        upright[f"{layer}.weight"] = weights[f"{layer}.weight"].transpose(2, 3)
    for layer in ("advantage.0", "value.0"):
        dense = weights[f"{layer}.weight"]
        upright[f"{layer}.weight"] = dense.view(len(dense), 64, 7, 7).transpose(2, 3).flatten(1)
    return upright


def _from_radial_ppo(weights: Weights) -> Weights:
    """Split the head (15 logits, then the value) and drop its second copy."""
    head = {part: weights[f"model.16.{part}"] for part in ("weight", "bias")}
    for part, tensor in head.items():
        if not torch.equal(tensor, weights[f"logits_fc.{part}"]):
            raise RuntimeError("its two copies of the head differ")
    body = {
        name.replace(".model.", ".path.").replace("model.", "body.", 1): tensor
        for name, tensor in weights.items()
        if not name.startswith(("model.16.", "logits_fc."))
    }
    for part, tensor in head.items():
        body |= {f"logits.{part}": tensor[:-1], f"value.{part}": tensor[-1:]}
    return body


# Network, shape of an observation, conversion, last layer, engine, and how its game was played.
_Radial = tuple[Kind, tuple[int, ...], Callable[[Weights], Weights], str, type[Game], dict[str, Any]]
_V2 = {"pipeline": "v2", "pool": "rgb"}  # the reference pools in RGB, so its agents are evaluated so
_V1 = {"pipeline": "v1", "pool": "rgb", "num_actions": 0, "max_steps": 10_000}
_RADIAL: dict[str, _Radial] = {
    "radial-dqn": ("dueling-cnn", (1, 84, 84), _from_radial_dqn, "advantage.2.weight", AtariGame, _V2),
    "radial-dqn-v1": ("plain-cnn", (1, 80, 80), dict, "model.9.weight", AtariGame, _V1),
    "radial-ppo": ("impala", (3, 64, 64), _from_radial_ppo, "logits.weight", ProcgenGame, {}),
}
FORMATS = (*_RADIAL, "sb3")
KNOWN_FORMATS = f"formats are {', '.join(FORMATS)}"


def _read_checkpoint(path: Path) -> Weights:
    with _read_safely(path, "a PyTorch checkpoint", "get it again from its source"):
        data: Any = torch.load(path, map_location="cpu", weights_only=True)
    weights = data.get("model_state_dict", data) if isinstance(data, dict) else None
    if not isinstance(weights, dict) or not weights or not all(isinstance(w, Tensor) for w in weights.values()):
        raise WeightsError(f"'{path}' holds no state dict", KNOWN_FORMATS)
    return {str(name): tensor.float() for name, tensor in weights.items()}


@contextlib.contextmanager
def _read_safely(path: Path, what: str, hint: str) -> Iterator[None]:
    """Whatever garbage makes readers raise, as one sentence; a ValueError says itself what is wrong."""
    try:
        yield
    except Exception as error:
        reason = f"{' '.join(str(error).split()):.100}" if type(error) is ValueError else type(error).__name__
        reason = "it asks to run code" if isinstance(error, pickle.UnpicklingError) else reason
        raise WeightsError(f"'{path}' cannot be read safely as {what} ({reason})", hint) from None


def _import_sb3(path: Path, game: Game, normalise: Path | None) -> Policy:
    """From what `model.save` wrote; `normalise`: an npz file with VecNormalize's statistics."""
    data, weights = _read_sb3(path)
    if any(tensor.dim() > 2 for tensor in weights.values()):  # said before what the game lacks: no game would do
        raise WeightsError(f"'{path}' has a CNN policy", SUPPORTED)
    if not isinstance(game, GymnasiumGame):
        raise WeightsError(f"format 'sb3' is for Gymnasium games, and '{game.id}' is not one", VECTORS)
    with contextlib.closing(GymnasiumEnvs(game, 1, torch.device("cpu"))) as env:
        if len(env.obs_shape) != 1:
            raise WeightsError(f"format 'sb3' is for vector observations, and '{game.id}' has images", VECTORS)
    inputs = env.obs_shape[0]
    activation = _activation(path, data)
    names, default = _layers(path, data, weights, normalised=normalise is not None)
    mean, deviation = _statistics(normalise, inputs)
    actor = names[-1] == ACTOR_HEAD
    sizes = [inputs, *(len(weights[f"{name}.weight"]) for name in names)]
    own = weights[f"{names[0]}.weight"].shape[-1]
    if (own, sizes[-1]) != (inputs, env.num_actions):
        what = f"has {counted(own, 'input')} and {counted(sizes[-1], 'action')}"
        other = f"'{game.id}' has {inputs} and {env.num_actions}"
        raise WeightsError(f"'{path}' {what}, but {other}", "name the game it was trained on")
    layers: Weights = {}
    for i, (name, (a, b)) in enumerate(zip(names, pairwise(sizes), strict=True)):
        weight, bias = (weights[f"{name}.{part}"].double() for part in ("weight", "bias"))
        if weight.shape != (b, a) or bias.shape != (b,):
            raise WeightsError(f"'{path}' has layers that do not fit together ('{name}')", "get it again")
        if i == 0:  # what it read was (scale * ours - mean) / deviation
            bias = bias - weight @ (mean / deviation)
            weight = weight * torch.from_numpy(env.scale) / deviation
        ours = "logits" if name == ACTOR_HEAD else f"{'body' if actor else 'model'}.{2 * i + 1}"
        layers |= {f"{ours}.weight": weight, f"{ours}.bias": bias}
    if actor:
        layers |= {"value.weight": torch.zeros(1, sizes[-2]), "value.bias": torch.zeros(1)}
    kind: Kind = "actor-critic-mlp" if actor else "plain-mlp"
    spec = PolicySpec(
        kind, env.obs_shape, env.num_actions, env.low, env.high, tuple(sizes[1:-1]), activation or default, game
    )
    policy = Policy(dataclasses.replace(spec, parent=f"sb3:{path.name}"))
    policy.network.load_state_dict(layers)
    return policy


def _activation(path: Path, data: dict[str, Any]) -> Activation | None:
    """What the JSON says is between the layers; refuses what is no simple MlpPolicy."""
    keys = ("policy_class", "policy_kwargs", "observation_space", "action_space")
    made_by, kwargs, observations, actions = (data[key] if isinstance(data.get(key), dict) else None for key in keys)
    if made_by is None or kwargs is None or kwargs.keys() == {":type:", ":serialized:"}:
        raise WeightsError(f"'{path}' does not say in plain text how its policy was made", SUPPORTED)
    for what, space, kind in (("observes", observations, "Box"), ("acts in", actions, "Discrete")):
        if not str(found := (space or {}).get(":type:")).endswith(f".{kind}'>"):
            raise WeightsError(f"'{path}' {what} a space of type {found!r:.80} and not {kind}", SUPPORTED)
    if (module := made_by.get("__module__")) not in MODULES:
        raise WeightsError(f"'{path}' has a policy class of module {module!r:.80}", SUPPORTED)
    if strange := sorted(kwargs.keys() - HARMLESS):
        raise WeightsError(f"'{path}' has a policy made with {strange[0]!r:.80}", SUPPORTED)
    if "activation_fn" not in kwargs:
        return None
    if (name := str(kwargs["activation_fn"])) not in ACTIVATION_NAMES:
        raise WeightsError(f"'{path}' has activations of type {name!r:.80}", "only ReLU, Tanh and ELU are supported")
    return ACTIVATION_NAMES[name]


def _statistics(path: Path | None, size: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every raw observation dimension in training; 0 and 1 where nothing was normalised."""
    if path is None:
        return torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    hint = "write plain numbers with np.savez(file, mean=env.obs_rms.mean, var=env.obs_rms.var, epsilon=env.epsilon)"
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no npz file")
        with np.load(path, allow_pickle=False) as file:
            mean, var = (file[name].astype(np.float64, casting="same_kind").ravel() for name in ("mean", "var"))
            epsilon = float(file["epsilon"]) if "epsilon" in file else EPSILON
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        reason = "it holds pickled objects, which are never read" if "pickle" in str(error) else error
        raise WeightsError(f"'{path}' holds no statistics of observations ({reason})", hint) from None
    if (var < 0).any() or epsilon < 0:
        raise WeightsError(f"'{path}' has a negative variance or epsilon", hint)
    deviation = np.sqrt(var + epsilon)
    if mean.shape != (size,) or var.shape != (size,):
        raise WeightsError(f"'{path}' does not have {size} means and variances", hint)
    if not (np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation > 0).all()):
        raise WeightsError(f"'{path}' has means or deviations that are not finite, or deviations of 0", hint)
    return torch.from_numpy(mean), torch.from_numpy(deviation)


def _layers(path: Path, data: dict[str, Any], weights: Weights, normalised: bool) -> tuple[list[str], Activation]:
    """The linear layers from observation to scores, and the default between them."""
    actor = f"{ACTOR_HEAD}.weight" in weights
    if actor and data.get("_last_original_obs") is not None and not normalised:  # kept only behind VecNormalize
        what = f"'{path}' was trained behind VecNormalize, whose statistics are not in the zip"
        hint = "give --normalise FILE.npz: mean and var of its obs_rms, its epsilon; with norm_obs=False zeros and ones"
        raise WeightsError(what, hint)
    body, *head = ("mlp_extractor.policy_net.", ACTOR_HEAD) if actor else ("q_net.q_net.",)
    unused = ("mlp_extractor.value_net.", "value_net.") if actor else ("q_net_target.q_net.",)
    depth = sum(name.startswith(body) and name.endswith(".weight") for name in weights)
    layers = [f"{body}{2 * i}" for i in range(max(depth, 1 - len(head)))] + head  # activations take the odd places
    wanted = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    strange = sorted(name for name in weights.keys() - wanted if not name.startswith(unused))
    if strange or (missing := sorted(wanted - weights.keys())):
        what = f"has {strange[0]!r:.80}" if strange else f"lacks '{missing[0]}'"
        raise WeightsError(f"'{path}' is not an MLP agent with discrete actions (it {what})", SUPPORTED)
    return layers, "tanh" if actor else "relu"


def _read_sb3(path: Path) -> tuple[dict[str, Any], Weights]:
    """The plain JSON and the tensors of a zip."""
    with _read_safely(path, "an SB3 agent", "give the zip that model.save of Stable-Baselines3 wrote"):
        with zipfile.ZipFile(path) as archive:
            data = json.loads(_member(archive, "data"))
            policy = _member(archive, "policy.pth")
        with zipfile.ZipFile(io.BytesIO(policy)) as inner:  # what torch is about to inflate
            if sum(info.file_size for info in inner.infolist()) > MAX_BYTES:
                raise ValueError("its 'policy.pth' is too large")
        weights = torch.load(io.BytesIO(policy), map_location="cpu", weights_only=True)
        if not isinstance(data, dict) or not isinstance(weights, dict) or not all(map(_is_plain, weights.items())):
            raise ValueError("it holds no state dict of plain tensors")
        if sum(tensor.numel() for tensor in weights.values()) > MAX_BYTES // 4:  # views repeat what they share
            raise ValueError("its weights are too large")
    return data, weights


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if name not in archive.namelist():
        raise ValueError(f"it has no '{name}'")
    info = archive.getinfo(name)
    # the other methods inflate without the bound of the declared size
    if info.file_size > MAX_BYTES or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its '{name}' is too large or packed in an unusual way")
    return archive.read(info)


def _is_plain(item: tuple[object, object]) -> bool:
    name, tensor = item
    return (
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.dim() > 0
    )
