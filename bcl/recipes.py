"""The rows of the paper's tables as data: which stages, which loss, which strategy, the published settings per game.

A recipe is a list of stages. What a stage sets for every game lies below a game's preset; what the paper's appendix
says of that stage on that game lies above it. Sources: the paper (arXiv 2206.10057), its appendix tables of
hyper-parameters, and its public code jlwu002/BCL.
"""

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from bcl.errors import ConfigError, did_you_mean

Loss = Literal["standard", "radial", "at", "sa", "distill"]
Strategy = Literal["none", "next", "skip", "open", "paced"]
Bootstrap = Literal["none", "vanilla", "radial", "choice"]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One stretch of training; it starts from the best policy of the stage before."""

    loss: Loss
    """What is minimised: standard, interval bounds (RADIAL), adversarial examples (AT), SA-DQN's regulariser, or
    the distance from the actions of the agent it starts from (`distill`)."""
    strategy: Strategy = "none"
    """`none`: one run; `next`: every budget in turn; `skip`: budgets already robust are skipped (MOS);
    `open`: every budget in turn without a target, until it fails M times in a row;
    `paced`: one run whose budget follows the returns."""
    settings: Settings = field(default_factory=dict)
    """What this stage sets on every game; a preset overrides it."""
    games: dict[str, Settings] = field(default_factory=dict)
    """Published settings of this stage per preset, which they override; `*`: of every game."""
    shares_median: bool = False
    """With `--repeats`, all repeats go on from the median of their agents of this stage."""


@dataclass(frozen=True)
class Recipe:
    """A named way to an agent."""

    summary: str
    stages: tuple[Stage, ...]
    """The recipe's own stages, after its bootstrap."""
    bootstrap: Bootstrap = "none"
    """What comes first; `choice`: the setting `bootstrap` decides."""
    games: dict[str, dict[Loss, Settings]] = field(default_factory=dict)
    """Published settings per preset for every stage of that loss, bootstrap included."""
    algos: tuple[str, ...] = ("dqn", "ppo")
    ours: bool = False
    """Beyond the paper."""
    source: str = ""
    """The file of a recipe that is somebody's own, which runs keep."""


def _curriculum(
    start: int,
    target: int,
    runs: int,
    min_runs: int,
    nominal: float | None = None,
    attacked: float | None = None,
    **more: float,
) -> Settings:
    """Budgets in 1/255; K and K_min; thresholds in raw return."""
    table: Settings = {"start": start / 255, "target": target / 255, "runs": runs, "min_runs": min_runs}
    return {
        "curriculum": table | {"nominal_threshold": nominal, "attacked_threshold": attacked, "adaptive": False, **more}
    }


# Vanilla DQN as in radial_rl_v2; SA-DQN's natural models, from which the paper starts, were trained otherwise.
_VANILLA_DQN: Settings = {
    "dqn": {
        "steps": 6_000_000, "buffer_size": 200_000, "replay_initial": 50_000,
        "exploration_start": 1.0, "exploration_end": 0.01, "exploration_steps": 500_000,
    }
}  # fmt: skip
_RADIAL_DQN: Settings = {"dqn": {"buffer_size": 200_000, "replay_initial": 50_000, "kappa": 0.8}}
_SA_DQN: Settings = {
    "dqn": {
        "steps": 6_000_000, "buffer_size": 200_000, "replay_initial": 80_000,
        "batch_size": 32, "samples_per_step": 32.0, "target_sync": 2_000,  # one update per agent step
        "learning_rate": 6.25e-5, "adam_eps": 1.5e-4, "kappa": 0.005, "td_loss": "huber",
        "exploration_start": 1.0, "exploration_end": 0.05, "exploration_hold": 80_000, "exploration_steps": 1_500_000,
        "ramp_start": 1_500_000, "ramp_steps": 5_500_000,
    }
}  # fmt: skip
_KAPPA_FALLS: Settings = {"kappa": 0.5, "kappa_linear": True}  # 1 -> 0.5: AT-DQN and NCL-AT
_ADAM_RR: Settings = {"dqn": {"adam_eps": 1.5e-4}}  # RoadRunner RADIAL v2; in the code, not in the paper
_BEST_ON_PATH: Settings = {"keep": "best", "judged_by": ["evaluation"]}  # by the final score, which the paper reports
# Thresholds of games that the paper does not have: shares of the bootstrap's nominal return, its suggestion for later.
_OPEN: Settings = {
    "curriculum": _BEST_ON_PATH | {"value": "nominal", "failed_phases": 2, "adaptive": True, "nominal_threshold": 0.9},
}
_SKIP: Settings = {
    "curriculum": {
        "runs": 3, "min_runs": 1, "skip": 1.0,
        "adaptive": True, "nominal_threshold": 0.9, "attacked_threshold": 0.8,
    }
}  # fmt: skip

# RoadRunner's AT rows: radial_rl's first version, from the vanilla stage on.
_V1_GAME: Settings = {"pipeline": "v1", "num_actions": 0, "max_steps": 10_000}
_V1_DQN: Settings = _KAPPA_FALLS | {"ramp": "linear", "ramp_steps": 4_500_000, "replay_initial": 256, "adam_eps": 1e-8}
_V1: dict[str, dict[Loss, Settings]] = {
    "road_runner": {
        "standard": {"game": _V1_GAME},
        "radial": {"game": _V1_GAME, "dqn": _V1_DQN | {"radial_approach": "1"}},  # v1's only loss
        "at": {"game": _V1_GAME, "dqn": _V1_DQN},
    }
}

# CartPole's robust stages, ours: a longer horizon than its vanilla training, since what breaks an attacked agent is that the
# cart drifts away, and for AT much random play, since a good agent sees no state from which it has to return.
_CARTPOLE: Settings = {
    "batch_size": 512, "learning_rate": 5e-4, "learning_rate_end": 0.02, "gamma": 0.99, "kappa": 0.5, "kappa_linear": False,
    "exploration_start": 0.05, "exploration_end": 0.05,
}  # fmt: skip
_CARTPOLE_RADIAL: Settings = {
    "dqn": _CARTPOLE | {"steps": 25_000, "ramp_steps": 6_000},
    "ppo": {"steps": 100_000, "gamma": 0.995, "entropy_coef": 0.03},
    "curriculum": {"target": 0.06},
}
_CARTPOLE_AT: Settings = {
    "dqn": _CARTPOLE | {"exploration_start": 0.2, "exploration_end": 0.2, "exploration_repeat": 4},
    "ppo": {"steps": 100_000, "gamma": 0.999, "entropy_coef": 0.02},
    "attack": {"kind": "pgd", "steps": 3, "relative_step": 0.6},
    "curriculum": {"target": 0.06},
}

# Acrobot's, ours: most copies act on what the adversary shows, else the agent never learns to get out of where it is driven;
# from random starts, else it only learns to fool PGD, and Multi-T takes all that was gained.
_ACROBOT_AT: Settings = {
    "dqn": {
        "steps": 12_000, "ramp_steps": 6_000, "batch_size": 512, "learning_rate": 5e-4, "n_step": 10, "kappa": 0.5,
        "kappa_linear": False, "buffer_size": 12_000, "exploration_start": 0.05, "exploration_end": 0.05,
        "exploration_repeat": 1,
    },
    "attack": {
        "kind": "pgd", "steps": 5, "relative_step": 0.6, "random_start": True, "objective": "cross-entropy", "in_play": 0.75,
    },
}  # fmt: skip
_ACROBOT_THRESHOLDS: Settings = {"adaptive": False, "nominal_threshold": -130.0, "attacked_threshold": -150.0}

# Ours, and faster than the paper's 6M steps; what came of them: docs/dqn.md. Freeway and RoadRunner never see a reward while
# single random actions undo each other: there a random action is held.
_FAST_VANILLA: Settings = {
    "num_envs": 128, "batch_size": 1024, "learning_rate": 2.5e-4, "learning_rate_end": 0.05, "n_step": 3,
    "buffer_size": 400_000, "replay_initial": 20_000, "exploration_steps": 300_000,
}  # fmt: skip
_VANILLA_GAMES: dict[str, Settings] = {
    "pong": {"dqn": _FAST_VANILLA | {"steps": 1_200_000, "batch_size": 512}},
    "bank_heist": {"dqn": _FAST_VANILLA | {"steps": 1_500_000}},
    "freeway": {"dqn": _FAST_VANILLA | {"steps": 2_000_000, "exploration_repeat": 64}},
    "road_runner": {"dqn": _FAST_VANILLA | {"steps": 4_000_000, "exploration_repeat": 32}},
}

# Ours: AT in minutes. Half of the copies act on what the adversary shows, else the agent never sees where it gets driven to;
# the memory is short, since what lies in it was made against the network of then. Measured on Pong: docs/results.md.
_FAST_AT: Settings = {
    "dqn": {
        "steps": 500_000, "ramp_steps": 400_000, "num_envs": 128, "batch_size": 1024, "learning_rate": 2.5e-4,
        "learning_rate_end": 0.1, "n_step": 3, "buffer_size": 50_000, "replay_initial": 10_000, "kappa": 0.5,
    },
    "attack": {"kind": "pgd", "steps": 5, "relative_step": 0.4, "random_start": True, "in_play": 0.5},
    "curriculum": _SKIP["curriculum"] | {"runs": 3, "increment": 3 / 255, "keep": "met"},
}  # fmt: skip
_FAST_RADIAL_PONG: Settings = {
    "dqn": {
        "steps": 1_000_000, "ramp_steps": 800_000, "n_step": 3, "learning_rate_end": 0.1, "replay_initial": 20_000,
    }
}  # fmt: skip

VANILLA = Stage("standard", settings=_VANILLA_DQN, games=_VANILLA_GAMES)
RADIAL = Stage("radial", settings=_RADIAL_DQN, games={"road_runner": _ADAM_RR, "cartpole": _CARTPOLE_RADIAL})
OPEN_RADIAL = Stage(
    "radial",
    "open",
    _RADIAL_DQN | {"curriculum": _OPEN["curriculum"] | {"runs": 3, "min_runs": 1}},
    games={
        "pong": _curriculum(1, 25, 3, 1, 20),
        "freeway": _curriculum(1, 20, 3, 1, 32),
        "bank_heist": _curriculum(1, 15, 3, 1, 1200),
        "road_runner": _curriculum(1, 15, 3, 1, 35_000) | _ADAM_RR,
    },
)
_ONE_RUN: Settings = {"runs": 1, "min_runs": 1}
NAIVE_RADIAL = replace(
    OPEN_RADIAL,
    settings=_RADIAL_DQN | _OPEN,
    games={g: row | {"curriculum": row["curriculum"] | _ONE_RUN} for g, row in OPEN_RADIAL.games.items()},
)
NAIVE_AT = Stage(
    "at",
    "next",
    {"dqn": _KAPPA_FALLS, "curriculum": _BEST_ON_PATH},
    games={
        "pong": _curriculum(0, 25, 1, 1),
        "freeway": _curriculum(0, 20, 1, 1),
        "bank_heist": _curriculum(0, 15, 1, 1),
        "road_runner": _curriculum(0, 15, 1, 1),
        "fruitbot": _curriculum(0, 20, 1, 1),
        "jumper": _curriculum(0, 40, 1, 1),
        "cartpole": _CARTPOLE_AT,
        "acrobot": _ACROBOT_AT,
    },
)
MOS_AT = Stage(
    "at",
    "skip",
    _SKIP,
    games={  # starts after RADIAL; after vanilla see _VANILLA_STARTS
        "pong": _curriculum(3, 25, 3, 1, 20, 20),  # target: the table says 30; text, run counts and results say 25
        "freeway": _curriculum(3, 20, 3, 1, 30, 25),
        "bank_heist": _curriculum(3, 15, 5, 1, 1200, 1000),
        "road_runner": _curriculum(3, 15, 3, 1, 40_000, 12_000),
        # Stops too when RI-FGSM at the target leaves "near" the nominal return; the paper has no number.
        "fruitbot": _curriculum(6, 20, 1, 1, attacked=25.0, toothless=0.95),
        "jumper": _curriculum(9, 40, 1, 1, attacked=6.0),
        "cartpole": _CARTPOLE_AT,
        "acrobot": _ACROBOT_AT | {"curriculum": _ACROBOT_THRESHOLDS},
    },
)
_FAST_PHASES: Settings = {"start": 1 / 255, "runs": 3, "min_runs": 1}
FAST_AT = replace(
    MOS_AT,
    settings=_FAST_AT,
    games=MOS_AT.games
    | {
        game: {"curriculum": MOS_AT.games[game]["curriculum"] | _FAST_PHASES}
        for game in ("pong", "freeway", "bank_heist", "road_runner")
    },
)
# Ours: one continuous run whose budget follows the returns of its own play. Those are below greedy play's (exploration), so
# thresholds are shares of what the start has in play.
_PACED: Settings = {"adaptive": True, "keep": "best", "increment": 1 / 255, "runs": 1, "min_runs": 1}
_PACED_TARGETS = {"pong": 25, "freeway": 20, "bank_heist": 15, "road_runner": 15, "fruitbot": 20, "jumper": 40}  # 1/255
_PACED_GAMES: dict[str, Settings] = {
    game: {"curriculum": {"start": 0.0, "target": target / 255}} for game, target in _PACED_TARGETS.items()
}
PACED_RADIAL = Stage(
    "radial",
    "paced",
    {
        "dqn": {
            "steps": 8_000_000, "num_envs": 128, "batch_size": 1024, "learning_rate": 1.25e-4, "learning_rate_end": 0.1,
            "n_step": 3, "buffer_size": 600_000, "replay_initial": 20_000, "kappa": 0.8,
        },
        # Bounds of a network that never saw a bound are so wide that a tenth of 1/255 at once ends its game.
        "curriculum": _PACED | {"nominal_threshold": 0.9, "gentle_below": 1 / 255},
    },
    _PACED_GAMES,
)  # fmt: skip
PACED_AT = Stage(
    "at",
    "paced",
    {
        "dqn": _FAST_AT["dqn"] | {"steps": 4_000_000},
        "attack": _FAST_AT["attack"],
        "curriculum": _PACED | {"nominal_threshold": 0.85, "attacked_threshold": 0.7},
    },
    _PACED_GAMES
    | {
        "acrobot": {
            "dqn": _ACROBOT_AT["dqn"] | {"steps": 66_000, "num_envs": 16, "replay_initial": 1_000, "log_steps": 500},
            "attack": _ACROBOT_AT["attack"],
            "curriculum": {
                "target": 0.06, "increment": 0.01, "rise_steps": 5_000, "patience": 6_000, "pace_episodes": 12,
                "adaptive": False, "nominal_threshold": -150.0, "attacked_threshold": -170.0,
            },
        }
    },
)  # fmt: skip
# Ours: a robust student of a vanilla agent. Its labels do not move with it, so that bounds cannot end in one constant.
_DISTILL_TARGETS = {
    "pong": 27,
    "freeway": 22,
    "bank_heist": 17,
    "road_runner": 17,
    "fruitbot": 22,
    "jumper": 42,
}  # 1/255
_DISTILL_SMALL: Settings = {  # games of vectors
    "num_envs": 16, "batch_size": 256, "samples_per_step": 16.0, "buffer_size": 50_000, "log_steps": 500, "exploration_repeat": 1,
}  # fmt: skip
_DISTILL_GAMES: dict[str, Settings] = {
    "freeway": {"distill": {"exploration_repeat": 32}},
    "road_runner": {"distill": {"exploration_repeat": 16}, "curriculum": {"certified_threshold": 0.7}},
}
DISTILL = Stage(
    "distill",
    "paced",
    {
        "curriculum": _PACED
        | {
            "increment": 5 / 255, "rise_steps": 160_000, "gentle_below": 0.25 / 255, "gentle_from": 1e-5,
            "certified_threshold": 0.85, "nominal_threshold": 0.6, "patience": 400_000,
        }
    },
    {
        game: {
            "curriculum": {"start": 0.0, "target": target / 255} | _DISTILL_GAMES.get(game, {}).get("curriculum", {}),
            "distill": _DISTILL_GAMES.get(game, {}).get("distill", {}),
        }
        for game, target in _DISTILL_TARGETS.items()
    },
)  # fmt: skip
_VANILLA_STARTS = {"jumper": 1 / 255}  # eps_0 of a vanilla bootstrap; 0 elsewhere

RECIPES: dict[str, Recipe] = {
    "vanilla": Recipe("plain DQN or PPO, no defence", (VANILLA,)),
    "radial": Recipe("RADIAL: interval bounds in the loss, 0 to 1/255 in one run", (), "radial"),
    "sa": Recipe(
        "SA-DQN (convex): hinge on certified margins, from scratch",
        (
            Stage(
                "sa",
                settings=_SA_DQN,
                games={
                    "bank_heist": {"dqn": {"kappa": 0.02, "learning_rate": 1e-5}},
                    "road_runner": {"dqn": {"kappa": 0.01, "target_sync": 32_000}},
                    "cartpole": {"dqn": {"exploration_hold": 0, "ramp_start": 0}},  # its runs are shorter than these
                    "acrobot": {"dqn": {"exploration_hold": 0, "ramp_start": 0}},
                },
            ),
        ),
        algos=("dqn",),
    ),
    "at": Recipe(
        "adversarial training at one budget, 0 to the target in one run",
        (replace(NAIVE_AT, strategy="none"),),
        "vanilla",
        _V1,
    ),
    "ncl-at": Recipe(
        "naive curriculum: adversarial training, every budget in turn, one run each", (NAIVE_AT,), "vanilla", _V1
    ),
    "ncl-radial": Recipe(
        "naive curriculum: RADIAL, every budget in turn, one run each, until it fails twice", (NAIVE_RADIAL,), "radial"
    ),
    "bcl-c-at": Recipe(
        "BCL-C: adversarial training, every budget in turn, best of K runs",
        (
            Stage(
                "at",
                "next",
                {"curriculum": {"runs": 3, "min_runs": 3}},
                games={
                    "pong": _curriculum(3, 25, 3, 3),  # target: as in MOS_AT
                    "freeway": _curriculum(3, 20, 3, 3),
                    "bank_heist": _curriculum(3, 15, 5, 5),
                    "road_runner": _curriculum(3, 15, 3, 3),
                    "fruitbot": _curriculum(6, 20, 3, 3),  # not in the paper
                    "jumper": _curriculum(9, 40, 3, 3),  # not in the paper
                    "cartpole": _CARTPOLE_AT,
                    "acrobot": _ACROBOT_AT,
                },
            ),
        ),
        "choice",
        _V1,
    ),
    "bcl-mos-at": Recipe(
        "BCL-MOS: adversarial training, best of K runs, budgets already robust skipped", (MOS_AT,), "choice", _V1
    ),
    "bcl-radial": Recipe(
        "BCL-RADIAL: every budget in turn, best of K runs, until it fails twice", (OPEN_RADIAL,), "radial"
    ),
    "bcl-radial+at": Recipe(
        "BCL-RADIAL until it degrades, then adversarial training from the best of it",
        (
            replace(OPEN_RADIAL, shares_median=True),
            Stage(  # begins where the one before ended, which in the paper was 13/255 and 12/255
                "at",
                "next",
                {"curriculum": {"runs": 3, "min_runs": 3}},
                games={
                    "fruitbot": _curriculum(1, 20, 3, 3),  # not in the paper
                    "jumper": _curriculum(1, 40, 3, 3),  # not in the paper
                    "pong": _curriculum(1, 25, 3, 3),  # not in the paper, which found no gradients to train on
                    "freeway": _curriculum(1, 20, 3, 3),  # not in the paper
                    "cartpole": _CARTPOLE_AT,
                    "acrobot": _ACROBOT_AT,
                    "bank_heist": _curriculum(13, 15, 3, 3),
                    "road_runner": _curriculum(12, 15, 1, 1) | {"dqn": {"learning_rate": 1.25e-7, "adam_eps": 1.5e-4}},
                },
            ),
        ),
        "radial",
        algos=("dqn",),
    ),
    "bcl-ratchet-at": Recipe(
        "BCL-MOS in which the incumbent competes too, so that no phase can make the agent worse",
        (replace(MOS_AT, settings={"curriculum": _SKIP["curriculum"] | {"ratchet": True, "failed_phases": 3}}),),
        "choice",
        _V1,
        ours=True,
    ),
    "paced-radial": Recipe(
        "RADIAL in one run whose budget follows the returns of its own play", (PACED_RADIAL,), "vanilla", ours=True
    ),
    "paced-at": Recipe(
        "adversarial training in one run whose budget follows the returns of its own play, attacked and not",
        (PACED_AT,),
        "vanilla",
        ours=True,
    ),
    "paced-radial+at": Recipe(
        "paced RADIAL, then paced adversarial training from where that ended",
        (PACED_RADIAL, PACED_AT),
        "vanilla",
        ours=True,
    ),
    "distilled": Recipe(
        "a robust student of a vanilla agent: its actions, held within a budget that rises while they are",
        (DISTILL,),
        "vanilla",
        ours=True,
    ),
    "bcl-fast-at": Recipe(
        "BCL-MOS in minutes: an adversary that also acts, larger batches and steps of the budget, short runs",
        (FAST_AT,),
        "choice",
        {"pong": {"radial": _FAST_RADIAL_PONG}},
        algos=("dqn",),
        ours=True,
    ),
}


_OWN: dict[str, Recipe] = {}
"""Recipes from files, by the names of these; a run brings its own along."""


def take_recipe(file: Path) -> str:
    """Read a recipe of somebody's own; it is known by the name of its file from here on."""
    hint = "see 'Your own recipe' in docs/curriculum.md"
    try:
        source = file.read_text()
        data = tomllib.loads(source)
        stages = tuple(_own_stage(table) for table in data["stages"])
    except OSError as error:
        raise ConfigError(f"cannot read the recipe '{file}': {error.strerror}", "check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{file}' is no recipe ({' '.join(str(error).split())})", hint) from None
    if file.stem in RECIPES:
        raise ConfigError(f"'{file.stem}' is a recipe of bcl's", "give the file another name")
    bootstrap = data.get("bootstrap", "none")
    unknown = data.keys() - {"summary", "bootstrap", "stages"}
    if unknown or bootstrap not in get_args(Bootstrap) or not stages:
        raise ConfigError(f"'{file}' is no recipe ({min(unknown, default=bootstrap)!r} does not fit)", hint)
    algos = ("dqn",) if any(stage.loss == "sa" for stage in stages) else ("dqn", "ppo")
    _OWN[file.stem] = Recipe(str(data.get("summary", "")), stages, bootstrap, algos=algos, ours=True, source=source)
    return file.stem


def _own_stage(table: Settings) -> Stage:
    loss, strategy = table["loss"], table.get("strategy", "none")
    settings = {key: value for key, value in table.items() if key not in ("loss", "strategy")}
    if loss not in get_args(Loss) or strategy not in get_args(Strategy):
        raise ValueError(f"a stage of loss '{loss}' and strategy '{strategy}'")
    return Stage(loss, strategy, games={"*": settings})


def find_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    known = RECIPES | _OWN
    if name not in known:
        hint = did_you_mean(name, known, f"one of {', '.join(known)}, or a TOML file")
        raise ConfigError(f"unknown recipe '{name}'", hint)
    return known[name]


def stages_of(name: str, algo: str, game: str, bootstrap: str = "auto") -> list[tuple[Stage, list[Settings]]]:
    """Every stage of a recipe, bootstrap first, each with its published rows for the game, general ones first."""
    recipe = find_recipe(name)
    kind: str = recipe.bootstrap
    if kind == "choice":
        kind = {"auto": "vanilla" if algo == "ppo" else "radial"}.get(bootstrap, bootstrap)
    elif bootstrap in ("vanilla", "radial"):
        choice = ", ".join(key for key, value in RECIPES.items() if value.bootstrap == "choice")
        raise ConfigError(f"recipe '{name}' leaves no choice of bootstrap", f"leave it out, or take one of {choice}")
    before: tuple[Stage, ...] = () if kind == "none" else (VANILLA,)
    if kind == "radial":
        before = (RADIAL,) if algo == "ppo" else (VANILLA, RADIAL)  # RADIAL-PPO is trained from scratch
    found = []
    for stage in (*before, *recipe.stages):
        rows = [stage.games.get(game) or stage.games.get("*", {}), recipe.games.get(game, {}).get(stage.loss, {})]
        if recipe.bootstrap == "choice" and kind == "vanilla" and game in stage.games and stage.strategy != "none":
            rows.append({"curriculum": {"start": _VANILLA_STARTS.get(game, 0.0)}})
        found.append((stage, rows))
    return found


def check_trainable(name: str, algo: str) -> None:
    """Refuse a recipe with another learner than it is defined for."""
    recipe = find_recipe(name)
    if algo not in recipe.algos:
        raise ConfigError(
            f"recipe '{name}' is defined for {' and '.join(recipe.algos)} only", f"choose another with {algo}"
        )
