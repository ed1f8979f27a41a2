"""What is evaluated: a policy, its game, and where its results go."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bcl import envs
from bcl.api import Where, check, game_of, given, path_of
from bcl.config import EvaluationConfig, evaluation_defaults
from bcl.envs import VectorEnv
from bcl.errors import ConfigError, StoreError, WeightsError
from bcl.evaluation import game_for_evaluation
from bcl.evaluation.plan import Starts
from bcl.games import REFERENCE_NOOPS, Game
from bcl.policies import Policy, PolicySpec, files
from bcl.policies.networks import layers_of
from bcl.runs.directory import Agent, Repeats, RunDirectory
from bcl.runs.results import Results
from bcl.settings import Count, Natural

DEVICES = "auto, cpu or cuda"


@dataclass(frozen=True)
class Target:
    """A policy to be evaluated."""

    policy: Policy
    game: Game
    defaults: EvaluationConfig
    results: Results
    name: str
    """Where it was found."""
    start: tuple[str, Agent] | None = None
    """Of a run: what its agent was trained from, with its name; none where that is the agent itself, or not there."""
    kept: bool = True
    """Whether `results` stay; those of an agent in memory do not."""

    def game_to_play(
        self, env_set: str | None, seed: int, episodes: int, num_envs: int = 0, starts: Starts = "game"
    ) -> Game:
        """The game as it is evaluated. Its episodes take the reference's starts with seed 0, one episode per copy and at
        most 20 of them."""
        one_each = 0 < episodes <= len(REFERENCE_NOOPS) and num_envs in (0, episodes)
        noops = episodes if seed == 0 and one_each and starts == "game" else 0
        return game_for_evaluation(self.game, env_set, self.defaults.max_steps, noops)


def load(path: Where, device: str | torch.device = "cpu") -> Policy:
    """The best policy of a run directory, a policy file or `zoo:NAME`, in eval mode; anything else is refused in one
    sentence."""
    return files.load(policy_file(path_of("path", path)), _torch_device(device))


def save(policy: Policy, path: Where) -> None:
    """Write a policy file, atomically."""
    given("policy", policy, Policy, "give a policy (bcl.wrap makes one of a module)")
    file = path_of("path", path)
    if file.is_dir():
        raise StoreError(f"path = '{file}' is a folder", "give the file a name, such as policy.safetensors")
    files.save(policy, file)


def make_env(
    game: str | Game | Callable[..., Any],
    num_envs: Count,
    device: str | torch.device = "cpu",
    threads: Natural = 0,
    *,
    render: bool = False,
) -> VectorEnv:
    """N copies of a game; observations arrive on `device`. `threads` 0 lets the engine choose; results never depend on it,
    nor on `render`, which makes pictures for people (`screen`)."""
    check(make_env, locals())
    return envs.make_env(game_of(game), num_envs, _torch_device(device), threads, render=render)


def wrap(network: nn.Module, game: str | Game | Callable[..., Any]) -> Policy:
    """A module of your own as a policy of a game, for `bcl.evaluate`, `bcl.certify` and, if it is a `Sequential` of plain
    layers, `bcl.save`, after which commands take its file.

    It gets observations (B, *shape) as `bcl.make_env` gives them, bytes divided by 255, and returns one action score per action.
    Certificates need a `Sequential` of layers that have bounds.
    """
    given("network", network, nn.Module, "give a PyTorch module")
    game = game_of(game)
    with contextlib.closing(envs.make_env(game, 1)) as env:
        shape = env.obs_shape
        actions = env.num_actions
        low = env.low
        high = env.high
    layers = layers_of(network)
    notes = {files.LAYERS: json.dumps(layers)} if layers else {}
    spec = PolicySpec("custom", shape, actions, low, high, game=game, notes=notes)
    policy = Policy(spec, network).eval()
    device = next((p.device for p in network.parameters()), None)
    if device is None:
        raise WeightsError("this network has no weights", "give a module that was trained")
    policy.to(device)
    with torch.no_grad():
        try:
            scores = tuple(policy(torch.zeros(2, *shape, device=device)).shape)
        except Exception as error:  # the user's code
            reason = (str(error) or type(error).__name__).splitlines()[0]
            what = f"this network cannot read observations of shape {shape} ({reason})"
            raise WeightsError(what, "put a layer in front of it that brings them into its form") from None
    if scores != (2, actions):
        raise WeightsError(
            f"this network gives {scores} for 2 observations",
            f"'{game.id}' needs one action score for each of {actions} actions",
        )
    return policy


@contextlib.contextmanager
def evaluated(agent: Policy | Where, device: str) -> Iterator[Target]:
    """The best policy of a run, or a policy file, with results in the run or where those of the file go; or an agent in
    memory, whose results are temporary, on its own device unless one is named."""
    if not isinstance(agent, Policy):
        hint = "give a run, a policy file, zoo:NAME or a policy (bcl.wrap makes one of a module)"
        yield _target_of_path(path_of("agent", agent, hint), device)
        return
    with tempfile.TemporaryDirectory(prefix="bcl-") as temporary:
        policy = agent if device == "auto" else agent.to(pick_device(device))
        yield replace(_target_of_policy(policy, Results(Path(temporary)), "an agent in memory"), kept=False)


def _target_of_path(path: Path, device: str) -> Target:
    policy = load(path, pick_device(device))
    run = RunDirectory(path)
    results = run.results if path.is_dir() else files.results_of(path)
    if not run.exists:
        return _target_of_policy(policy, results, str(path))
    start = run.start(trained=files.fingerprint(policy))
    known = start if start and start[1].file.exists() else None
    return Target(policy, run.config.game, run.config.evaluation, results, str(path), known)


def _target_of_policy(policy: Policy, results: Results, name: str) -> Target:
    if policy.spec.game is None:
        raise WeightsError(f"'{name}' does not say which game it plays", "save it with a game in its spec")
    return Target(policy, policy.spec.game, evaluation_defaults(policy.spec.game), results, name)


def policy_file(path: Path) -> Path:
    """The best policy of a run, or the file itself."""
    if not path.is_dir():
        return path
    if runs := Repeats(path).runs():
        raise StoreError(f"'{path}' holds {len(runs)} repeats", f"give one of them, such as {runs[0].path}")
    run = RunDirectory(path)
    if run.best.exists():
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


def pick_device(name: str) -> str:
    """`auto` is the GPU where there is one."""
    given("device", name, str, DEVICES)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device '{name}'", DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("PyTorch sees no CUDA device here", "take --device cpu")
    return name


def _torch_device(device: str | torch.device) -> torch.device:
    """One that this machine has: `auto`, cpu, cuda, or a GPU by its number such as cuda:1."""
    if not isinstance(device, torch.device) and not str(device).startswith("cuda:"):
        return torch.device(pick_device(device))
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"unknown device '{device}'", DEVICES) from None
    if found.type not in ("cpu", "cuda") or (found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"PyTorch has no device '{device}' here", DEVICES)
    return found
