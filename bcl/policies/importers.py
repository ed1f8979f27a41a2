"""Weights of other projects, read without running anything they carry.

`radial-dqn`: radial_rl_v2, SA-DQN natural and BCL's dueling networks. They see the image transposed (x[i, j] is row j,
column i); we transpose the kernels and the first dense layers instead, so that the upright network computes the same Q.
`radial-dqn-v1`: radial_rl's plain network (upright already). `radial-ppo`: the IMPALA networks of radial_rl_v2 and BCL.
`sb3`: see `bcl.policies.sb3`.
"""

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bcl.errors import WeightsError, counted, did_you_mean
from bcl.games import AtariGame, Game, ProcgenGame
from bcl.policies.policy import Kind, Policy, PolicySpec
from bcl.policies.sb3 import import_zip

Weights = dict[str, Tensor]
FORMATS = ("radial-dqn", "radial-dqn-v1", "radial-ppo", "sb3")


def import_policy(path: str | Path, format: str, game: Game, normalise: Path | None = None) -> Policy:
    """A policy for `game` from a published checkpoint; `normalise`: statistics of an `sb3` agent's observations."""
    path = Path(path)
    if format not in FORMATS:
        hint = did_you_mean(format, FORMATS, f"formats are {', '.join(FORMATS)}")
        raise WeightsError(f"unknown format '{format}'", hint)
    if format == "sb3":
        return import_zip(path, game, normalise)
    if normalise is not None:
        raise WeightsError(f"format '{format}' has no statistics of observations", "--normalise is for sb3")
    kind, shape, convert, game = _formats(format, game)
    weights = _read_checkpoint(path)
    try:
        converted = convert(weights)
        actions = len(converted[_HEADS[kind]])
        spec = PolicySpec(kind, shape, actions, (0.0,), (1.0,), game=game, parent=f"{format}:{path.name}")
        policy = Policy(spec)
        policy.network.load_state_dict(converted)
    except (KeyError, RuntimeError, IndexError, TypeError) as error:
        what = str(error).splitlines()[0] if not isinstance(error, KeyError) else f"it has no {error}"
        raise WeightsError(
            f"'{path}' is not a {format} checkpoint ({what})", f"formats are {', '.join(FORMATS)}"
        ) from None
    expected = game.num_actions if isinstance(game, AtariGame) else 15
    if expected and actions != expected:
        raise WeightsError(
            f"'{path}' has {counted(actions, 'action')} but '{game.id}' has {expected}",
            "name the game it was trained on",
        )
    if not all(bool(torch.isfinite(w).all()) for w in policy.network.state_dict().values()):
        raise WeightsError(f"'{path}' has weights that are not finite", "it comes from a training that broke")
    return policy.eval()


_HEADS: dict[Kind, str] = {
    "dueling-cnn": "advantage.2.weight",
    "plain-cnn": "model.9.weight",
    "impala": "logits.weight",
}


def _formats(format: str, game: Game) -> tuple[Kind, tuple[int, ...], Callable[[Weights], Weights], Game]:
    if format == "radial-ppo":
        if not isinstance(game, ProcgenGame):
            raise WeightsError(
                f"format 'radial-ppo' is for Procgen games, and '{game.id}' is not one", "name a Procgen game"
            )
        return "impala", (3, 64, 64), _from_radial_ppo, game
    if not isinstance(game, AtariGame):
        raise WeightsError(f"format '{format}' is for Atari games, and '{game.id}' is not one", "name an Atari game")
    if format == "radial-dqn":  # the reference pools in RGB, so its agents are judged so
        return "dueling-cnn", (1, 84, 84), _from_radial_dqn, dataclasses.replace(game, pipeline="v2", pool="rgb")
    v1 = dataclasses.replace(game, pipeline="v1", pool="rgb", num_actions=0, max_steps=10_000)
    return "plain-cnn", (1, 80, 80), dict, v1


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
    return (
        body
        | {f"logits.{part}": t[:-1] for part, t in head.items()}
        | {f"value.{part}": t[-1:] for part, t in head.items()}
    )


def _read_checkpoint(path: Path) -> Weights:
    if not path.is_file():
        raise WeightsError(f"'{path}' is not a file", "check the path")
    try:
        data: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # garbage makes the reader raise almost anything
        reason = "it asks to run code" if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        hint = "get it again from its source"
        raise WeightsError(f"'{path}' cannot be read safely as a PyTorch checkpoint ({reason})", hint) from None
    weights = data.get("model_state_dict", data) if isinstance(data, dict) else None
    if not isinstance(weights, dict) or not weights or not all(isinstance(w, Tensor) for w in weights.values()):
        raise WeightsError(f"'{path}' holds no state dict", f"formats are {', '.join(FORMATS)}")
    return {str(name): tensor.float() for name, tensor in weights.items()}
