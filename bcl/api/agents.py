"""What is judged: a policy, its game, and where its results go."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bcl.api import Where, given, named_game, path_of
from bcl.config import EvaluationConfig, evaluation_defaults, resolve
from bcl.envs import make_env
from bcl.errors import ConfigError, StoreError, WeightsError
from bcl.evaluation import game_for_evaluation
from bcl.evaluation.plan import Starts
from bcl.games import REFERENCE_NOOPS, Game
from bcl.policies import Policy, PolicySpec, files, importers
from bcl.policies.networks import layers_of
from bcl.runs.directory import Agent, Repeats, RunDirectory
from bcl.runs.results import Results


@dataclass(frozen=True)
class Target:
    """A policy to be judged."""

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
    return files.load(policy_file(path_of("path", path)), device)


def import_policy(
    path: Where, format: str, game: str | Game | Callable[..., Any], *, normalise: Where | None = None
) -> Policy:
    """A policy for a game from another project's checkpoint, as `bcl import` reads it; `bcl.save` writes it to a file."""
    given("format", format, str, "give its name, such as 'sb3'")
    statistics = path_of("normalise", normalise) if normalise is not None else None
    return importers.import_policy(path_of("path", path), format, _game(game), statistics)


def _game(game: str | Game | Callable[..., Any]) -> Game:
    return game if isinstance(game, Game) else resolve(named_game(game)).game


def wrap(network: nn.Module, game: str | Game | Callable[..., Any]) -> Policy:
    """A module of your own as a policy of a game, for `bcl.evaluate`, `bcl.certify` and, if it is a `Sequential` of plain
    layers, `bcl.save`, after which commands take its file.

    It gets observations (B, *shape) as `bcl.make_env` gives them, bytes divided by 255, and returns one score per action.
    Certificates need a `Sequential` of layers that have bounds.
    """
    given("network", network, nn.Module, "give a PyTorch module")
    game = _game(game)
    with contextlib.closing(make_env(game, 1)) as env:
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
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            what = f"this network cannot read observations of shape {shape} ({str(error).splitlines()[0]})"
            raise WeightsError(what, "put a layer in front of it that brings them into its form") from None
    if scores != (2, actions):
        raise WeightsError(
            f"this network gives {scores} for 2 observations",
            f"'{game.id}' needs one score for each of {actions} actions",
        )
    return policy


@contextlib.contextmanager
def judged(agent: Policy | Where, device: str) -> Iterator[Target]:
    """The best policy of a run, or a policy file, with results in the run or where those of the file go; or an agent in
    memory, whose results are forgotten, on its own device unless one is named."""
    if not isinstance(agent, Policy):
        hint = "give a run, a policy file, zoo:NAME or a policy (bcl.wrap makes one of a module)"
        yield _found(path_of("agent", agent, hint), device)
        return
    with tempfile.TemporaryDirectory(prefix="bcl-") as forgotten:
        policy = agent if device == "auto" else agent.to(pick_device(device))
        yield replace(_by_its_game(policy, Results(Path(forgotten)), "an agent in memory"), kept=False)


def _found(path: Path, device: str) -> Target:
    policy = load(path, pick_device(device))
    run = RunDirectory(path)
    results = run.results if path.is_dir() else files.results_of(path)
    if not run.exists:
        return _by_its_game(policy, results, str(path))
    start = run.start(trained=files.fingerprint(policy))
    known = start if start and start[1].file.exists() else None
    return Target(policy, run.config.game, run.config.evaluation, results, str(path), known)


def _by_its_game(policy: Policy, results: Results, name: str) -> Target:
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
    if not run.best.exists() and run.finished:
        raise StoreError(f"'{path}' is finished but its weights are missing", "copy best/ too, or give a policy file")
    if not run.best.exists():
        raise StoreError(f"'{path}' has no best policy yet", "give a policy file, or wait for the run")
    return run.best


def pick_device(name: str) -> str:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device '{name}'", "auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("PyTorch sees no CUDA device here", "take --device cpu")
    return name
