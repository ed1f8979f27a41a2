"""Policies on disk: safetensors with metadata enough to rebuild the policy from the file alone."""

import contextlib
import copy
import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch

import bcl
from bcl import zoo
from bcl.errors import BclError, StoreError, WeightsError
from bcl.games import game_from_dict, game_to_dict
from bcl.policies.networks import from_layers
from bcl.policies.policy import CUSTOM, Policy, PolicySpec
from bcl.runs import store
from bcl.runs.directory import POLICY, RunDirectory
from bcl.runs.results import Results
from bcl.runs.store import sealed, unsealed
from bcl.settings import typed_values

FORMAT = 1
OTHER_VERSION = "it was written by another version of bcl, or damaged"
NumberFormat = Literal["float32", "float16", "int16", "int8"]
"""How numbers are stored; all load as float32. int16, int8: multiples of a scale per row, for all but vectors."""
SCALE = ":scale"
DAMAGED = "it is damaged; get it again"
LAYERS = "layers"  # note of a wrapped network: what it is made of, as JSON


def save(policy: Policy, path: str | Path) -> None:
    store.write_bytes(Path(path), to_bytes(policy))


def to_bytes(policy: Policy, weights: NumberFormat = "float32") -> bytes:
    """The file content that `load` reads."""
    spec = policy.spec
    if spec.kind == CUSTOM and LAYERS not in spec.notes:
        hint = "make it a Sequential of Linear, Conv2d, MaxPool2d, Flatten, ReLU, Tanh and ELU, or save its state_dict"
        raise WeightsError("this network of your own cannot be rebuilt from a file", hint)
    tensors = {name: t.detach().cpu().contiguous() for name, t in policy.network.state_dict().items()}
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise WeightsError(f"'{name}' of this policy has values that are not finite", "its training diverged")
    if weights != "float32":
        tensors = _packed(tensors, weights)
        policy = copy.deepcopy(policy)  # whose fingerprint is that of what will be loaded
        policy.network.load_state_dict(_unpacked(tensors))
    about = dataclasses.asdict(spec) | {
        "format": FORMAT,
        "bcl_version": bcl.__version__,
        "fingerprint": fingerprint(policy),
        "game": game_to_dict(spec.game) if spec.game else None,
        "low": [None if math.isinf(x) else x for x in spec.low],  # JSON has no infinity
        "high": [None if math.isinf(x) else x for x in spec.high],
    }
    return safetensors.torch.save(tensors, metadata={"bcl": json.dumps(sealed(about))})


def _packed(tensors: dict[str, torch.Tensor], weights: NumberFormat) -> dict[str, torch.Tensor]:
    if weights == "float16":
        return {name: tensor.half() for name, tensor in tensors.items()}
    kind = {"int16": torch.int16, "int8": torch.int8}[weights]
    packed = {}
    for name, tensor in tensors.items():
        packed[name] = tensor
        if tensor.dim() > 1:
            largest = tensor.abs().amax(dim=tuple(range(1, tensor.dim())), keepdim=True)
            scale = largest.clamp(min=torch.finfo(torch.float32).tiny) / torch.iinfo(kind).max
            packed |= {name: (tensor / scale).round().to(kind), name + SCALE: scale}
    return packed


def _unpacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Whole numbers times the scale of their row; other tensors as they are."""
    scales = {name.removesuffix(SCALE): tensor for name, tensor in tensors.items() if name.endswith(SCALE)}
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith(SCALE)}
    return {name: tensor * scales[name] if name in scales else tensor for name, tensor in plain.items()}


def is_policy(path: Path) -> bool:
    """Whether this is a policy file, or an agent of the zoo."""
    with store.clear_reads(path):
        return path.is_file() or zoo.find(path) is not None


def results_of(path: Path) -> Results:
    """Of a policy file, beside it; of an agent of the zoo, in the current folder."""
    agent = zoo.find(path)
    return agent.new_results if agent else Results.beside(path)


def fingerprint(policy: Policy) -> str:
    """A short name for exactly this function: weights, network and bounds."""
    spec = policy.spec
    network = (spec.kind, spec.obs_shape, spec.num_actions, spec.hidden, spec.activation, spec.low, spec.high)
    digest = hashlib.sha256(repr(network).encode())
    if spec.kind == CUSTOM:
        digest.update(repr(policy.network).encode())  # its layers, which no description names
    for name, tensor in sorted(policy.network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())  # as it is loaded
    return digest.hexdigest()[:16]


def load(path: str | Path, device: str | torch.device = "cpu") -> Policy:
    """A policy in eval mode from a file that `save` wrote, or `zoo:NAME`; anything else is refused in one sentence."""
    path = Path(path)
    try:
        return _load(path).to(device).eval()
    except WeightsError as error:
        way_out = "" if error.hint == OTHER_VERSION else _way_out_in_run(path)
        raise WeightsError(error.message, way_out or error.hint) from None


def _way_out_in_run(path: Path) -> str:
    """What to do about a damaged file of a run; empty: it is none."""
    run = RunDirectory.around(path)
    if run is None or path.name != POLICY or path == run.init.policy or not path.is_file():
        return ""
    with contextlib.suppress(StoreError):  # results that are damaged too
        saved = run.saved_in(path)
        for other in run.policies() if saved else ():
            with contextlib.suppress(WeightsError):
                if other != path and fingerprint(_load(other)) == saved:
                    return f"restore it from its copy '{other}'"
    return "train it again"


def _load(path: Path) -> Policy:
    agent = zoo.find(path)
    about, tensors = _read(agent.file if agent else path)
    spec = _spec(path, about)
    try:
        tensors = _unpacked(tensors)
        policy = Policy(spec, from_layers(json.loads(spec.notes[LAYERS])) if spec.kind == CUSTOM else None)
        policy.network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except Exception as error:  # damage makes PyTorch raise almost anything
        reason = " ".join(str(error).split())
        raise WeightsError(f"'{path}' does not fit its own description ({reason:.200})", DAMAGED) from None
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor.float()).all():
            what = f"'{path}' has values in '{name}' that are not finite"
            raise WeightsError(what, "the training that wrote it diverged")
    if about.get("fingerprint") != fingerprint(policy):
        raise WeightsError(f"'{path}' is damaged: its weights are not those that were saved", "get it again")
    return policy


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    hint = "give a .safetensors file that bcl wrote, or convert a foreign one with 'bcl import'"
    try:
        if path.is_dir():
            raise WeightsError(f"'{path}' is a directory, not a weights file", hint)
        if not path.exists():
            raise WeightsError(f"'{path}' does not exist", "check the path")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            about = unsealed(json.loads(metadata["bcl"])) if "bcl" in metadata else None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError, RecursionError, NotImplementedError) as error:
        raise WeightsError(f"'{path}' is not a readable safetensors file ({error})", hint) from None
    if about is None:
        raise WeightsError(f"'{path}' holds tensors but no bcl policy", hint)
    return about, tensors


def _spec(path: Path, about: dict[str, Any]) -> PolicySpec:
    if about.get("format") != FORMAT:
        raise WeightsError(f"'{path}' describes a policy of format {about.get('format')}", OTHER_VERSION)
    try:
        names = ("kind", "obs_shape", "num_actions", "hidden", "activation", "parent")
        return PolicySpec(
            **typed_values(PolicySpec, {name: about[name] for name in names}),
            low=tuple(-math.inf if x is None else float(x) for x in about["low"]),
            high=tuple(math.inf if x is None else float(x) for x in about["high"]),
            game=game_from_dict(about["game"]) if about["game"] else None,
            notes={str(k): str(v) for k, v in about["notes"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, BclError) as error:
        raise WeightsError(f"'{path}' has a description that does not fit ({error})", OTHER_VERSION) from None
