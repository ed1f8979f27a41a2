"""Numbers and code that the documentation repeats, against where they come from."""

import inspect
import json
import re
from pathlib import Path

import pytest

from bcl import recipes
from bcl.config import CurriculumConfig, preset_names, resolve, resolve_stages
from bcl.experiment.verdict import plan_of
from bcl.learners import dqn

ROOT = Path(__file__).parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its header."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:]]


def test_the_loop_in_the_page_on_dqn_is_the_code() -> None:
    section = (DOCS / "dqn.md").read_text().split("\n## The loop\n")[1]
    [block] = re.findall(r"^```\n(.*?)^```$", section.split("\n## ")[0], re.MULTILINE | re.DOTALL)
    code = "\n".join(line.strip() for line in inspect.getsource(dqn.train).splitlines())
    assert "\n".join(line.strip() for line in block.splitlines()) in code


def test_the_page_on_developing_names_every_file_of_the_code() -> None:
    section = (DOCS / "developing.md").read_text().split("\n## Where things are\n")[1].split("\n## ")[0]
    package = ROOT / "bcl"
    files = [path for path in package.rglob("*.py") if not path.name.startswith("__")]
    for path in files:
        line = section if path.parent == package else section.split(f"- `{path.parent.name}/`:")[1].split("\n- ")[0]
        assert f"`{path.name}`" in line, path


KEPT = {"last": "the last", "met": "the last that met its threshold", "best": "the best on the path"}


CURRICULA = [row for row in rows("curriculum.md", "Recipes") if row[3]]  # the others are one training run


@pytest.mark.parametrize("row", CURRICULA, ids=lambda row: row[0])
def test_the_table_of_recipes_says_what_they_are(row: list[str]) -> None:
    for name in re.findall(r"`([^`]+)`", row[0]):
        config = resolve("pong", recipe=name)
        assert row[3].startswith(f"{config.curriculum.runs}, {config.curriculum.min_runs}")
        assert row[4] == KEPT[config.curriculum.keep]


def test_every_curriculum_is_in_the_table_of_recipes() -> None:
    named = {name for row in CURRICULA for name in re.findall(r"`([^`]+)`", row[0])}
    assert named == {
        name for name, recipe in recipes.RECIPES.items() if any(stage.strategy != "none" for stage in recipe.stages)
    }


def test_the_help_of_keep_names_the_budgets_that_decide() -> None:
    """`evaluation.score_eps`, not `evaluation.eps`: tests/test_recipes.py looks at the rules."""
    described = inspect.getsource(CurriculumConfig).split("keep:")[1].split("failed_phases:")[0]
    assert "`evaluation.score_eps`" in described
    assert "`evaluation.eps`" not in described


def test_pages_tell_how_evaluations_search() -> None:
    assert plan_of(resolve("pong", recipe="bcl-mos-at"), "selection").precision == "fast"
    assert "those that choose search in half precision" in (DOCS / "curriculum.md").read_text()
    assert "## Rescaled gradients" in (DOCS / "attacks.md").read_text()  # tests/attacks/test_objectives.py


def seconds(text: str) -> float:
    """Of a duration such as `19 min`."""
    number, unit = text.removeprefix("at most ").split()
    return float(number) * {"s": 1, "min": 60, "h": 3600}[unit]


def known_rates(source: str) -> list[float]:
    """Agent steps per second in the files that a cell names."""
    found = []
    for file in re.findall(r"`([\w-]+\.json)`", source):
        found += [row["steps_per_second"] for row in json.loads((RESULTS / file).read_text())["rows"]]
    if "zoo:pong-radial" in source:
        about = (ROOT / "bcl" / "zoo" / "pong-radial" / "agent.toml").read_text()
        found += [float(rate.replace(",", "")) for rate in re.findall(r"rate of ([\d,]+) steps/s", about)]
    return found


def written_as(rate: float, text: str) -> bool:
    """Whether a rate, rounded as the text is, is that text."""
    return f"{rate:,.{len(text.partition('.')[2])}f}" == text


def times_to_expect() -> dict[str, list[float]]:
    """Seconds by row of the table; every time must follow from its rate, and the rate from what was measured."""
    found: dict[str, list[float]] = {}
    for what, sizes, steps, rates, source, times in rows("reproducing.md", "Time to expect"):
        agent_steps = float(steps.removesuffix("M")) * 1e6
        if rates:
            for rate, time in zip(rates.split("; "), times.split("; "), strict=True):
                measured = next(one for one in known_rates(source) if written_as(one, rate))
                assert seconds(time) == pytest.approx(agent_steps / measured, rel=0.03), what
                found.setdefault(what, []).append(agent_steps / measured)
        kind, _, game = what.partition(", ")
        named = {"RoadRunner": "road_runner"}.get(game.removesuffix(" (ours)"), game.removesuffix(" (ours)").lower())
        preset = named if named in preset_names() else "bank_heist"
        recipe = {"SA-DQN": "sa"}.get(kind, kind.lower())
        stage, whole = resolve_stages(preset, recipe=recipe)[-1]
        config = whole.learner(stage.loss)
        assert (config.steps, f"{config.num_envs}, {config.batch_size}") == (agent_steps, sizes), what
    return found


def test_times_to_expect_follow_from_measured_rates() -> None:
    assert len(times_to_expect()) == 6
    page = (DOCS / "reproducing.md").read_text()
    rates = {row["attack"]: row["together"] for row in json.loads((RESULTS / "evaluate-h200.json").read_text())["rows"]}
    for attack, rate in rates.items():
        assert re.search(rf"{attack} {rate:,.0f}\b", page), attack
    budget = 40_000 * (sum(1 / rate for rate in rates.values()) + 1 / rates["Multi-T"])
    assert budget / 60 == pytest.approx(1.5, abs=0.05)


def test_hours_of_a_curriculum_are_its_runs_times_a_runs() -> None:
    one_run = {what: times[0] / 3600 for what, times in times_to_expect().items()}
    at, radial = one_run["AT, Atari"], one_run["RADIAL, Atari"]
    own = {"FruitBot": one_run["AT, FruitBot"], "Jumper": one_run["AT, Jumper"]}
    section = (DOCS / "reproducing.md").read_text().split("A curriculum multiplies the time by its runs.")[1]
    table = [line.strip("|").split("|") for line in section.split("\n\n")[1].splitlines()]
    names, _, *lines = [[cell.strip(" `") for cell in row] for row in table]
    cells = [
        (line[0], recipe, cell) for line in lines for recipe, cell in zip(names[1:], line[1:], strict=True) if cell
    ]
    assert len(cells) == 4 * 5 + 2 + 2
    at_after_radial = {"BankHeist": 6, "RoadRunner": 3}  # of the paper's runs of BCL-RADIAL+AT
    for game, recipe, cell in cells:
        runs, hours = (part.removesuffix(" h").split(" to ") for part in cell.split(": "))
        for number, shown in zip(map(int, runs), hours, strict=True):
            expected = number * (radial if "radial" in recipe else own.get(game, at))
            if recipe == "bcl-radial+at":
                expected += at_after_radial[game] * (at - radial)
            assert float(shown) == pytest.approx(expected, rel=0.05), (game, recipe)
