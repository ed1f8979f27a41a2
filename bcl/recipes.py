"""The rows of the paper's tables as data: which stages, which loss, which strategy, and the published settings per game.

A recipe is a list of stages. `rows(recipe, game)` are the settings it puts between a game's preset and the user's own:
the values of the paper's appendix where the paper has that row, the recipe's general ones elsewhere.
Sources: the paper (arXiv 2206.10057), its appendix tables of hyper-parameters, and its public code jlwu002/BCL.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from bcl.errors import ConfigError, NotYetError, did_you_mean

Loss = Literal["standard", "radial", "at", "sa"]
Strategy = Literal["none", "next", "skip", "open"]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One stretch of training; it starts from the best policy of the stage before."""

    loss: Loss
    """What is minimised: standard, interval bounds (RADIAL), adversarial examples (AT), or SA-DQN's regulariser."""
    strategy: Strategy = "none"
    """`none`: one run; `next`: every budget in turn; `skip`: budgets already robust are skipped (MOS);
    `open`: every budget in turn without a target, until it fails M times in a row."""
    settings: Settings = field(default_factory=dict)
    """What this stage sets differently from the rest of the recipe."""


@dataclass(frozen=True)
class Recipe:
    """A named way to an agent."""

    summary: str
    stages: tuple[Stage, ...]
    settings: Settings = field(default_factory=dict)
    """Settings of the recipe for every game."""
    games: dict[str, Settings] = field(default_factory=dict)
    """Published settings per preset, over `settings`."""
    algos: tuple[str, ...] = ("dqn", "ppo")
    ours: bool = False
    """Beyond the paper."""


def _curriculum(
    start: int, target: int, runs: int, min_runs: int, nominal: float | None = None, attacked: float | None = None
) -> Settings:
    """Budgets in 1/255; K and K_min; thresholds in raw return."""
    table: Settings = {"start": start / 255, "target": target / 255, "runs": runs, "min_runs": min_runs}
    if nominal is not None:
        table["nominal_threshold"] = nominal
    if attacked is not None:
        table["attacked_threshold"] = attacked
    return {"curriculum": table}


def _with(settings: Settings, **sections: Settings) -> Settings:
    return {**settings, **sections}


# Vanilla DQN as in radial_rl_v2; SA-DQN's natural models, from which the paper starts, were trained otherwise.
_VANILLA_DQN: Settings = {
    "dqn": {
        "steps": 6_000_000, "buffer_size": 200_000, "replay_initial": 50_000,
        "exploration_start": 1.0, "exploration_end": 0.01, "exploration_steps": 500_000,
    }
}  # fmt: skip
_RADIAL_DQN: Settings = {"dqn": {"buffer_size": 200_000, "replay_initial": 50_000, "kappa": 0.8}}
_KAPPA_FALLS: Settings = {"kappa": 0.5, "kappa_linear": True}  # 1 -> 0.5: AT-DQN and NCL-AT
_V1: Settings = {"pipeline": "v1", "num_actions": 0, "max_steps": 10_000}  # RoadRunner's AT rows
_V1_RAMP: Settings = {"ramp": "linear", "ramp_steps": 4_500_000}
_BEST_OF_3: Settings = {"curriculum": {"runs": 3, "min_runs": 1}}
_ADAM_RR: Settings = {"adam_eps": 1.5e-4}  # RoadRunner RADIAL; in the code, not in the paper

VANILLA = Stage("standard", settings=_VANILLA_DQN)
RADIAL = Stage("radial", settings=_RADIAL_DQN)

_MOS_GAMES: dict[str, Settings] = {
    "pong": _curriculum(3, 25, 3, 1, 20, 20),
    "freeway": _curriculum(3, 20, 3, 1, 30, 25),
    "bank_heist": _curriculum(3, 15, 5, 1, 1200, 1000),
    "road_runner": _with(_curriculum(3, 15, 3, 1, 40_000, 12_000), game=_V1, dqn=_KAPPA_FALLS | _V1_RAMP),
    "fruitbot": _curriculum(0, 20, 1, 1, attacked=25.0),  # MOS(V); MOS(R) starts at 6/255
    "jumper": _curriculum(1, 40, 1, 1, attacked=6.0),  # MOS(V); MOS(R) starts at 9/255
}

RECIPES: dict[str, Recipe] = {
    "vanilla": Recipe("plain DQN or PPO, no defence", (VANILLA,)),
    "radial": Recipe(
        "RADIAL: interval bounds in the loss, 0 to 1/255 in one run",
        (VANILLA, RADIAL),
        games={"road_runner": {"dqn": _ADAM_RR}},
    ),
    "sa": Recipe(
        "SA-DQN (convex): hinge on certified margins, from scratch",
        (Stage("sa", settings=_VANILLA_DQN),),
        algos=("dqn",),
    ),
    "at": Recipe(
        "adversarial training at one budget, 0 to the target in one run",
        (VANILLA, Stage("at")),
        settings={"dqn": _KAPPA_FALLS},
        games={
            "pong": _curriculum(0, 25, 1, 1),
            "freeway": _curriculum(0, 20, 1, 1),
            "bank_heist": _curriculum(0, 15, 1, 1),
            "road_runner": _with(_curriculum(0, 15, 1, 1), game=_V1, dqn=_KAPPA_FALLS | _V1_RAMP),
            "fruitbot": _curriculum(0, 20, 1, 1),
            "jumper": _curriculum(0, 40, 1, 1),
        },
    ),
    "ncl-at": Recipe(
        "naive curriculum: adversarial training, every budget in turn, one run each",
        (VANILLA, Stage("at", "next")),
        settings={"dqn": _KAPPA_FALLS},
        games={
            "pong": _curriculum(0, 25, 1, 1),
            "freeway": _curriculum(0, 20, 1, 1),
            "bank_heist": _curriculum(0, 15, 1, 1),
            "road_runner": _with(_curriculum(0, 15, 1, 1), game=_V1, dqn=_KAPPA_FALLS | _V1_RAMP),
        },
    ),
    "ncl-radial": Recipe(
        "naive curriculum: RADIAL, every budget in turn, one run each, until it fails twice",
        (VANILLA, RADIAL, Stage("radial", "open", _RADIAL_DQN)),
        games={
            "pong": _curriculum(1, 25, 1, 1, 20),
            "freeway": _curriculum(1, 20, 1, 1, 32),
            "bank_heist": _curriculum(1, 15, 1, 1, 1200),
            "road_runner": _with(_curriculum(1, 15, 1, 1, 35_000), dqn=_ADAM_RR),
        },
    ),
    "bcl-c-at": Recipe(
        "BCL-C: from RADIAL, adversarial training, every budget in turn, best of K runs",
        (VANILLA, RADIAL, Stage("at", "next")),
        settings={"curriculum": {"runs": 3, "min_runs": 3}},
        games={
            "pong": _curriculum(3, 25, 3, 3),  # the paper's table says 30; its text, run counts and results say 25
            "freeway": _curriculum(3, 20, 3, 3),
            "bank_heist": _curriculum(3, 15, 5, 5),
            "road_runner": _with(_curriculum(3, 15, 3, 3), game=_V1, dqn=_KAPPA_FALLS | _V1_RAMP),
        },
    ),
    "bcl-mos-at": Recipe(
        "BCL-MOS: from RADIAL, adversarial training, best of K runs, budgets already robust skipped",
        (VANILLA, RADIAL, Stage("at", "skip")),
        settings=_BEST_OF_3,
        games=_MOS_GAMES,
    ),
    "bcl-radial": Recipe(
        "BCL-RADIAL: from RADIAL, every budget in turn, best of K runs, until it fails twice",
        (VANILLA, RADIAL, Stage("radial", "open", _RADIAL_DQN)),
        settings=_BEST_OF_3,
        games={
            "pong": _curriculum(1, 25, 3, 1, 20),
            "freeway": _curriculum(1, 20, 3, 1, 32),
            "bank_heist": _curriculum(1, 15, 3, 1, 1200),
            "road_runner": _with(_curriculum(1, 15, 3, 1, 35_000), dqn=_ADAM_RR),
        },
    ),
    "bcl-radial+at": Recipe(
        "BCL-RADIAL until it degrades, then adversarial training from the best of it",
        (VANILLA, RADIAL, Stage("radial", "open", _RADIAL_DQN), Stage("at", "next")),
        settings=_BEST_OF_3,
        games={
            "bank_heist": _curriculum(13, 15, 3, 3),
            "road_runner": _with(_curriculum(12, 15, 1, 1), dqn={"learning_rate": 1.25e-7} | _ADAM_RR),
        },
        algos=("dqn",),
    ),
    "bcl-ratchet-at": Recipe(
        "BCL-MOS in which the incumbent competes too, so that no phase can make the agent worse",
        (VANILLA, RADIAL, Stage("at", "skip")),
        settings=_BEST_OF_3,
        games=_MOS_GAMES,
        ours=True,
    ),
}

# Stages this version can train. `bcl train` refuses the others before it touches anything.
TRAINABLE: frozenset[tuple[str, Loss]] = frozenset()


def find_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES, f"one of {', '.join(RECIPES)}")
        raise ConfigError(f"unknown recipe '{name}'", hint)
    return RECIPES[name]


def rows(name: str, game: str) -> list[Settings]:
    """The settings of a recipe for a game, general ones first."""
    recipe = find_recipe(name)
    return [{"recipe": name}, recipe.settings, recipe.games.get(game, {})]


def check_trainable(name: str, algo: str) -> None:
    """Refuse a recipe with a stage that this version cannot train, naming the stage."""
    recipe = find_recipe(name)
    if algo not in recipe.algos:
        raise ConfigError(
            f"recipe '{name}' is defined for {' and '.join(recipe.algos)} only", f"choose another with {algo}"
        )
    for stage in recipe.stages:
        if (algo, stage.loss) not in TRAINABLE:
            what = f"recipe '{name}' needs {algo.upper()} training with the '{stage.loss}' loss"
            raise NotYetError(f"{what}, which this version does not have yet", "see CHANGELOG.md for what it has")
