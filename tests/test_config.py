import dataclasses
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcl.config import Config, config_from_dict, config_from_toml, preset_names, resolve
from bcl.errors import BclError, ConfigError, GameError
from bcl.games import AtariGame, GymnasiumGame, ProcgenGame
from bcl.quantities import format_eps, parse_eps
from bcl.recipes import RECIPES, check_trainable, rows
from bcl.settings import difference, parse_flags, to_toml

PRESETS = Path(__file__).parents[1] / "bcl" / "presets"


def test_precedence_is_defaults_preset_recipe_file_flags(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[curriculum]\nruns = 7\nmin_runs = 6\n")
    config = resolve("pong", recipe="bcl-mos-at", file=file, flags=parse_flags(["--curriculum.min-runs", "2"]))
    assert config.dqn.gamma == 0.99  # default
    assert config.game == AtariGame("pong", crop_shift=10, num_actions=4)  # preset
    assert config.curriculum.nominal_threshold == 20  # recipe
    assert config.curriculum.runs == 7  # file, over the recipe's 3
    assert config.curriculum.min_runs == 2  # flag, over the file


@pytest.mark.parametrize("name", preset_names())
def test_presets_hold_deviations_only(name: str) -> None:
    data = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    minimal = {"game": {"engine": data["game"]["engine"], "id": data["game"]["id"]}}
    defaults = config_from_dict(minimal)
    for section, table in data.items():
        if not isinstance(table, dict):
            assert getattr(defaults, section) != table
            continue
        for key in table.keys() - {"engine", "id"}:
            assert getattr(getattr(defaults, section), key) != getattr(getattr(resolve(name), section), key), key


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", preset_names())
def test_every_recipe_resolves_for_every_game_and_survives_toml(name: str, recipe: str) -> None:
    config = resolve(name, recipe=recipe)
    assert config.recipe == recipe
    assert config_from_toml(to_toml(config)) == config
    assert config_from_toml(to_toml(config, comments=True)) == config


PAPER_ROWS = [  # game, recipe, eps_0, target, K, K_min, V_nominal, V_attacked, kappa, falls, learning rate, Adam eps
    ("pong", "at", 0, 25, 1, 1, None, None, 0.5, True, 1.25e-4, 1e-8),
    ("bank_heist", "ncl-at", 0, 15, 1, 1, None, None, 0.5, True, 1.25e-4, 1e-8),
    ("freeway", "ncl-radial", 1, 20, 1, 1, 32, None, 0.8, False, 1.25e-4, 1e-8),
    ("road_runner", "bcl-radial", 1, 15, 3, 1, 35_000, None, 0.8, False, 1.25e-4, 1.5e-4),
    ("pong", "bcl-c-at", 3, 25, 3, 3, None, None, 0.8, False, 1.25e-4, 1e-8),
    ("bank_heist", "bcl-c-at", 3, 15, 5, 5, None, None, 0.8, False, 1.25e-4, 1e-8),
    ("pong", "bcl-mos-at", 3, 25, 3, 1, 20, 20, 0.8, False, 1.25e-4, 1e-8),
    ("freeway", "bcl-mos-at", 3, 20, 3, 1, 30, 25, 0.8, False, 1.25e-4, 1e-8),
    ("bank_heist", "bcl-mos-at", 3, 15, 5, 1, 1200, 1000, 0.8, False, 1.25e-4, 1e-8),
    ("road_runner", "bcl-mos-at", 3, 15, 3, 1, 40_000, 12_000, 0.5, True, 1.25e-4, 1e-8),
    ("bank_heist", "bcl-radial+at", 13, 15, 3, 3, None, None, 0.8, False, 1.25e-4, 1e-8),
    ("road_runner", "bcl-radial+at", 12, 15, 1, 1, None, None, 0.8, False, 1.25e-7, 1.5e-4),
]


@pytest.mark.parametrize("row", PAPER_ROWS, ids=lambda r: f"{r[0]}-{r[1]}")
def test_rows_of_the_paper(row: tuple) -> None:
    game, recipe, start, target, runs, min_runs, nominal, attacked, kappa, falls, lr, adam_eps = row
    config = resolve(game, recipe=recipe)
    c = config.curriculum
    assert (c.start, c.target) == (start / 255, target / 255)
    assert (c.runs, c.min_runs) == (runs, min_runs)
    assert (c.nominal_threshold, c.attacked_threshold) == (nominal, attacked)
    assert (config.dqn.kappa, config.dqn.kappa_linear) == (kappa, falls)
    assert (config.dqn.learning_rate, config.dqn.adam_eps) == (lr, adam_eps)


@pytest.mark.parametrize(("game", "start", "target", "attacked"), [("fruitbot", 0, 20, 25.0), ("jumper", 1, 40, 6.0)])
def test_ppo_rows_of_the_paper(game: str, start: int, target: int, attacked: float) -> None:
    config = resolve(game, recipe="bcl-mos-at")
    assert config.algo == "ppo"
    assert (config.curriculum.start, config.curriculum.target) == (start / 255, target / 255)
    assert config.curriculum.attacked_threshold == attacked
    assert config.evaluation.episodes == 1000


def test_road_runner_at_rows_use_the_v1_pipeline() -> None:
    for recipe in ("at", "ncl-at", "bcl-c-at", "bcl-mos-at"):
        assert resolve("road_runner", recipe=recipe).game.pipeline == "v1"
    assert resolve("road_runner", recipe="bcl-radial").game.pipeline == "v2"


def test_games_without_a_preset() -> None:
    assert resolve("breakout").game == AtariGame("breakout")
    assert resolve("maze").game == ProcgenGame("maze")
    assert resolve("maze").algo == "ppo"
    assert resolve("Acrobot-v1").game == GymnasiumGame("Acrobot-v1")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dqn.stps", "3"], ("dqn.stps", "did you mean 'steps'")),
        (["--dqm.steps", "3"], ("dqm", "did you mean 'dqn'")),
        (["--eps", "3"], ("evaluation.eps", "3/255")),
        (["--evaluation.eps", "3"], ("3/255",)),
        (["--curriculum.target", "1"], ("1/255",)),
        (["--curriculum.target", "300/255"], ("outside",)),
        (["--curriculum.target", "x"], ("not a budget",)),
        (["--curriculum.target", "1/0"], ("not a budget",)),
        (["--dqn.steps", "many"], ("whole number",)),
        (["--dqn.steps", "1.5"], ("whole number",)),
        (["--dqn.steps", "0"], ("at least 1",)),
        (["--dqn.gamma", "1.5"], ("between 0 and 1",)),
        (["--dqn.learning-rate", "nan"], ("number",)),
        (["--dqn.learning-rate", "-1"], ("above 0",)),
        (["--dqn.kappa-linear", "maybe"], ("true or false",)),
        (["--network.kind", "dueling-cn"], ("did you mean 'dueling-cnn'",)),
        (["--game", "freeway"], ("section",)),
        (["--dqn.steps", "1", "--dqn.steps.x", "1"], ("not a section",)),
        (["--dqn.steps"], ("no value",)),
        (["steps"], ("unexpected argument",)),
        (["--recipe", "radail"], ("did you mean 'radial'",)),
        (["--network.hidden", "64,x"], ("whole number",)),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_a_way_out(flags: list[str], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("pong", flags=parse_flags(flags))
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unknown_game_names_the_closest() -> None:
    with pytest.raises(GameError, match="did you mean 'pong'"):
        resolve("pnog")


@pytest.mark.parametrize("text", ["[dqn", "steps = ", "\x00", "[dqn]\nsteps = 1\nsteps = 2"])
def test_broken_toml_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="not valid TOML"):
        resolve("pong", file=file)


def test_a_missing_config_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        resolve("pong", file=tmp_path / "none.toml")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["steps", "engine", "id", "eps", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(Config)]), plain, max_size=4))
def test_garbage_either_fits_or_is_refused_with_our_error(data: dict) -> None:
    try:
        config = config_from_dict({"game": {"engine": "atari", "id": "pong"}} | data)
    except BclError as error:
        assert "\n" not in error.message or "\n" in repr(data)
    else:
        assert config_from_toml(to_toml(config)) == config


@pytest.mark.parametrize(
    ("text", "value"), [("3/255", 3 / 255), ("0.03", 0.03), ("0", 0.0), (0.5, 0.5), ("1.0", 1.0), (0, 0.0)]
)
def test_budgets_are_read(text: object, value: float) -> None:
    assert parse_eps(text) == value


@given(st.integers(0, 254))
def test_budgets_are_written_as_people_do(levels: int) -> None:
    assert parse_eps(format_eps(levels / 255)) == levels / 255
    assert levels == 0 or format_eps(levels / 255) == f"{levels}/255"


def test_difference_names_the_fields() -> None:
    old, new = resolve("pong"), resolve("pong", flags=parse_flags(["--dqn.steps", "5", "--game.pool", "rgb"]))
    assert difference(old, new) == ["dqn.steps", "game.pool"]
    assert difference(old, old) == []


def test_what_cannot_be_trained_is_refused_by_name() -> None:
    with pytest.raises(BclError, match="'standard' loss"):
        check_trainable("vanilla", "dqn")
    with pytest.raises(ConfigError, match="dqn only"):
        check_trainable("sa", "ppo")


def test_every_published_row_names_a_preset() -> None:
    for name, recipe in RECIPES.items():
        assert set(recipe.games) <= set(preset_names()), name
        assert rows(name, "no-such-game")[-1] == {}
