"""What README.md and docs/ say exists: commands parse, names are known, links lead somewhere. They are run by `make docs-check`."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from bcl.attacks import attack_by_name, suite
from bcl.cli.main import COMMANDS, parse
from bcl.config import resolve_stages
from bcl.games import ENGINES
from bcl.quantities import parse_eps
from bcl.recipes import RECIPES, check_trainable
from bcl.schema import Config
from bcl.settings import parse_flags

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.docs_check import (
    NOT_RUN,
    PAGES,
    ROOT,
    blocks,
    commands,
    is_run,
    name,
    reason_not_to_run,
    scripts,
    small,
    span_words,
    spans,
    trainings,
)

DOCS = ROOT / "docs"
ALL = [block for page in PAGES for block in blocks(page)]


def refuse_unknown(words: list[str]) -> None:
    """Parse a `bcl` command line, and look up every name in it."""
    command, settings = parse(words[1], words[2:])
    if words[1] in ("train", "presets"):
        game = command.game if words[1] == "train" else command.name
        if game:
            config = resolve_stages(game, recipe=command.recipe, flags=parse_flags(settings))[-1][1]
            check_trainable(config.recipe, config.algo)
    elif words[1] == "attack":
        suite(command.suite)
        for attack in command.attack:
            attack_by_name(attack)
    budgets = getattr(command, "eps", None) or ()
    for eps in [budgets] if isinstance(budgets, str) else budgets:
        parse_eps(eps)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_line_parses(page: Path) -> None:
    for block in blocks(page):
        for words in commands(block.text) if block.language == "sh" else []:
            assert reason_not_to_run(words) or is_run(words), (
                f"{block.where}: '{shlex.join(words)}' is not run by anything"
            )
            if words[0] == "bcl" and not any(mark in shlex.join(words) for mark in "$*"):  # the shell fills those in
                refuse_unknown(words)
                if not reason_not_to_run(words):
                    refuse_unknown(["bcl", *small(words)[3:]])
            elif words[0] == "python":
                assert (ROOT / words[1]).exists(), block.where
    for span in spans(page):
        words = span_words(span) if span.startswith(("bcl ", "python ")) else []
        if words and words[0] == "python":
            assert reason_not_to_run(words) or is_run(words), f"{name(page)}: '{span}' is not run by anything"
        elif words:
            assert words[1] in COMMANDS, f"{name(page)}: {span}"
            if len(words) > 2:  # `bcl train --repeats 3` leaves out what it is about
                refuse_unknown([*words[:2], "cartpole", *words[2:]] if words[2].startswith("--") else words)


def test_a_block_becomes_short_commands() -> None:
    text = "# first\n.venv/bin/bcl attack p --suite strong --eps 0.1 0.2 \\\n  --episodes 20  # all\n\n"
    text += "make a && make b\nfor x in 1 2; do make $x; done\nmake c > d\n"
    attack, *made = commands(text)
    assert attack == ["bcl", "attack", "p", "--suite", "strong", "--eps", "0.1", "0.2", "--episodes", "20"]
    assert made == [["make", "a"], ["make", "b"], ["make", "$x"], ["make", "c"]]
    assert small(attack)[3:] == shlex.split("attack p --eps 0.1 0.2 --attack noise --episodes 1 --num-envs 2")
    assert not is_run(["rm", "-r", "runs"])


def test_a_training_of_every_recipe_in_the_tables_is_run() -> None:
    page = ROOT / "docs" / "reproducing.md"
    run = {shlex.join(words[3:]) for words in trainings(page)}
    recipes = [recipe for recipe, about in RECIPES.items() if not about.ours]
    assert run == {f"--recipe {recipe}" for recipe in recipes} | {"--recipe bcl-mos-at --bootstrap radial"}
    commands_run = [words for _, _, words in scripts(page) if words[:2] == ["bcl", "train"]]
    assert len({words[-1] for words in commands_run}) == len(commands_run) == len(run)  # in folders of their own
    for words in commands_run:
        refuse_unknown(["bcl", *small(words)[3:]])


def test_every_reason_not_to_run_is_needed() -> None:
    lines = [shlex.join(words) for block in ALL if block.language == "sh" for words in commands(block.text)]
    lines += [span for page in PAGES for span in spans(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, line) for line in lines)] == []


def test_blocks_without_a_language_hold_no_commands() -> None:
    assert {block.language for block in ALL} <= {"", "sh", "python"}
    plain = [block for block in ALL if not block.language]
    assert [
        block.where for block in plain if re.search(r"^(\.venv/bin/)?(bcl|python|make) ", block.text, re.MULTILINE)
    ] == []


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "python"], ids=lambda b: b.where)
def test_python_compiles(block) -> None:
    compile(block.text, block.where, "exec")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_settings_exist(page: Path) -> None:
    sections = {
        key: set(kind.__dataclass_fields__)
        for key, kind in Config.__annotations__.items()
        if hasattr(kind, "__dataclass_fields__")
    }
    sections["game"] = {field for kind in ENGINES.values() for field in kind.__dataclass_fields__} | {"engine"}
    for span in spans(page):
        match = re.fullmatch(r"(?:--)?(\w+)\.([a-z_]+)(?: .*)?", span)
        if match and match[1] in sections and match[2] != "py":
            assert match[2] in sections[match[1]], f"{name(page)}: {span}"


def test_the_readme_lists_the_recipes() -> None:
    table = (ROOT / "README.md").read_text().split("## Recipes")[1].split("## Results")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert {recipe for row in rows for recipe in re.findall(r"`([^`]+)`", row)} == {*RECIPES}


def anchors(page: Path) -> set[str]:
    """The names that links to a page's headings use."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)}: {link}"
        assert stays_in_the_site(page, target), f"{name(page)}: {link} leaves docs/, which mkdocs --strict refuses"


def stays_in_the_site(page: Path, target: Path) -> bool:
    """Whether a page of the site links to the site alone; README.md may link to anything."""
    return page.parent != DOCS or target.is_relative_to(DOCS)


def test_a_link_out_of_the_site_is_found() -> None:
    assert not stays_in_the_site(DOCS / "index.md", ROOT / "README.md")
    assert stays_in_the_site(DOCS / "index.md", DOCS / "images" / "demo.png")
    assert stays_in_the_site(ROOT / "README.md", ROOT / "examples")


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
