"""Moments of play under attack, for the page; played once and kept beside the results."""

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcl.attacks import Attack, attack_from_dict, attack_to_dict, suite
from bcl.config import EvaluationConfig, evaluation_defaults
from bcl.device import threads, useful_threads
from bcl.envs import make_env
from bcl.errors import StoreError
from bcl.evaluation import Moment, game_for_evaluation, lowest, watch
from bcl.games import OBSERVATION_NAMES, Game
from bcl.policies.files import fingerprint, load
from bcl.reports.collect import Collected, agent_file, results_of
from bcl.runs import store

FACTS = ("seed", "eps", "steps", "changed")  # fields that are stored as they are
MOMENTS = 4
STEPS = 100  # looked at
[ATTACK] = suite("quick")  # the cheapest that climbs: a stronger one shows the same, and can take minutes


@dataclass(frozen=True)
class Frame:
    """One moment of play under attack."""

    step: int
    clean: np.ndarray
    """The observation, (C, H, W) or (D,)."""
    seen: np.ndarray
    """What the adversary made of it."""
    wanted: str
    """The action without attack."""
    taken: str
    screen: np.ndarray | None
    """(H, W, 3) for people, where the game renders."""


@dataclass(frozen=True)
class Frames:
    """Moments of one episode."""

    attack: Attack
    seed: int
    """Of the game: an evaluation with this seed begins with this episode."""
    eps: float
    steps: int
    """Looked at."""
    changed: int
    """Of those, with another action than without attack."""
    dimensions: tuple[str, ...]
    """Names of a vector observation's dimensions; empty: they have none."""
    moments: tuple[Frame, ...]


def play_frames(collected: Collected, device: str, say: Callable[[str], object] = lambda line: None) -> Frames | None:
    """Of a finished run's agent, or of a policy file's. Those kept by an earlier call are read."""
    path = Path(collected.source)
    file = agent_file(path)
    policy = load(file, device) if file else None
    if policy is None or policy.spec.game is None:
        return None
    game = policy.spec.game
    kept = results_of(path).frames_file
    about: dict[str, Any] = {"policy": fingerprint(policy), "looked_at": STEPS}
    if (found := _read(kept, about)) is not None:
        return found
    say("sample frames: the beginning of an episode under attack is played once, and kept for later reports")
    eps = worst_budget(collected, game)
    seed = collected.evaluations[0].seed if collected.evaluations else 0
    played = game_for_evaluation(game, None, EvaluationConfig().max_steps)
    with (
        contextlib.closing(make_env(played, 1, device, render=True)) as env,
        threads(useful_threads(policy.spec.obs_shape, 1)),
    ):
        moments = list(watch(policy, env, ATTACK, eps, seed=seed, steps=STEPS))
        names = [name.lower() for name in env.action_names]
    chosen = []
    for i in choose(moments):
        m = moments[i]
        chosen.append(Frame(i + 1, m.clean, m.seen, names[m.wanted], names[m.taken], m.screen))
    changed = sum(m.wanted != m.taken for m in moments)
    frames = Frames(ATTACK, seed, eps, len(moments), changed, OBSERVATION_NAMES.get(game.id, ()), tuple(chosen))
    with contextlib.suppress(StoreError):  # a run may be read-only: then they are played again next time
        _write(kept, about, frames)
    return frames


def worst_budget(collected: Collected, game: Game) -> float:
    """The budget at which the agent has least; without scores under attack, the largest of its preset."""
    attacked = [score for evaluation in collected.evaluations[:1] for score in evaluation.scores if score.eps > 0]
    return lowest(attacked).eps if attacked else max(evaluation_defaults(game).eps)


def choose(moments: Sequence[Moment], count: int = MOMENTS) -> list[int]:
    """Indices spread over the moments in which the action changed, or over all."""
    telling = [i for i, m in enumerate(moments) if m.wanted != m.taken] or list(range(len(moments)))
    places = np.linspace(0, len(telling) - 1, min(count, len(telling))).round().astype(int)
    return [telling[place] for place in places]


def _write(path: Path, about: dict[str, Any], frames: Frames) -> None:
    about = about | {
        **{name: getattr(frames, name) for name in FACTS},
        "attack": attack_to_dict(frames.attack),
        "dimensions": frames.dimensions,
        "at": [m.step for m in frames.moments],
        "wanted": [m.wanted for m in frames.moments],
        "taken": [m.taken for m in frames.moments],
    }
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for name in ("clean", "seen", "screen"):
        pictures = [getattr(m, name) for m in frames.moments]
        if all(picture is not None for picture in pictures):
            arrays[name] = np.stack(pictures)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type] # numpy's stub mistakes the names for its own flags
    store.write_bytes(path, buffer.getvalue())


def _read(path: Path, about: dict[str, Any]) -> Frames | None:
    """What was kept, if it is of this agent; anything else is made again."""
    if not store.exists(path):
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        kept = json.loads(arrays["about"].tobytes())
        if any(kept.get(name) != value for name, value in about.items()):
            return None
        screens = arrays.get("screen", [None] * len(kept["at"]))
        columns = (kept["at"], arrays["clean"], arrays["seen"], kept["wanted"], kept["taken"], screens)
        moments = tuple(Frame(*row) for row in zip(*columns, strict=True))
        facts = {name: kept[name] for name in FACTS} | {"dimensions": tuple(kept["dimensions"])}
        return Frames(attack_from_dict(kept["attack"]), **facts, moments=moments)
    except Exception:  # whatever zipfile and NumPy raise for damaged bytes
        return None
