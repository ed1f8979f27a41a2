"""What a command that takes RUN or FILE works on: a policy, its game, and where its results go."""

from dataclasses import dataclass
from pathlib import Path

from bcl.config import EvaluationConfig, preset_for, resolve
from bcl.errors import ConfigError, StoreError, WeightsError
from bcl.experiment import read_config
from bcl.games import REFERENCE_NOOPS, Game
from bcl.policies import Policy
from bcl.policies.files import load
from bcl.runs import store


@dataclass(frozen=True)
class Target:
    """A policy to be judged."""

    policy: Policy
    game: Game
    defaults: EvaluationConfig
    results: Path
    """Folder for evals/ and certs/."""


def find_target(path: Path, device: str) -> Target:
    """The best policy of a run, or a policy file; results lie in the run, or beside the file."""
    if path.is_dir():
        file, results = path / "best" / "policy.safetensors", path
        if runs := store.repeats(path):
            raise StoreError(f"'{path}' holds {len(runs)} repeats", f"give one of them, such as {runs[0]}")
        if not file.exists():
            raise StoreError(f"'{path}' has no best policy yet", "give a policy file, or wait for the run")
    else:
        file, results = path, path.with_suffix(".results")
    policy = load(file, pick_device(device))
    if (path / "config.toml").exists():
        config = read_config(path)
        return Target(policy, config.game, config.evaluation, results)
    if policy.spec.game is None:
        raise WeightsError(f"'{file}' does not say which game it plays", "save it with a game in its spec")
    return Target(policy, policy.spec.game, evaluation_defaults(policy.spec.game), results)


def evaluation_defaults(game: Game) -> EvaluationConfig:
    """How the preset of this game judges agents; the general defaults where there is none."""
    name = preset_for(game)
    return resolve(name).evaluation if name else EvaluationConfig()


def paper_starts(seed: int, episodes: int, num_envs: int = 0) -> int:
    """How many episodes take the reference's starts: all, with seed 0, one episode per copy and at most 20 of them."""
    return episodes if seed == 0 and 0 < episodes <= len(REFERENCE_NOOPS) and num_envs in (0, episodes) else 0


def pick_device(name: str) -> str:
    """`auto` is the GPU where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device '{name}'", "auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("PyTorch sees no CUDA device here", "take --device cpu")
    return name
