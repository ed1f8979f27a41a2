import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bcl
from bcl import zoo
from bcl.config import (
    _USES,
    AttackConfig,
    Config,
    DqnConfig,
    PpoConfig,
    config_from_dict,
    config_from_toml,
    preset_names,
    resolve,
    resolve_stages,
)
from bcl.errors import BclError, ConfigError, GameError, counted
from bcl.games import AtariGame, GymnasiumGame, ProcgenGame
from bcl.recipes import RECIPES, check_trainable
from bcl.settings import difference, format_eps, format_error, format_return, merge, parse_eps, parse_settings, to_toml

PRESETS = Path(__file__).parents[1] / "bcl" / "presets"


def test_precedence_is_defaults_preset_recipe_file_flags(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[curriculum]\nruns = 7\nmin_runs = 6\n")
    config = resolve("pong", recipe="bcl-mos-at", file=file, settings=parse_settings(["--curriculum.min-runs", "2"]))
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


V1 = {"road_runner"}
TARGETS = {"pong": 25, "freeway": 20, "bank_heist": 15, "road_runner": 15}
NOMINAL = {"pong": 20, "freeway": 32, "bank_heist": 1200, "road_runner": 35_000}  # RADIAL rows
FALLS, FLAT = (0.5, True), (0.8, False)  # kappa
LR, ADAM, ADAM_RR = 1.25e-4, 1e-8, 1.5e-4
PAPER_ROWS = [  # recipe, game, eps_0, target, K, K_min, V_nominal, V_attacked, kappa, learning rate, Adam eps
    *(("at", g, 0, t, 1, 1, None, None, FALLS, LR, ADAM) for g, t in TARGETS.items()),
    *(("ncl-at", g, 0, t, 1, 1, None, None, FALLS, LR, ADAM) for g, t in TARGETS.items()),
    *(("ncl-radial", g, 1, None, 1, 1, v, None, FLAT, LR, ADAM_RR if g in V1 else ADAM) for g, v in NOMINAL.items()),
    *(("bcl-radial", g, 1, None, 3, 1, v, None, FLAT, LR, ADAM_RR if g in V1 else ADAM) for g, v in NOMINAL.items()),
    ("bcl-c-at", "pong", 3, 25, 3, 3, None, None, FLAT, LR, ADAM),
    ("bcl-c-at", "freeway", 3, 20, 3, 3, None, None, FLAT, LR, ADAM),
    ("bcl-c-at", "bank_heist", 3, 15, 5, 5, None, None, FLAT, LR, ADAM),
    ("bcl-c-at", "road_runner", 3, 15, 3, 3, None, None, FALLS, LR, ADAM),
    ("bcl-mos-at", "pong", 3, 25, 3, 1, 20, 20, FLAT, LR, ADAM),
    ("bcl-mos-at", "freeway", 3, 20, 3, 1, 30, 25, FLAT, LR, ADAM),
    ("bcl-mos-at", "bank_heist", 3, 15, 5, 1, 1200, 1000, FLAT, LR, ADAM),
    ("bcl-mos-at", "road_runner", 3, 15, 3, 1, 40_000, 12_000, FALLS, LR, ADAM),
    ("bcl-radial+at", "bank_heist", 13, 15, 3, 3, None, None, FLAT, LR, ADAM),
    ("bcl-radial+at", "road_runner", 12, 15, 1, 1, None, None, FLAT, 1.25e-7, ADAM_RR),
    *(("radial", g, 0, 1, 1, 1, None, None, FLAT, LR, ADAM_RR if g in V1 else ADAM) for g in TARGETS),
    ("sa", "pong", 0, 1, 1, 1, None, None, (0.005, False), 6.25e-5, 1.5e-4),
    ("sa", "freeway", 0, 1, 1, 1, None, None, (0.005, False), 6.25e-5, 1.5e-4),
    ("sa", "bank_heist", 0, 1, 1, 1, None, None, (0.02, False), 1e-5, 1.5e-4),
    ("sa", "road_runner", 0, 1, 1, 1, None, None, (0.01, False), 6.25e-5, 1.5e-4),
]


def curriculum_of(config: Config) -> tuple:
    c = config.curriculum
    return c.start, c.target, c.runs, c.min_runs, c.nominal_threshold, c.attacked_threshold


@pytest.mark.parametrize("row", PAPER_ROWS, ids=lambda r: f"{r[0]}-{r[1]}")
def test_dqn_rows_of_the_paper(row: tuple) -> None:
    recipe, game, start, target, *rest, kappa, lr, adam_eps = row
    config = resolve(game, recipe=recipe)
    end = config.curriculum.target if target is None else target / 255  # open-ended: no target
    assert curriculum_of(config) == (start / 255, end, *rest)
    assert (config.dqn.kappa, config.dqn.kappa_linear) == kappa
    assert (config.dqn.learning_rate, config.dqn.adam_eps) == (lr, adam_eps)
    assert config.curriculum.increment == 1 / 255
    assert config.dqn.steps == (6_000_000 if recipe == "sa" else 4_500_000)


PPO_ROWS = [  # recipe, game, bootstrap, eps_0, target, V_attacked, losses of the stages
    ("radial", "fruitbot", "auto", 0, 1, None, ["radial"]),
    ("radial", "jumper", "auto", 0, 1, None, ["radial"]),
    ("at", "fruitbot", "auto", 0, 20, None, ["standard", "at"]),
    ("at", "jumper", "auto", 0, 40, None, ["standard", "at"]),
    ("bcl-mos-at", "fruitbot", "auto", 0, 20, 25.0, ["standard", "at"]),
    ("bcl-mos-at", "jumper", "vanilla", 1, 40, 6.0, ["standard", "at"]),
    ("bcl-mos-at", "fruitbot", "radial", 6, 20, 25.0, ["radial", "at"]),
    ("bcl-mos-at", "jumper", "radial", 9, 40, 6.0, ["radial", "at"]),
]


@pytest.mark.parametrize("row", PPO_ROWS, ids=lambda r: "-".join(r[:3]))
def test_ppo_rows_of_the_paper(row: tuple) -> None:
    recipe, game, bootstrap, start, target, attacked, losses = row
    stages = resolve_stages(game, recipe=recipe, settings={} if bootstrap == "auto" else {"bootstrap": bootstrap})
    assert [stage.loss for stage, _ in stages] == losses
    config = stages[-1][1]
    assert curriculum_of(config) == (start / 255, target / 255, 1, 1, None, attacked)
    assert (config.algo, config.ppo, config.evaluation.episodes) == ("ppo", PpoConfig(), 1000)


def test_defaults_are_the_papers() -> None:
    fields = "steps batch_size samples_per_step learning_rate adam_eps gamma n_step buffer_size replay_initial"
    assert [getattr(DqnConfig(), name) for name in fields.split()] == [
        4_500_000, 128, 32, 1.25e-4, 1e-8, 0.99, 1, 50_000, 256,
    ]  # fmt: skip
    fields = "target_sync exploration_start exploration_end reward_clamp kappa kappa_linear ramp ramp_start ramp_steps"
    assert [getattr(DqnConfig(), name) for name in fields.split()] == [
        4_000, 0.01, 0.01, 1, 0.8, False, "smooth", 0, 4_000_000,
    ]  # fmt: skip
    assert dataclasses.astuple(PpoConfig())[:21] == (
        25_000_000, 64, 256, 3, 512, 5e-4, 1e-5, 0.999, 0.95, 0.2, 0.5, 0.01, 0.5, 0.5,
        1.0, True, 0.99, 10.0, False, "exponential", 0.1,
    )  # fmt: skip
    assert PpoConfig().ramp_end == 0.8


def test_vanilla_and_sa_have_their_own_numbers() -> None:
    names = ["steps", "buffer_size", "replay_initial", "exploration_start", "exploration_end", "exploration_steps"]
    numbers = [getattr(resolve("breakout").dqn, name) for name in names]
    assert numbers == [6_000_000, 200_000, 50_000, 1.0, 0.01, 500_000]
    assert [getattr(resolve("pong").dqn, name) for name in names] == [1_200_000, 400_000, 20_000, 1.0, 0.01, 300_000]
    held = {game: resolve(game).dqn.exploration_repeat for game in ("pong", "bank_heist", "freeway", "road_runner")}
    assert held == {"pong": 1, "bank_heist": 1, "freeway": 64, "road_runner": 32}
    assert resolve("road_runner", recipe="radial").dqn.exploration_repeat == 1  # the vanilla stage's alone
    assert resolve("cartpole").dqn.steps == 40_000  # the preset wins over the stage
    sa = resolve("pong", recipe="sa").dqn
    assert [getattr(sa, name) for name in names] == [6_000_000, 200_000, 80_000, 1.0, 0.05, 1_500_000]
    assert (sa.batch_size, sa.samples_per_step, sa.target_sync, sa.exploration_hold) == (32, 32, 2_000, 80_000)
    assert (sa.ramp_start, sa.ramp_steps) == (1_500_000, 5_500_000)
    assert resolve("freeway", recipe="sa").dqn.exploration_steps == 1_500_000  # 100,000 is its natural agent's alone
    assert resolve("road_runner", recipe="sa").dqn.target_sync == 32_000


ATARI = ("pong", "freeway", "bank_heist", "road_runner")
# radial_rl_v2's vanilla DQN, its RADIAL and the paper's AT and SA-DQN: steps, buffer, first update, batch, samples per
# step, step size, share left at the end, n-step, target copy.
PAPER_DQN = {
    "standard": (6_000_000, 200_000, 50_000, 128, 32, 1.25e-4, 1, 1, 4_000),
    "radial": (4_500_000, 200_000, 50_000, 128, 32, 1.25e-4, 1, 1, 4_000),
    "at": (4_500_000, 50_000, 256, 128, 32, 1.25e-4, 1, 1, 4_000),
}


@pytest.mark.parametrize("game", ATARI)
@pytest.mark.parametrize("recipe", ["at", "ncl-at", "bcl-c-at", "bcl-mos-at", "bcl-radial", "radial", "vanilla"])
def test_the_papers_tempo_has_its_numbers_in_every_stage(recipe: str, game: str) -> None:
    names = "steps buffer_size replay_initial batch_size samples_per_step learning_rate learning_rate_end n_step target_sync"
    for stage, config in resolve_stages(game, recipe=recipe, settings={"tempo": "paper"}):
        numbers = list(PAPER_DQN[stage.loss])
        if stage.loss == "radial" and config.game.pipeline == "v1":
            numbers[2] = 256  # radial_rl's first version
        assert [getattr(config.dqn, name) for name in names.split()] == numbers
        exploration = (config.dqn.exploration_start, config.dqn.exploration_end, config.dqn.exploration_steps)
        assert exploration == ((1.0, 0.01, 500_000) if stage.loss == "standard" else (0.01, 0.01, 1))
        assert config.dqn.exploration_repeat == 1
        assert config.attack == AttackConfig()
        assert config.tempo == "paper"


@pytest.mark.parametrize("game", ["fruitbot", "jumper"])
@pytest.mark.parametrize("recipe", ["vanilla", "radial", "at", "bcl-mos-at"])
def test_the_papers_tempo_is_the_usual_one_of_ppo(recipe: str, game: str) -> None:
    stages = resolve_stages(game, recipe=recipe, settings={"tempo": "paper"})
    assert [config.ppo for _, config in stages] == [PpoConfig()] * len(stages)
    assert [dataclasses.replace(config, tempo="auto") for _, config in stages] == [
        config for _, config in resolve_stages(game, recipe=recipe)
    ]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("game", [*ATARI, "fruitbot", "breakout"])
def test_the_fast_tempo_shortens_every_stage_and_keeps_the_method(recipe: str, game: str) -> None:
    if game == "fruitbot" and "ppo" not in RECIPES[recipe].algos:
        return
    target = {"curriculum": {"target": "10/255"}} if game == "breakout" and recipe != "vanilla" else {}
    usual = resolve_stages(game, recipe=recipe, settings={"tempo": "paper"} | target)
    fast = resolve_stages(game, recipe=recipe, settings={"tempo": "fast"} | target)
    method = ("kappa", "kappa_linear", "td_loss", "radial_approach", "ramp", "gamma")
    for (stage, before), (_, after) in zip(usual, fast, strict=True):
        assert (before.curriculum, before.attack, before.game) == (after.curriculum, after.attack, after.game)
        assert [getattr(before.dqn, name) for name in method] == [getattr(after.dqn, name) for name in method]
        assert after.learner(stage.loss).steps <= before.learner(stage.loss).steps
        if not RECIPES[recipe].ours:
            assert after.learner(stage.loss).steps < before.learner(stage.loss).steps
        if stage.loss in ("radial", "at", "sa") and stage.strategy != "paced" and after.algo == "dqn":
            assert after.dqn.ramp_steps < after.dqn.steps, "the budget comes to its end"


def test_the_fast_tempo_by_hand() -> None:
    vanilla, radial, at = (
        config.dqn for _, config in resolve_stages("freeway", recipe="bcl-mos-at", settings={"tempo": "fast"})
    )
    assert (vanilla.steps, vanilla.batch_size, vanilla.exploration_repeat) == (2_000_000, 1024, 64)
    assert (radial.steps, radial.ramp_steps, radial.n_step) == (1_000_000, 800_000, 3)
    assert (at.steps, at.ramp_steps, at.batch_size, at.n_step, at.kappa) == (500_000, 400_000, 1024, 3, 0.8)
    last = resolve("road_runner", recipe="bcl-radial+at", settings={"tempo": "fast"}).dqn
    assert (last.steps, last.learning_rate) == (500_000, 1.25e-7)
    ppo = resolve("fruitbot", recipe="at", settings={"tempo": "fast"}).ppo
    assert (ppo.steps, ppo.batch_size, ppo.learning_rate_end) == (5_000_000, 2048, 0.1)
    assert resolve("fruitbot", recipe="at", settings={"tempo": "fast", "ppo": {"steps": 9}}).ppo.steps == 9


@pytest.mark.parametrize("game", [*ATARI, "fruitbot", "jumper"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_stage_has_the_papers_steps_at_the_fast_tempo(recipe: str, game: str) -> None:
    for algo in RECIPES[recipe].algos:
        for stage, config in resolve_stages(game, recipe=recipe, settings={"algo": algo, "tempo": "fast"}):
            if stage.loss != "distill":  # not the paper's
                assert config.learner(stage.loss).steps not in (DqnConfig.steps, PpoConfig.steps)


@pytest.mark.parametrize("tempo", ["auto", "fast", "paper"])
@pytest.mark.parametrize("game", ["fruitbot", "jumper"])
def test_the_tempo_leaves_our_own_stages_of_ppo_as_they_are(game: str, tempo: str) -> None:
    for recipe in ("paced-at", "paced-radial", "paced-radial+at", "radial+paced-at"):
        stages = resolve_stages(game, recipe=recipe, settings={"tempo": tempo})
        paced = [config.ppo for stage, config in stages if stage.strategy == "paced"]
        assert {(ppo.steps, ppo.num_envs, ppo.rollout, ppo.batch_size) for ppo in paced} == {(8_000_000, 256, 64, 2048)}
    for recipe in ("distilled", "distilled+bounds"):
        teacher = resolve_stages(game, recipe=recipe, settings={"tempo": tempo})[0][1].ppo
        assert (teacher.steps, teacher.learning_rate_end, teacher.batch_size) == (17_000_000, 0.02, 2048)


def test_small_games_have_one_tempo() -> None:
    with pytest.raises(ConfigError, match="'cartpole' has no other tempo; leave out --tempo"):
        resolve("cartpole", recipe="at", settings={"tempo": "fast"})


def test_a_configuration_of_before_there_were_tempos_is_read_as_it_was() -> None:
    text = to_toml(resolve("pong", recipe="bcl-mos-at"))
    old = "".join(line + "\n" for line in text.splitlines() if not line.startswith("tempo"))
    assert "tempo" in text
    assert config_from_toml(old) == resolve("pong", recipe="bcl-mos-at")


def test_settings_by_their_names_of_version_0_1(tmp_path: Path) -> None:
    old = {"budget": "small", "curriculum": {"toothless": 0.5}}
    new = {"size": "small", "curriculum": {"weak_attack_share": 0.5}}
    wanted = resolve("cartpole", recipe="bcl-mos-at", settings=new)
    assert (wanted.size, wanted.curriculum.weak_attack_share) == ("small", 0.5)
    assert resolve("cartpole", recipe="bcl-mos-at", settings=old) == wanted
    file = tmp_path / "old.toml"
    file.write_text('budget = "small"\n[curriculum]\ntoothless = 0.5\n')
    assert resolve("cartpole", recipe="bcl-mos-at", file=file) == wanted
    stored = to_toml(wanted).replace("size = ", "budget = ", 1).replace("weak_attack_share", "toothless")
    assert 'budget = "small"' in stored
    assert config_from_toml(stored) == wanted


def test_every_stage_has_its_own_settings() -> None:
    vanilla, radial, opened, at = resolve_stages("road_runner", recipe="bcl-radial+at")
    assert vanilla[1] == dataclasses.replace(resolve("road_runner"), recipe="bcl-radial+at")
    assert radial[1] == dataclasses.replace(resolve("road_runner", recipe="radial"), recipe="bcl-radial+at")
    assert opened[1] == dataclasses.replace(resolve("road_runner", recipe="bcl-radial"), recipe="bcl-radial+at")
    assert at[1].dqn.replay_initial == 256
    assert {config.game.pipeline for _, config in resolve_stages("road_runner", recipe="bcl-radial+at")} == {"v2"}


@pytest.mark.parametrize("recipe", ["at", "ncl-at", "bcl-c-at", "bcl-mos-at"])
def test_road_runner_at_rows_use_v1_in_every_stage(recipe: str) -> None:
    for stage, config in resolve_stages("road_runner", recipe=recipe):
        assert (config.game.pipeline, config.game.num_actions) == ("v1", 0)
        d = config.dqn
        if stage.loss == "radial":
            assert d.radial_approach == "1"  # the only loss of radial_rl's first version
        if stage.loss == "standard":
            assert (d.exploration_repeat, d.kappa_linear, d.ramp) == (32, False, "smooth")
        else:
            expected = (256, 0.5, True, "linear", 4_500_000, 1e-8)
            assert (d.replay_initial, d.kappa, d.kappa_linear, d.ramp, d.ramp_steps, d.adam_eps) == expected


def test_bootstrap_chooses_the_stages_of_bcl_recipes_only() -> None:
    auto = resolve_stages("pong", recipe="bcl-mos-at")
    assert [stage.loss for stage, _ in auto] == ["standard", "radial", "at"]
    stages = resolve_stages("pong", recipe="bcl-mos-at", settings={"bootstrap": "vanilla"})
    assert [stage.loss for stage, _ in stages] == ["standard", "at"]
    assert stages[-1][1].curriculum.start == 0
    with pytest.raises(ConfigError, match="no choice of bootstrap"):
        resolve("pong", recipe="bcl-radial", settings={"bootstrap": "vanilla"})


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", preset_names())
def test_a_printed_configuration_changes_no_stage(name: str, recipe: str, tmp_path: Path) -> None:
    file = tmp_path / "printed.toml"
    file.write_text(to_toml(resolve(name, recipe=recipe)))
    assert resolve_stages(name, file=file) == resolve_stages(name, recipe=recipe)


def test_presets_names_earlier_stages_in_comments() -> None:
    out = str(bcl.presets("pong", recipe="bcl-mos-at"))
    assert "# stage 1 of 3, loss standard, strategy none:" in out
    assert "#   dqn.steps = 1200000\n" in out
    assert '#   curriculum.target = "1/255"\n' in out
    assert config_from_toml(out) == resolve("pong", recipe="bcl-mos-at")


def test_own_settings_reach_earlier_stages() -> None:
    flags = {"dqn": {"steps": 9}, "curriculum": {"start": 5 / 255, "runs": 4, "min_runs": 2}}
    *_, radial, opened, at = [c for _, c in resolve_stages("bank_heist", recipe="bcl-radial+at", settings=flags)]
    assert [c.dqn.steps for c in (radial, opened, at)] == [9, 9, 9]
    assert [c.curriculum.start * 255 for c in (radial, opened, at)] == [0, 1, 5]
    assert [c.curriculum.runs for c in (radial, opened, at)] == [1, 4, 4]


def test_the_learner_in_use() -> None:
    assert resolve("pong").learner("at") == resolve("pong").dqn
    assert resolve("fruitbot").learner("at") == resolve("fruitbot").ppo
    assert resolve("pong", settings=parse_settings(["--algo", "ppo"])).learner("at") == PpoConfig()
    assert resolve("fruitbot").learner("distill") == resolve("fruitbot").distill


def test_training_attacks_of_the_papers_ppo() -> None:
    assert resolve("fruitbot", recipe="at").attack == AttackConfig()
    jumper = resolve("jumper", recipe="at").attack
    assert (jumper.kind, jumper.steps, jumper.relative_step, jumper.objective) == ("pgd", 10, 0.2, "paper")


def test_games_without_a_preset() -> None:
    assert resolve("breakout").game == AtariGame("breakout")
    assert resolve("maze").game == ProcgenGame("maze")
    assert resolve("maze").algo == "ppo"
    assert resolve("MountainCar-v0").game == GymnasiumGame("MountainCar-v0")


def test_the_id_of_a_game_with_a_preset_has_the_settings_of_the_preset() -> None:
    for recipe in ("vanilla", "paced-at"):
        assert resolve_stages("Acrobot-v1", recipe=recipe) == resolve_stages("acrobot", recipe=recipe)


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
        (["--network.hidden", "64,,64"], ("'64,,64' has an empty item", "one comma between two items")),
        (["--network.hidden", "64,"], ("has an empty item",)),
        (["--evaluation.eps", ",0.1"], ("evaluation.eps = ',0.1' has an empty item",)),
        (["--network.hidden", ""], ("hidden is empty",)),
        (["--evaluation.eps", ""], ("eps is empty",)),
        (["--curriculum.min-runs", "2"], ("min_runs 2 is above",)),
        (["--curriculum.increment", "0"], ("increment is 0",)),
        (["--recipe", "at", "--curriculum.start", "25/255"], ("not below", "25/255")),
        (["--dqn.reward-clamp", "-1"], ("at least 0",)),
        (["--dqn.ramp-start", "5000000"], ("not before",)),
        (["--curriculum.target", "²"], ("not a budget",)),
        (["--curriculum.target", "9" * 5000], ("ambiguous",)),
        (["--curriculum.target", "9" * 5000 + "/255"], ("not a budget",)),
        (["--curriculum.target", "true"], ("not a budget", "3/255")),
        (["--bootstrap", "radail"], ("did you mean 'radial'",)),
        (["--game.id", "freeway"], ("game.id = 'freeway'", "command line")),
        (["--game.engine", "procgen"], ("game.engine = 'procgen'",)),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_a_way_out(flags: list[str], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("pong", settings=parse_settings(flags))
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unknown_game_names_the_closest() -> None:
    with pytest.raises(GameError, match="did you mean 'pong'"):
        resolve("pnog")


@pytest.mark.parametrize("text", ["[dqn", "steps = ", "\x00", "[dqn]\nsteps = 1\nsteps = 2", "x = " + "[" * 3000])
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
    if levels == 0:
        assert format_eps(0.0) == "0"
    elif levels % 51:  # 51/255 is 0.2, which is as short as people write it
        assert format_eps(levels / 255) == f"{levels}/255"
    else:
        assert format_eps(levels / 255) == repr(levels / 255)


def test_one_is_singular() -> None:
    words = [counted(number, "step") for number in (0, 1, 2, 12_345_678)]
    assert words == ["0 steps", "1 step", "2 steps", "12,345,678 steps"]
    assert [counted(number, "hour") for number in (0.5, 1.0)] == ["0.5 hours", "1 hour"]
    assert [counted(number, "copy", "copies") for number in (1, 8)] == ["1 copy", "8 copies"]


def test_difference_names_the_fields() -> None:
    old, new = resolve("pong"), resolve("pong", settings=parse_settings(["--dqn.steps", "5", "--game.pool", "rgb"]))
    assert difference(old, new) == ["dqn.steps", "game.pool"]
    assert difference(old, old) == []


def test_recipes_are_for_the_learners_they_name() -> None:
    for name in RECIPES:
        check_trainable(name, "dqn")
    for name in RECIPES:
        if name not in ("sa", "bcl-radial+at", "bcl-fast-at"):
            check_trainable(name, "ppo")
    with pytest.raises(ConfigError, match="dqn only"):
        check_trainable("sa", "ppo")


def test_every_published_row_names_a_preset() -> None:
    for name, recipe in RECIPES.items():
        named = set(recipe.games).union(*(stage.games for stage in recipe.stages))
        assert named <= set(preset_names()), name


@given(st.text())
def test_any_text_survives_toml(text: str) -> None:
    config = dataclasses.replace(resolve("pong"), recipe=text)
    assert config_from_toml(to_toml(config)) == config


@pytest.mark.parametrize("flag", ["--attack.in_play=0.5", "--attack.fresh=true"])
def test_ppo_refuses_what_only_dqn_has(flag: str) -> None:
    assert resolve("acrobot", recipe="at").attack.in_play > 0
    assert resolve("acrobot", recipe="at", settings=parse_settings(["--algo", "ppo"])).attack.in_play == 0
    with pytest.raises(ConfigError, match="PPO has no attack"):
        resolve("cartpole", recipe="at", settings=parse_settings(["--algo", "ppo", flag]))


def test_a_game_may_have_settings_for_one_learner_alone() -> None:
    targets = [resolve("acrobot", recipe="at", settings={"algo": algo}).curriculum.target for algo in ("dqn", "ppo")]
    assert targets == [0.06, 0.05]


def test_lunar_lander_has_settings_for_both_learners() -> None:
    dqn, ppo = (resolve("lunar_lander", recipe="distilled", settings={"algo": algo}) for algo in ("dqn", "ppo"))
    assert (dqn.evaluation.eps, ppo.evaluation.eps) == ((0.01, 0.02), (0.02, 0.04))
    assert (dqn.distill.spread, ppo.distill.spread) == (0.6, 0)
    assert dqn.distill.checkpoint_steps == dqn.distill.steps  # a run that restarts no game on the way is repeatable
    vanilla = resolve("lunar_lander", recipe="vanilla", settings={"algo": "dqn"}).dqn
    assert vanilla.reward_clamp == 0  # a clamp would make landings and crashes worth one step
    assert vanilla.steps < 1_000_000


@pytest.mark.parametrize("game", ["acrobot", "lunar_lander"])
def test_ppo_plays_under_attack_where_it_is_made_robust(game: str) -> None:
    vanilla, robust = (c.ppo for _, c in resolve_stages(game, recipe="at", settings=parse_settings(["--algo", "ppo"])))
    assert (vanilla.in_play, vanilla.temperature) == (0, 1)
    assert (robust.in_play, robust.temperature, robust.exploration_start) == (0.5, 0.3, 0)
    assert robust.steps < vanilla.steps


@pytest.mark.parametrize("text", ["[dqn]\nstepz = 3", "[dqn]\nsteps = 'x'", "dqn = 3", "[dqn]\nsteps = -5"])
def test_a_mistake_in_a_file_of_settings_names_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"dqn.*\(in '.*mine\.toml'\)"):
        resolve("cartpole", file=file)
    with pytest.raises(ConfigError) as caught:
        resolve("cartpole", file=file, settings={"ppo": {"stepz": 1}})
    assert "mine.toml" not in str(caught.value)  # the option is a mistake too


STUDENT = '[[stages]]\nloss = "distill"\nstrategy = "paced"\n'
NOT_PACED = "a stage of loss 'distill' needs strategy = \"paced\""


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        ("[[stages]]\n", "a stage has no loss"),
        ('[[stages]]\nloss = "distill"\n', NOT_PACED),
        ('[[stages]]\nloss = "distill"\nstrategy = "next"\n', NOT_PACED),
        (f"{STUDENT}same_teacher = true\n", "same_teacher needs a stage of loss 'distill' before it"),
        (f'{STUDENT}{STUDENT}same_teacher = "no"\n', "same_teacher is true or false"),
        (
            f'{STUDENT}distill.teacher = "zoo:pong-vanilla"\n{STUDENT}same_teacher = true\n',
            "same_teacher: distill.teacher of the stage before must stand in this stage too",
        ),
    ],
)
def test_stages_of_ones_own_that_cannot_be_trained_are_refused_first(tmp_path: Path, stages: str, what: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'bootstrap = "vanilla"\n{stages}')
    with pytest.raises(ConfigError) as caught:
        resolve("cartpole", recipe=str(file))
    assert f"is no recipe ({what})" in str(caught.value)


@pytest.mark.parametrize("text", ["", "stages = 5", "stages = []", 'summary = "nothing"'])
def test_a_recipe_of_ones_own_without_stages_is_told_as_that(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mine.toml' is no recipe \(it has no \[\[stages\]\]\)"):
        resolve_stages("cartpole", recipe=str(file))


def test_a_quick_look_of_a_vector_game_is_of_the_same_game_with_every_recipe() -> None:
    games = {resolve("cartpole", recipe=name, settings={"size": "small"}).game for name in ("at", "paced-radial")}
    assert games == {resolve("cartpole").game}


@pytest.mark.parametrize("recipe", ["paced-at", "paced-radial"])
def test_a_quick_look_has_steps_for_the_first_check_of_a_paced_budget(recipe: str) -> None:
    for game in ("fruitbot", "jumper"):
        ppo = resolve(game, recipe=recipe, settings={"size": "small"}).ppo
        assert ppo.steps / ppo.num_envs >= 500  # of each copy: an episode and more


def test_a_quick_look_has_memory_for_its_steps_alone() -> None:
    """A student's memory for 400,000 images of a game takes gigabytes as soon as it is made."""
    quick = resolve("fruitbot", recipe="distilled", settings={"size": "small"}).distill
    assert quick.buffer_size == quick.steps == 10_000


def test_a_quick_look_keeps_a_limit_of_runs_that_is_smaller_than_its_own(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[[stages]]\nloss = "at"\nstrategy = "next"\ncurriculum = { target = 0.06, max_runs = 3 }\n')
    quick = resolve("cartpole", recipe=str(file), settings={"size": "small"})
    assert quick.curriculum.max_runs == 3
    assert resolve("cartpole", recipe="bcl-mos-at", settings={"size": "small"}).curriculum.max_runs == 8


def test_a_quick_look_refuses_a_weak_start_only_if_asked_to() -> None:
    quick, asked = (
        resolve("cartpole", recipe="bcl-mos-at", settings={"size": "small", "curriculum": own})
        for own in ({}, {"expected_return": 400})
    )
    assert (quick.curriculum.expected_return, asked.curriculum.expected_return) == (None, 400)


@pytest.mark.parametrize(("strategy", "skip"), [("next", 0.0), ("skip", 1.0)])
def test_the_strategy_of_a_recipe_decides_whether_budgets_are_skipped(
    strategy: str, skip: float, tmp_path: Path
) -> None:
    file = tmp_path / f"{strategy}-mine.toml"
    file.write_text(f'[[stages]]\nloss = "at"\nstrategy = "{strategy}"\ncurriculum = {{ attacked_threshold = 9 }}\n')
    assert resolve("cartpole", recipe=str(file)).curriculum.skip == skip
    settings = {"curriculum": {"skip": 0.5}}
    assert resolve("cartpole", recipe=str(file), settings=settings).curriculum.skip == 0.5


AT_MINE = 'bootstrap = "vanilla"\n[[stages]]\nloss = "at"\ncurriculum = { target = 0.06 }\n'


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--attack.kind pgd", "attack.kind changes nothing, recipe 'vanilla' trains without an attack; leave it out"),
        ("--curriculum.runs 3", "curriculum.runs changes nothing, recipe 'vanilla' has no budget"),
        ("--config own.toml", "curriculum.target changes nothing, recipe 'vanilla' has no budget (in 'own.toml')"),
        ("--recipe distilled --attack.kind pgd", "attack.kind changes nothing, recipe 'distilled' trains without"),
        ("--recipe radial --algo ppo --attack.kind pgd", "attack.kind changes nothing, recipe 'radial'"),
        ("--recipe at --distill.steps 3", "distill.steps changes nothing, recipe 'at' does not distill; leave it out"),
        ("--recipe mine.toml --algo ppo", "dqn.steps changes nothing, the learner is ppo (in 'mine.toml')"),
        (
            "--recipe standard.toml",
            "attack.kind changes nothing, a stage of loss standard trains without an attack (in",
        ),
        ("--config fine.toml", "'fine.toml' is a recipe, not a file of settings; give it as --recipe fine.toml"),
        ("--recipe wrong.toml", "attack.steps = 'x' is not a whole number (in 'wrong.toml')"),
        ("--recipe earlier.toml", "unknown setting 'dqn.stpes' (in 'earlier.toml'); did you mean 'steps'"),
        ("--recipe at.toml --attack.steps x", "'at' is the name of a built-in recipe"),
        ("--recipe fine.toml --attack.steps x", "attack.steps = 'x' is not a whole number; give"),
    ],
)
def test_settings_that_nothing_uses_are_refused_and_files_named(
    words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "own": "[curriculum]\ntarget = 0.07\n",
        "mine": AT_MINE + "dqn.steps = 9000\n",
        "standard": '[[stages]]\nloss = "standard"\nattack.kind = "pgd"\n' + AT_MINE.partition("\n")[2],
        "wrong": AT_MINE + 'attack.steps = "x"\n',
        "earlier": '[[stages]]\nloss = "standard"\ndqn.stpes = 9\n' + AT_MINE.partition("\n")[2],
        "at": AT_MINE,
        "fine": AT_MINE,
    }
    for name, text in files.items():
        Path(f"{name}.toml").write_text(text)
    settings = parse_settings(words.split())
    file, recipe = settings.pop("config", None), settings.pop("recipe", None)
    with pytest.raises(ConfigError) as error:
        resolve_stages("cartpole", recipe=recipe, file=file and Path(file), settings=settings)
    assert str(error.value).startswith(expected)


def test_settings_of_stages_that_an_agent_replaces_are_refused() -> None:
    given = {"algo": "dqn"}
    settings = {"dqn": {"steps": 77}}
    resolve_stages("cartpole", recipe="distilled", settings=settings)  # its vanilla stage has them
    with pytest.raises(ConfigError, match=r"dqn.steps changes nothing, recipe 'distilled' only distills"):
        resolve_stages("cartpole", recipe="distilled", settings=settings, agent=given)
    for recipe in ("vanilla", "radial", "at"):
        resolve_stages("cartpole", recipe=recipe, settings=settings, agent=given)


def test_a_stage_that_goes_on_from_the_one_before_has_no_start_of_its_own() -> None:
    settings = {"curriculum": {"target": "10/255"}}  # the paper's row of the last stage begins at 13/255
    [*_, (_, config)] = resolve_stages("bank_heist", recipe="bcl-radial+at", settings=settings)
    assert config.curriculum.start > config.curriculum.target
    with pytest.raises(ConfigError, match="is not below"):
        resolve_stages(
            "bank_heist", recipe="bcl-mos-at", settings={"curriculum": {"start": "11/255", "target": "10/255"}}
        )


def test_a_file_of_another_recipe_is_told_as_that(tmp_path: Path) -> None:
    file, mine = tmp_path / "config.toml", tmp_path / "run_of_mine.toml"
    file.write_text(to_toml(resolve("cartpole", recipe="at", settings={"algo": "ppo"})))
    with pytest.raises(ConfigError) as error:
        resolve_stages("cartpole", recipe="vanilla", file=file)
    way_out = "leave --recipe out, or write a file with the settings you want"
    assert str(error.value) == f"'{file}' is of recipe 'at'; {way_out}"
    assert resolve_stages("cartpole", recipe="at", file=file) == resolve_stages("cartpole", file=file)
    mine.write_text(AT_MINE)
    file.write_text(to_toml(resolve("cartpole", recipe=str(mine))))
    assert resolve("cartpole", recipe=str(mine), file=file).recipe == "run_of_mine"


def test_arrays_are_lists() -> None:
    listed = {
        "network": {"hidden": [16, 8]},
        "game": {"scale": [1.0, 2.0, 3.0, 4.0]},
        "dqn": {"checkpoint_replay": True},
    }
    arrays = {section: {key: np.array(value) for key, value in table.items()} for section, table in listed.items()}
    assert resolve("cartpole", settings=arrays) == resolve("cartpole", settings=listed)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("dqn", "td_loss"),
        ("dqn", "checkpoint_replay"),
        ("dqn", "steps"),
        ("curriculum", "nominal_threshold"),
        ("game", "id"),
        ("game", "engine"),
    ],
)
def test_an_array_where_one_value_belongs_is_refused_in_a_sentence(section: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.{key} = '?\[1, 2\]'? is not "):
        resolve("cartpole", recipe="paced-at", settings={section: {key: np.array([1, 2])}})


def test_settings_that_one_stage_uses_are_taken() -> None:
    for words in (
        "--recipe radial --attack.in_play 0.5",  # of copies that play under attack while bounds are trained
        "--recipe bcl-radial --attack.kind pgd --curriculum.weak_attack_share 0.9",  # which judges
        "--recipe at --dqn.steps 5000 --curriculum.target 0.1 --attack.kind pgd",
        "--recipe distilled --dqn.steps 5000 --distill.steps 3 --curriculum.target 0.1",
        "--recipe at --attack.kind pgd --attack.steps 3 --dqn.kappa 0.5",
        "--recipe at --dqn.bound_share 0.5 --dqn.bound_eps 0.01 --dqn.radial_approach 1",
        "--recipe radial --attack.in_play 0.5 --attack.kind pgd --attack.steps 3",
        "--recipe bcl-mos-at --curriculum.runs 5 --curriculum.expected_return none --dqn.radial_approach 1",
        "--recipe paced-radial --curriculum.attacked_threshold 0.5 --attack.in_play 0.5",
        "--recipe paced-at --curriculum.patience 500 --dqn.kappa_linear true",
        "--recipe distilled --distill.spread 0.5 --curriculum.certified_threshold 0.5",
        "--recipe distilled --distill.in_play 0 --distill.box 0 --distill.attack_steps 3",
        "--recipe distilled --evaluation.suite strong --dqn.exploration_repeat 4 --dqn.exploration_start 0",
        "--recipe vanilla --evaluation.eps 0.1,0.2 --evaluation.score_eps 0.1",  # of 'bcl attack' and 'bcl compare'
        "--recipe at --algo ppo --ppo.in_play 0.5 --ppo.kappa 0.3 --ppo.exploration_start 1 --ppo.exploration_steps 9",
    ):
        settings = parse_settings(words.split())
        resolve_stages("cartpole", recipe=settings.pop("recipe"), settings=settings)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--recipe at --curriculum.runs 5", "recipe 'at' has no phases; leave it out, or take another recipe, such as"),
        ("--recipe paced-at --curriculum.max_runs 5", "recipe 'paced-at' has no phases"),
        ("--recipe at --curriculum.increment 0.01", "recipe 'at' is no curriculum"),
        ("--recipe bcl-mos-at --curriculum.patience 500", "recipe 'bcl-mos-at' has no paced budget"),
        ("--recipe paced-at --curriculum.certified_threshold 0.5", "recipe 'paced-at' trains without bounds"),
        ("--recipe paced-radial --curriculum.attacked_threshold 0.5", "no copy plays under attack"),
        ("--recipe bcl-c-at --curriculum.robust_to any", "no budget is skipped"),
        ("--recipe paced-at --curriculum.expected_return 9 --curriculum.adaptive false", "thresholds are not adaptive"),
        ("--recipe vanilla --dqn.kappa 0.5", "recipe 'vanilla' has no robust loss"),
        ("--recipe distilled --dqn.ramp linear", "recipe 'distilled' has no robust loss"),
        ("--recipe paced-at --dqn.ramp linear", "recipe 'paced-at' paces its budget"),
        ("--recipe at --dqn.radial_approach 1", "recipe 'at' has no loss of RADIAL's"),
        ("--recipe radial --dqn.bound_share 1", "recipe 'radial' is no adversarial training"),
        ("--recipe at --dqn.bound_eps 0.01", "dqn.bound_share is 0; leave it out, or give --dqn.bound_share above 0"),
        ("--recipe at --attack.steps 3 --attack.kind ri-fgsm", "the attack is not pgd; leave it out, or give"),
        ("--recipe at --attack.objective margin --attack.kind square", "the attack has one of its own"),
        ("--recipe radial --attack.kind pgd", "recipe 'radial' trains without an attack"),
        ("--recipe radial --attack.fresh true", "recipe 'radial' trains without an attack"),
        ("--recipe vanilla --algo ppo --ppo.kappa 0.3", "recipe 'vanilla' has no robust loss"),
        ("--recipe paced-at --algo ppo --ppo.ramp linear", "recipe 'paced-at' paces its budget"),
        ("--recipe radial --algo ppo --ppo.in_play 0.5", "recipe 'radial' is no adversarial training"),
        ("--recipe at --algo ppo --ppo.exploration_steps 9 --ppo.exploration_start 0", "ppo.exploration_start is 0"),
        ("--recipe at --algo ppo --ppo.return_gamma 1 --ppo.normalise_returns false", "ppo.normalise_returns is false"),
        (
            "--recipe vanilla --dqn.exploration_repeat 4 --dqn.exploration_start 0 --dqn.exploration_end 0",
            "dqn.exploration_start and dqn.exploration_end are 0; leave it out, or give --dqn.exploration_start above 0",
        ),
        ("--recipe distilled --distill.exploration_repeat 4 --distill.exploration 0", "distill.exploration is 0"),
        ("--recipe vanilla --evaluation.suite strong", "the verdict on recipe 'vanilla' plays no attack; leave it out"),
        ("--recipe distilled --distill.spread 0.5 --distill.in_play 0", "bounds alone need no attack"),
        ("--recipe vanilla --dqn.checkpoint_minutes 1 --dqn.checkpoint_steps 9", "checkpoints are counted in steps"),
        ("--recipe vanilla --network.kind plain-cnn --network.hidden 9", "its network is convolutional"),
        ("--recipe vanilla --evaluation.max_steps 9", "only episodes of Atari games are cut off; leave it out"),
    ],
)
def test_a_typed_setting_that_nothing_uses_is_refused_and_a_file_of_settings_is_not(
    words: str, why: str, tmp_path: Path
) -> None:
    settings = parse_settings(words.split())
    recipe = settings.pop("recipe")
    with pytest.raises(ConfigError) as error:
        resolve_stages("cartpole", recipe=recipe, settings=settings)
    assert str(error.value).partition(" changes nothing, ")[2].startswith(why)
    name = str(error.value).split(" ", 1)[0]
    assert f"--{name} " in words
    file = tmp_path / "config.toml"
    algo = settings.get("algo", "dqn")
    others = tomllib.loads(to_toml(resolve("cartpole", recipe=recipe, settings={"algo": algo})))
    file.write_text(to_toml(config_from_dict(merge(others, settings))))
    resolve_stages("cartpole", file=file)


@pytest.mark.parametrize("agent", zoo.names())
def test_the_complete_file_of_an_older_run_is_taken_whatever_the_defaults_were(agent: str) -> None:
    file = Path(zoo.__file__).parent / agent / "config.toml"
    stored = config_from_toml(file.read_text())
    assert resolve(stored.game.id, file=file).dqn == stored.dqn


def test_settings_of_both_learners_in_a_short_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text("[dqn]\nsteps = 9000\n[ppo]\nsteps = 9000\n")
    with pytest.raises(ConfigError, match=r"ppo\.steps changes nothing, the learner is dqn \(in "):
        resolve("cartpole", file=file)


def test_what_says_who_uses_a_setting_names_settings() -> None:
    for use in _USES:
        section, _, names = use.names.partition(".")
        assert {*names.split()} <= {*Config.__annotations__[section].__dataclass_fields__}


def test_the_way_to_another_learner_is_the_one_that_decides_it() -> None:
    for agent, settings, way in (
        ({"algo": "ppo"}, {}, "set ppo.steps, or give --init an agent of dqn"),
        ({"algo": "ppo"}, {"algo": "ppo"}, "set ppo.steps, or train with --algo dqn"),
        ({}, {"algo": "ppo"}, "set ppo.steps, or train with --algo dqn"),
    ):
        with pytest.raises(ConfigError) as error:
            resolve_stages("cartpole", recipe="at", settings={**settings, "dqn": {"steps": 9}}, agent=agent)
        assert error.value.hint == way
    with pytest.raises(ConfigError, match="or give --init an agent of dqn"):
        resolve_stages("cartpole", recipe="at", settings={"attack": {"fresh": True}}, agent={"algo": "ppo"})


@pytest.mark.parametrize(
    ("value", "mean", "error"),
    [
        (20.55, "20.55", "21"),
        (-0.123456, "-0.1235", "-0.12"),
        (99.6, "99.6", "100"),
        (1172.5, "1172", "1,172"),
        (9999.4, "9999", "9,999"),
        (9999.6, "10,000", "10,000"),
        (46935.0, "46,935", "46,935"),
        (-46935.0, "-46,935", None),
    ],
)
def test_large_returns_and_errors_have_all_their_digits(value: float, mean: str, error: str | None) -> None:
    assert format_return(value) == mean
    if error is not None:
        assert format_error(value) == error


@pytest.mark.parametrize("text", ["9007199254740993", "99999999999999999999", "1e3"])
def test_whole_numbers_keep_all_their_digits(text: str) -> None:
    config = resolve("cartpole", settings=parse_settings([f"--seed={text}"]))
    assert config.seed == int(float(text) if "e" in text else text)
    assert config_from_toml(to_toml(config)) == config
