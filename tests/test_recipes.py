"""Recipes and presets against the paper: which loss, which agent is kept, how agents are judged, and by which
budgets."""

from pathlib import Path

import pytest

from bcl.attacks.pgd import APGD
from bcl.config import config_from_toml, preset_names, resolve, resolve_stages
from bcl.errors import ConfigError
from bcl.experiment.phases import rules_of
from bcl.experiment.verdict import choosing_attacks
from bcl.recipes import RECIPES
from bcl.settings import parse_settings, to_toml


def test_radial_is_approach_2_wherever_it_is_not_v1() -> None:
    for game, recipe in (("road_runner", "radial"), ("road_runner", "bcl-radial+at"), ("pong", "bcl-mos-at")):
        stages = resolve_stages(game, recipe=recipe)
        assert {config.dqn.radial_approach for stage, config in stages if stage.loss == "radial"} == {"2"}


@pytest.mark.parametrize("recipe", ["ncl-at", "ncl-radial", "bcl-radial", "bcl-radial+at"])
@pytest.mark.parametrize("game", ["pong", "cartpole"])
def test_the_best_agent_on_the_path_is_kept_where_the_paper_reports_it(game: str, recipe: str) -> None:
    stages = resolve_stages(game, recipe=recipe)
    stage, config = next((stage, config) for stage, config in stages if stage.strategy != "none")
    assert (config.curriculum.keep, config.curriculum.judged_by) == ("best", ("evaluation",))
    assert rules_of(config, stage.strategy, config.curriculum.start).scored_at == config.evaluation.scored


@pytest.mark.parametrize("game", preset_names())
@pytest.mark.parametrize("recipe", [name for name, recipe in RECIPES.items() if recipe.ours])
def test_our_own_recipes_choose_by_an_attack_that_small_steps_cannot_mislead(recipe: str, game: str) -> None:
    for algo in RECIPES[recipe].algos:
        stages = resolve_stages(game, recipe=recipe, settings={"algo": algo})
        choosing = [config for stage, config in stages if stage.strategy != "none"]
        assert choosing
        for config in choosing:
            assert any(isinstance(attack, APGD) for attack in choosing_attacks(config))


def test_agents_are_judged_as_in_the_papers_tables() -> None:
    for game in ("pong", "freeway", "bank_heist", "road_runner"):
        evaluation = resolve(game, recipe="bcl-mos-at").evaluation
        assert (evaluation.suite, evaluation.levels, len(evaluation.scored)) == ("paper", "train", 3)
    for game in ("fruitbot", "jumper"):
        evaluation = resolve(game, recipe="bcl-mos-at").evaluation
        assert (evaluation.suite, evaluation.levels, len(evaluation.scored)) == ("pgd-30", "both", 3)
        look = resolve(game, settings={"size": "small"}).evaluation
        assert (look.suite, look.levels) == ("quick", "train")
    with pytest.raises(ConfigError, match="'pong' has no sets of levels"):
        resolve("pong", settings=parse_settings(["--evaluation.levels", "both"]))


@pytest.mark.parametrize(
    ("eps", "scored"), [("10/255", [10]), ("10/255,5/255,25/255", [10, 25]), ("5/255", []), ("2/255,4/255", [])]
)
def test_budgets_alone_can_be_overridden(eps: str, scored: list[int], tmp_path: Path) -> None:
    flags = parse_settings(["--evaluation.eps", eps])
    printed = tmp_path / "printed.toml"
    printed.write_text(to_toml(resolve("pong", recipe="bcl-mos-at")))
    for file in (None, printed):
        for _, config in resolve_stages("pong", recipe="bcl-mos-at", file=file, settings=flags):
            assert config.evaluation.score_eps == tuple(level / 255 for level in scored)
            assert config.evaluation.scored == (config.evaluation.score_eps or config.evaluation.eps)
            assert config_from_toml(to_toml(config)) == config


def test_a_score_over_budgets_that_are_not_judged_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"score_eps has 7/255, which evaluation\.eps has not"):
        resolve("pong", settings=parse_settings(["--evaluation.score_eps", "10/255,7/255"]))
    with pytest.raises(ConfigError, match="score_eps has 10/255, which"):
        resolve("pong", settings=parse_settings(["--evaluation.eps", "7/255", "--evaluation.score_eps", "10/255"]))
