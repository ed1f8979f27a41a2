"""What README.md and docs/ say exists: commands parse, names are known, links lead somewhere. They are run by `make
docs-check`."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch

from bcl.attacks import attack_by_name, suite
from bcl.cli.main import COMMANDS, functions_of
from bcl.cli.options import parse
from bcl.config import Config, resolve, resolve_stages
from bcl.envs import make_env
from bcl.games import Game
from bcl.recipes import RECIPES, check_trainable
from bcl.settings import parse_eps, parse_settings

sys.path.insert(0, str(Path(__file__).parent))
from docs_check import EPISODE, short_games
from docs_commands import (
    NOT_RUN,
    PAGES,
    ROOT,
    blocks,
    commands,
    is_run,
    name,
    page_pieces,
    reason_not_to_run,
    small,
    span_commands,
    spans,
    text_pieces,
)

DOCS = ROOT / "docs"
ALL = [block for page in PAGES for block in blocks(page)]


def refuse_unknown(words: list[str]) -> None:
    """Parse a `bcl` command line, and look up every name in it."""
    [given, *_], settings = parse(words[1], functions_of(words[1]), words[2:])
    if words[1] in ("train", "presets") and "game" in given:
        config = resolve_stages(given["game"], recipe=given.get("recipe"), settings=parse_settings(settings))[-1][1]
        check_trainable(config.recipe, config.algo)
    elif words[1] == "attack":
        if "suite" in given:
            suite(given["suite"])
        for attack in given.get("attacks", ()):
            attack_by_name(attack)
    budgets = given.get("eps", ())
    for eps in [budgets] if isinstance(budgets, str) else budgets:
        parse_eps(eps)


def left_out(words: list[str], run: list[list[str]]) -> bool:
    """Whether a command is neither run nor excused."""
    return not reason_not_to_run(words) and not (is_run(words) and any(words == piece[: len(words)] for piece in run))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_of_the_blocks_is_run(page: Path) -> None:
    run = [words for piece in page_pieces(page) if piece.words[0] == "bash" for words in commands(piece.words[2])]
    found = [words for block in blocks(page) if block.language == "sh" for words in commands(block.text)]
    assert [shlex.join(words) for words in found if left_out(words, run)] == []


def test_every_command_of_the_text_is_run() -> None:
    run = [piece.words for piece in text_pieces(PAGES)]
    found = [(page, span, words) for page in PAGES for span, words in span_commands(page)]
    assert [f"{name(page)}: {span}" for page, span, words in found if left_out(words, run)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_line_parses(page: Path) -> None:
    lines = [words for block in blocks(page) if block.language == "sh" for words in commands(block.text)]
    lines += [words for _, words in span_commands(page)]
    for words in lines:
        filled_in_by_the_shell = any(mark in shlex.join(words) for mark in "$*")
        if words[0] == "bcl" and words[2:] == ["--help"]:
            assert words[1] in COMMANDS, f"{name(page)}: {shlex.join(words)}"
        elif words[0] == "bcl" and not filled_in_by_the_shell:
            refuse_unknown(words)
            refuse_unknown(small(words))
        elif words[:2] != ["python", "-m"] and words[0] == "python":
            assert (ROOT / words[1]).exists(), f"{name(page)}: {shlex.join(words)}"


def test_a_block_becomes_short_commands() -> None:
    text = "# first\n.venv/bin/bcl attack p --suite strong --eps 0.1 0.2 \\\n  --episodes 20  # all\n\n"
    text += "make a && make b\nfor x in 1 2; do make $x; done\nmake c > d\n"
    attack, *made = commands(text)
    assert attack == ["bcl", "attack", "p", "--suite", "strong", "--eps", "0.1", "0.2", "--episodes", "20"]
    assert made == [["make", "a"], ["make", "b"], ["make", "$x"], ["make", "c"]]
    assert small(attack)[1:] == shlex.split("attack p --suite strong --eps 0.1 --episodes 1 --num-envs 1")
    assert small(shlex.split("bcl certify p --eps 0.1 0.2 --method crown"))[3:] == shlex.split(
        "--eps 0.1 --method crown --episodes 1"
    )
    assert left_out(["rm", "-r", "runs"], [["rm", "-r", "runs"]])


def test_commands_of_the_text_become_pieces(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`bcl attack`, `eps = 0`, `ray`, `bcl status RUN`, `bcl train --repeats 3`, `bcl train pong --recipe sa`,\n"
        "`bcl train pong --recipe sa`, `bcl train pong --recipe sa --seed 1`, `.venv/bin/python new.py`, `make test`\n"
        "```sh\nbcl presets\n```\n"
    )
    words = [shlex.join(piece.words) for piece in text_pieces([page])]
    assert words == [
        "python new.py",
        "bcl train cartpole --recipe at --out runs/x",
        "bcl train cartpole --repeats 3",
        "bcl train pong --recipe sa",
        "bcl train pong --recipe sa --seed 1 --out runs/2",
        "bcl attack --help",
        "bcl status runs/x",
    ]
    assert left_out(["python", "new.py"], [["python", "new.py"]])  # nobody knows how to shorten it
    assert left_out(["bcl", "resume", "runs/x"], [shlex.split(line) for line in words])


def test_every_row_of_the_tables_has_a_training_in_a_folder_of_its_own() -> None:
    trainings = [piece.words for piece in text_pieces([DOCS / "reproducing.md"]) if piece.words[1] == "train"]
    recipes = {words[words.index("--recipe") + 1] for words in trainings}
    assert recipes == {recipe for recipe, about in RECIPES.items() if not about.ours}
    folders = {words[-1] if "--out" in words else f"{words[2]}-{words[4]}" for words in trainings}
    assert len(folders) == len(trainings)


def test_what_fails_in_a_page_fails_the_check(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nbcl presets > list && test -s list\nbcl status nowhere\n```\n```python\nimport bcl\n```\n")
    done = subprocess.run([sys.executable, ROOT / "tests" / "docs_check.py", page], capture_output=True, text=True)
    assert done.returncode
    assert re.findall(r"^ *(\d) of 2  (\w+)", done.stdout, re.MULTILINE) == [("1", "FAILED"), ("2", "ok")]
    assert "'nowhere'" in done.stderr


@pytest.mark.parametrize("game", ["pong", "jumper", "acrobot"])
def test_games_of_the_check_are_short(game: str) -> None:
    with short_games():
        env = make_env(resolve(game).game, 1)
        env.reset(0)
        ended = []
        for _ in range(EPISODE + 2):  # Pong begins with two moves of its own
            env.send(torch.zeros(1, dtype=torch.int64))
            step = env.recv()
            ended.append((step.terminated | step.truncated).item())
    assert any(ended)


def test_every_reason_not_to_run_is_needed() -> None:
    lines = [shlex.join(words) for block in ALL if block.language == "sh" for words in commands(block.text)]
    lines += [shlex.join(words) for page in PAGES for _, words in span_commands(page)]
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
    sections["game"] = {field for kind in get_args(Game) for field in kind.__dataclass_fields__} | {"engine"}
    for span in spans(page):
        match = re.fullmatch(r"(?:--)?(\w+)\.([a-z_]+)(?: .*)?", span)
        if match and match[1] in sections and match[2] != "py":
            assert match[2] in sections[match[1]], f"{name(page)}: {span}"


def test_the_page_on_the_curriculum_lists_the_recipes() -> None:
    table = (DOCS / "curriculum.md").read_text().split("\n## Recipes\n")[1].split("\n### ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert {recipe for row in rows for recipe in re.findall(r"`([^`]+)`", row)} == {*RECIPES}


def test_the_readme_is_short_and_explains_its_words_first() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text) <= 7000
    explained, used = text.split("```sh", 1)
    for word in ("attack", "budget", "flag"):
        assert f"**{word}**" in explained
    assert [len(line.split("#")[0].split()) for line in used.splitlines() if line.startswith("make ")] == [2, 2]


# Command -> the sentence of docs/troubleshooting.md that it prints.
MISTAKES = {
    "trian acrobot": "unknown command 'trian'; did you mean 'train'?",
    "train acrobot --dqn.step 10": "unknown setting 'dqn.step'; did you mean 'steps'?",
    "train fruitbot --dqn.steps 10": "dqn.steps changes nothing, the learner is ppo; set ppo.steps, or train with --algo dqn",
    "train acrobot --attack.kind pgd": "attack.kind changes nothing, recipe 'vanilla' trains without an attack; leave it out, or take another recipe, such as --recipe at",
    "train acrobot --recipe at --curriculum.runs 5": "curriculum.runs changes nothing, recipe 'at' has no phases; leave it out, or take another recipe, such as --recipe bcl-mos-at",
    "attack zoo:pong-vanilla --eps 3": "eps = 3 is ambiguous; write 3/255 for gray levels, or a decimal such as 0.03",
    "train acrobot --recipe sa --algo ppo": "recipe 'sa' is defined for dqn only; choose another with ppo, or --algo dqn",
    "train pong --recipe radial --init zoo:pong-vanilla --algo ppo": "the agent to start from was made for dqn and not for ppo; leave out --algo",
    "train Pendulum-v1": "'Pendulum-v1' has actions of type Box; only Discrete actions are supported",
    "attack zoo:pong-vanilla --threshold 3": "a threshold was given but no search for a budget; add --find-eps",
    "train acrobot --recipe at --dqn.steps 100": "dqn.steps 100 end before the first update, at 1,056; more steps, or a lower dqn.replay_initial, dqn.batch_size or dqn.n_step",
    "attack nowhere": "'nowhere' does not exist; check the path",
    "status nowhere": "'nowhere' does not exist; check the path",
    "status empty": "'empty' is not a run directory; it has no config.toml; check the path",
    "import text.zip --format sb3 --game CartPole-v1 --out x": "'text.zip' cannot be read safely as an SB3 agent (BadZipFile); give the zip that model.save of Stable-Baselines3 wrote",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_the_page_on_trouble_has_what_is_printed(line: str, in_folder: Callable[..., tuple[int, str, str]]) -> None:
    Path("empty").mkdir()
    Path("text.zip").write_text("no zip")
    assert in_folder(*line.split()) == (2, "", f"bcl: {MISTAKES[line]}\n")
    assert f"`{MISTAKES[line]}`" in (DOCS / "troubleshooting.md").read_text()


def test_pictures_are_small() -> None:
    assert [path.name for path in (DOCS / "images").iterdir() if path.stat().st_size > 150_000] == []


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
