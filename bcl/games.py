"""What a game is: which engine plays it and every choice that changes what the agent sees. It is saved with weights, so
that an agent is always evaluated on the game it was made for."""

import dataclasses
import functools
import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bcl.errors import ConfigError, GameError, counted, did_you_mean
from bcl.settings import TAG, Count, Natural, Positive, build

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

PROCGEN_GAMES = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
)  # fmt: skip

OWN_ID = re.compile(r"\w+-[0-9a-f]{6}-v0|lambda-v0")  # see `name_of_environment`; earlier versions had no digest in it
OF_A_SCRIPT = (
    "a function or class of a script or notebook is known to its own process alone, so put it into a module and name "
    "it module:NAME, register it here under this id by gymnasium.register, or evaluate the run in that script, after "
    "its bcl.train, which continues a run or only reads it"
)
# What holds functions, and where.
WRAPPERS = (MethodType, staticmethod, classmethod, property, functools.cached_property, functools.partial)
PARTS = ("__func__", "__self__", "fget", "fset", "func", "args", "keywords")


@dataclass(frozen=True)
class AtariGame:
    """An Atari 2600 game played by ale-py's C++ vector environment."""

    engine: ClassVar[str] = "atari"
    id: str
    """ROM name in snake case, such as `pong`."""
    pipeline: Literal["v2", "v1"] = "v2"
    """`v2`: 84x84, crop and pad (the paper); `v1`: 80x80, mean gray, max of 3 frames (the paper's RoadRunner AT
    rows)."""
    pool: Literal["gray", "rgb"] = "gray"
    """Pool the last two frames in gray (fast) or in RGB before gray (bit-exact reference). v1 is always RGB."""
    crop_shift: int = 0
    """Rows by which the 168-row crop window moves down (v2 only)."""
    num_actions: Natural = 0
    """Keep the first n actions of the game's minimal set; 0 keeps all."""
    noop_max: Count = 30
    """Each episode starts with 1 to this many no-op frames, uniformly drawn."""
    first_noops: tuple[Count, ...] = ()
    """No-op frames of each copy's first episode after a reset, to repeat given starts; empty draws them."""
    fire_reset: bool = True
    """Play FIRE, then action 2, for 4 frames each at the start where the game has a FIRE action."""
    life_reset: bool = False
    """On a lost life play NOOP, FIRE, action 2 with rewards dropped. Evaluations of v1 always do, as its reference
    does."""
    max_steps: Count = 100_000
    """Agent steps after which an episode is truncated (the reference: 400,000 frames)."""


@dataclass(frozen=True)
class ProcgenGame:
    """A Procgen game played by its own C++ vector environment."""

    engine: ClassVar[str] = "procgen"
    id: str
    """One of the 16 Procgen games, such as `fruitbot`."""
    num_levels: Natural = 200
    """Number of levels drawn from; 0 is unlimited (the paper's evaluation distribution)."""
    start_level: Natural = 0
    """Seed of the first level."""
    distribution_mode: Literal["easy", "hard", "extreme", "memory"] = "easy"
    """Level difficulty; the paper uses `easy` for training and for evaluation."""


@dataclass(frozen=True)
class GymnasiumGame:
    """Any Gymnasium environment with discrete actions and a box observation."""

    engine: ClassVar[str] = "gymnasium"
    id: str
    """Gymnasium environment id, such as `CartPole-v1`, or `module:Class`."""
    scale: tuple[Positive, ...] = ()
    """Each observation dimension is divided by its constant; empty: `OBSERVATION_SCALES`, else the space's bounds."""
    processes: bool = False
    """Step every sub-environment in its own process; pays off when one step takes milliseconds."""
    max_steps: Count = 100_000
    """Truncates only where the environment has no limit of its own."""


Game = AtariGame | ProcgenGame | GymnasiumGame

# No-op frames of the reference's 20 evaluation episodes, seeds 0 to 19 (gym 0.17.1's draws; only 13 distinct values).
REFERENCE_NOOPS = (17, 30, 5, 12, 30, 27, 2, 17, 26, 22, 30, 19, 24, 21, 27, 17, 26, 19, 10, 18)

# Divisors that bring each dimension to about [-1, 1], where attacks with one eps make sense for all of them.
OBSERVATION_SCALES: dict[str, tuple[float, ...]] = {
    "CartPole-v0": (2.4, 3.0, 0.21, 3.0),  # m, m/s, rad, rad/s: positions by their failure limits
    "CartPole-v1": (2.4, 3.0, 0.21, 3.0),
    "Acrobot-v1": (1.0, 1.0, 1.0, 1.0, 12.57, 28.27),  # cos, sin, cos, sin, rad/s by their limits 4 pi and 9 pi
    "MountainCar-v0": (1.2, 0.07),  # position, velocity per step by their limits
    "LunarLander-v3": (1.0, 1.0, 2.0, 2.0, 3.14, 5.0, 1.0, 1.0),  # pads, pads/s, rad, rad/s, contacts
}

# The lowest possible returns, of games where that is not 0.
LOWEST_RETURNS = {"pong": -21.0, "Acrobot-v1": -500.0, "MountainCar-v0": -200.0}

# What rewards above 0 add up to in an episode at most, of games where that is known.
HIGHEST_RETURNS = {"pong": 21.0, "jumper": 10.0, "CartPole-v1": 500.0, "Acrobot-v1": 0.0, "MountainCar-v0": 0.0}

# What people call the dimensions and the actions of games whose engines have no names for them.
OBSERVATION_NAMES: dict[str, tuple[str, ...]] = {
    "CartPole-v1": ("position", "velocity", "angle", "turn rate"),
    "Acrobot-v1": ("cos 1", "sin 1", "cos 2", "sin 2", "rate 1", "rate 2"),
}
ACTION_NAMES: dict[str, tuple[str, ...]] = {
    "CartPole-v1": ("left", "right"),
    "Acrobot-v1": ("torque \N{MINUS SIGN}1", "torque 0", "torque +1"),
}


def observation_scale(game: GymnasiumGame, low: Sequence[float], high: Sequence[float]) -> tuple[float, ...]:
    """Divisor per dimension: the game's own setting, our table, else the space's bound; 1 where that is infinite."""
    given = game.scale or OBSERVATION_SCALES.get(game.id)
    if given:
        if len(given) != len(low):
            what = f"game.scale has {counted(len(given), 'number')}, '{game.id}' has {counted(len(low), 'dimension')}"
            raise GameError(what, "give one each")
        return given
    bounds = (max(abs(a), abs(b)) for a, b in zip(low, high, strict=True))
    return tuple(bound if 0 < bound < 1e6 else 1.0 for bound in bounds)


def game_to_dict(game: Game) -> dict[str, object]:
    """Plain data that `game_from_dict` turns back into the same game."""
    return {TAG: game.engine, **dataclasses.asdict(game)}


def game_from_dict(data: dict[str, object]) -> Game:
    """The inverse of `game_to_dict`; refuses what it does not know."""
    try:
        return build(Game, data, "game")
    except ConfigError as error:
        raise GameError(error.message, "get the file again, or take the version of bcl that wrote it") from None


def find_game(name: str, presets: tuple[str, ...] = ()) -> Game:
    """The game with default settings for a name that has no preset: a Procgen game, an Atari ROM, a Gymnasium id."""
    if name in PROCGEN_GAMES:
        return ProcgenGame(name)
    try:
        from ale_py import roms as ale_roms

        roms = tuple(ale_roms.get_all_rom_ids())
    except ImportError:  # not installed, or installed and broken
        roms = ()
    if name in roms:
        return AtariGame(name)
    import gymnasium

    module, _, registered = name.partition(":")  # `module:Env-v0` imports the module that registers Env-v0
    if name in gymnasium.registry or (module and registered):
        return GymnasiumGame(name)
    known = [*presets, *PROCGEN_GAMES, *roms, *gymnasium.registry]
    missing = "" if roms else " (Atari games need: pip install 'ale-py>=0.12.1')"
    if OWN_ID.fullmatch(name):
        raise GameError(f"unknown game '{name}'", OF_A_SCRIPT)
    hint = did_you_mean(name, known, "run 'bcl presets' for a list, or give a Gymnasium id such as CartPole-v1")
    raise GameError(f"unknown game '{name}'{missing}", hint)


def atari_name(game: Game) -> str | None:
    """The Atari game that a Gymnasium id of ale-py names; none: it names another."""
    import gymnasium

    spec = gymnasium.registry.get(game.id) if isinstance(game, GymnasiumGame) else None
    return spec.kwargs.get("game") if spec and str(spec.entry_point).startswith("ale_py") else None


def gymnasium_entry(id: str) -> "str | EnvSpec":
    """What `gymnasium.make` takes for an id; `module:Class`, or a function that makes one, need not be registered."""
    module, _, name = id.partition(":")
    if not name.isidentifier():  # `Env-v0`, `module:Env-v0`
        return id
    from gymnasium.envs.registration import EnvSpec

    return EnvSpec(f"{name}-v0", entry_point=getattr(importlib.import_module(module), name))


def name_of_environment(make: Callable[..., Any]) -> str:
    """How to name a Gymnasium environment's class, or a function that makes one. What other processes cannot import is
    registered in this one alone; its content is part of the name, so that it has its own scores."""
    name = make.__name__
    if _importable(make):
        return f"{make.__module__}:{name}"
    import gymnasium

    digest = hashlib.sha256(_content(make, {}, {}).encode()).hexdigest()[:6]
    id = f"{name.strip('<>')}-{digest}-v0"
    gymnasium.registry.pop(id, None)
    gymnasium.register(id, entry_point=make)
    return id


def _importable(value: Any) -> bool:
    """Whether other processes find a class or function by its module and name."""
    module = sys.modules.get(value.__module__)
    return value.__module__ != "__main__" and getattr(module, value.__name__, None) is value


def _content(value: Any, seen: dict[int, object], names: Mapping[str, object]) -> str:
    """What a function or class does, as far as it can be compared, and the values in it: the same text in all processes
    of one version of Python. `names`: globals of the function it is in, of which classes and functions count."""

    def every(*parts: object, names: Mapping[str, object] = names) -> str:
        return f"({', '.join(_content(part, seen, names) for part in parts)})"

    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType | type) and _importable(value):
        return f"{value.__module__}:{value.__name__}"
    if isinstance(value, tuple):
        return every(*value)
    if isinstance(value, set | frozenset):  # in an order of their own in every process
        return f"{{{sorted(every(one) for one in value)}}}"
    kind: Any = type(value)
    bare = kind.__repr__ is object.__repr__
    if not bare and not isinstance(value, (CodeType, FunctionType, type, list, dict, *WRAPPERS)):
        # Arrays of many numbers do not print all of them; addresses differ from process to process.
        numbers = value.tolist() if hasattr(value, "tolist") else value
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(numbers))
    if id(value) in seen:
        return "again"
    seen[id(value)] = value
    if isinstance(value, CodeType):
        used = (names.get(name) for name in value.co_names)
        called = (one for one in used if isinstance(one, FunctionType | type))
        return every(value.co_code, value.co_names, value.co_consts, *called)
    if isinstance(value, FunctionType):
        enclosed = (getattr(cell, "cell_contents", None) for cell in value.__closure__ or ())
        given = (value.__defaults__, value.__kwdefaults__, *enclosed)
        return every(value.__code__, *given, names=value.__globals__)
    if isinstance(value, type):
        own = (item for item in vars(value).items() if not item[0].startswith("__") or callable(item[1]))
        return every(value.__name__, value.__bases__, *own)
    if isinstance(value, list | dict):
        return every(*(value.items() if isinstance(value, dict) else value))
    if isinstance(value, WRAPPERS):
        return every(kind, *(getattr(value, part, None) for part in PARTS))
    return every(kind, getattr(value, "__dict__", None))
