"""bcl.load, bcl.save, bcl.make_env, bcl.wrap and bcl.import_policy."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcl.api import Policy, Where, check, game_of, given, path_of, text
from bcl.errors import ConfigError, StoreError, WeightsError
from bcl.games import Game
from bcl.runs import store
from bcl.runs.directory import Repeats, RunDirectory
from bcl.settings import Count, Natural

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bcl.envs import VectorEnv

DEVICES = "auto, cpu or cuda"


def load(path: Where, device: "str | torch.device" = "cpu") -> Policy:
    """The best policy of a run directory, a policy file or `zoo:NAME`, in eval mode."""
    from bcl.policies import files

    return files.load(policy_file(path_of("path", path)), pick_device(device, numbered=True))


def save(policy: Policy, path: Where) -> None:
    """Write a policy file, atomically."""
    from bcl.policies import Policy, files

    given("policy", policy, Policy, "give a policy (bcl.wrap makes one of a module)")
    file = path_of("path", path)
    if file.is_dir():
        raise StoreError(f"path = '{file}' is a folder", "give the file a name, such as policy.safetensors")
    files.save(policy, file)


def make_env(
    game: str | Game | Callable[..., Any],
    num_envs: Count,
    device: "str | torch.device" = "cpu",
    threads: Natural = 0,
    *,
    render: bool = False,
) -> "VectorEnv":
    """N copies of a game; observations arrive on `device`. `threads` 0 lets the engine choose; results never depend on
    it, nor on `render`, which makes pictures for people (`screen`)."""
    from bcl import envs

    check(make_env, locals())
    played_on = pick_device(device, numbered=True)
    return envs.make_env(game_of(game), int(num_envs), played_on, int(threads), render=render)


def wrap(network: "nn.Module", game: str | Game | Callable[..., Any]) -> Policy:
    """A module of your own as a policy of a game, for `bcl.evaluate`, `bcl.certify` and, if it is a `Sequential` of
    plain layers, `bcl.save`, after which commands take its file.

    It gets observations (B, *shape) as `bcl.make_env` gives them, bytes divided by 255, and returns one action score
    per action. Certificates need a `Sequential` of layers that have bounds.
    """
    import torch
    from torch import nn

    from bcl import envs
    from bcl.policies import Policy, PolicySpec, files
    from bcl.policies.networks import layers_of

    given("network", network, nn.Module, "give a PyTorch module")
    game = game_of(game)
    layers = layers_of(network)
    notes = {files.LAYERS: json.dumps(layers)} if layers else {}
    with contextlib.closing(envs.make_env(game, 1)) as env:
        spec = PolicySpec("custom", env.obs_shape, env.num_actions, env.low, env.high, game=game, notes=notes)
    policy = Policy(spec, network).eval()
    device = next((p.device for p in (*network.parameters(), *network.buffers())), torch.device("cpu"))
    policy.to(device)
    with torch.no_grad():
        try:
            found = policy(torch.zeros(2, *spec.obs_shape, device=device))
        except Exception as error:  # the user's code
            reason = (str(error) or type(error).__name__).splitlines()[0]
            what = f"this network cannot read observations of shape {spec.obs_shape} ({reason})"
            raise WeightsError(what, "put a layer in front of it that brings them into its form") from None
    scores = tuple(found.shape) if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
    if scores != (2, spec.num_actions):
        hint = f"'{game.id}' needs one action score for each of {spec.num_actions} actions"
        raise WeightsError(f"this network gives {scores} for 2 observations", hint)
    return policy


def import_policy(
    path: Where,
    format: str,
    game: str | Game | Callable[..., Any],
    /,
    *,
    normalise: Where | None = None,
    **settings: Any,
) -> Policy:
    """Convert a published checkpoint into a bcl policy, without running anything it carries.

    `bcl.save` writes the policy to a file. Settings of a game by name are given as to `bcl.train`, those of other
    sections are refused.

    Args:
        path: The foreign checkpoint.
        format: radial-dqn (radial_rl_v2, SA-DQN, BCL), radial-dqn-v1 (radial_rl), radial-ppo (Procgen) or sb3 (a
            Stable-Baselines3 DQN, PPO or A2C zip).
        game: The game it plays, such as fruitbot.
        normalise: sb3: an npz file with mean and var of VecNormalize's obs_rms, and its epsilon, where the agent was
            trained behind it.
    """
    text("format", format, "give its name, such as 'sb3'")
    statistics = None if normalise is None else path_of("normalise", normalise)
    if statistics and not statistics.is_file():
        raise WeightsError(f"normalise = '{statistics}' is not a file", "give the npz file of the statistics")
    for name, value in settings.items():
        if name != "game":
            name += f".{next(iter(value))}" if isinstance(value, dict) else ""
            hint = "leave it out: only settings of the game count here (--game.KEY VALUE)"
            raise ConfigError(f"{name} changes nothing in an import", hint)
    played = game_of(game, settings)
    from bcl.policies import importers

    return importers.import_policy(path_of("path", path), format, played, statistics)


def policy_file(path: Path) -> Path:
    """The best policy of a run, or the file itself."""
    if not path.is_dir():
        return path
    if runs := Repeats(path).runs():
        raise StoreError(f"'{path}' holds {len(runs)} repeats", f"give one of them, such as {runs[0].path}")
    run = RunDirectory(path)
    if store.exists(run.best):
        return run.best
    if not run.exists:
        raise StoreError(f"'{path}' is not a run directory: it has no config.toml", _instead_of(path))
    RunDirectory.open(path)  # refuses a part of a run
    if run.finished:
        raise StoreError(f"'{path}' is finished but its weights are missing", "copy best/ too, or give a policy file")
    raise StoreError(f"'{path}' has no best policy yet", "give a policy file, or wait for the run")


def _instead_of(folder: Path) -> str:
    """What to give instead of a folder that is no run."""
    if inside := [*sorted(folder.glob("*.safetensors")), *(run.path for run in RunDirectory.inside(folder))]:
        return f"give what is in it, such as {inside[0]}"
    return "give a directory that 'bcl train' made, a policy file or zoo:NAME"


def pick_device(device: "str | torch.device", numbered: bool = False) -> "torch.device":
    """One that this machine has; `auto`: the GPU if there is one; `numbered` allows a GPU by number, such as cuda:1."""
    import torch

    given("device", device, (str, torch.device), DEVICES)
    gpus = torch.cuda.device_count() if str(device) != "cpu" and torch.cuda.is_available() else 0
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"unknown device '{device}'", DEVICES) from None
    if found.type not in ("cpu", "cuda") or (found.index is not None and not numbered):
        raise ConfigError(f"unknown device '{device}'", DEVICES)
    if found.type == "cuda" and (found.index or 0) >= gpus:
        number = f" {found.index}" if found.index else ""
        raise ConfigError(f"PyTorch sees no CUDA device{number} here", "take --device cpu")
    return found
