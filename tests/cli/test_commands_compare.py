"""bcl compare as a person meets it."""

import io
import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

import bcl as package
from bcl.attacks import PGD
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import Evaluation, Score, Start
from bcl.policies import Policy, PolicySpec
from bcl.reports.tables import print_table
from bcl.result import Table
from bcl.runs import store


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three small CartPole agents, of which two were judged."""
    from bcl.cli.main import main

    folder = tmp_path_factory.mktemp("agents")
    game = resolve("cartpole").game
    env = make_env(game, 1)
    for seed, name in enumerate(("one", "two", "never")):
        torch.manual_seed(seed)
        policy = Policy(PolicySpec("dueling-mlp", (4,), 2, env.low, env.high, (16, 16), game=game))
        package.save(policy, folder / f"{name}.safetensors")
        if name != "never":
            words = ["--attack", "pgd-3", "noise", "--eps", "0.05", "--episodes", "5", "--json"]
            with pytest.raises(SystemExit) as exit:
                main(["attack", str(folder / f"{name}.safetensors"), *words])
            assert not exit.value.code
    return folder


@pytest.fixture
def bcl(judged: Path, in_folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(judged)
    capsys.readouterr()
    return in_folder


def test_tables_and_a_figure(bcl, tmp_path: Path) -> None:
    figure = tmp_path / "f.svg"
    code, out, _ = bcl("compare", "one.safetensors", "two.safetensors", "--figure", str(figure))
    assert code == 0
    for word in (
        "one.safetensors",
        "two.safetensors",
        "worst within each budget under PGD-3, Noise",
        "probability that an episode",
        "0.05",
    ):
        assert word in out
    assert figure.read_bytes().startswith(b"<?xml")
    assert out.splitlines()[-2:] == [
        f"figure: {figure}",
        "next: bcl compare one.safetensors two.safetensors --format latex",
    ]


def test_the_figure_is_drawn_though_the_tables_have_no_reader(
    bcl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("bcl.reports.tables.print_table", closed)
    monkeypatch.setattr("bcl.cli.main._silence_stdout", lambda: None)
    bcl("compare", "one.safetensors", "--figure", str(tmp_path / "f.svg"))
    assert (tmp_path / "f.svg").exists()


def test_other_formats_are_nothing_but_themselves(bcl) -> None:
    _, out, err = bcl("compare", "one.safetensors", "two.safetensors", "--format", "json")
    data = json.loads(out)
    assert (err, [row["label"] for row in data["blocks"][0]["rows"]]) == ("", ["one.safetensors", "two.safetensors"])
    cell = data["blocks"][0]["rows"][0]["cells"][1]
    rows = store.read_metrics(Path("one.results/evals/scores.jsonl"))
    stored = [row for row in rows if row["eps"] == 0.05]
    assert cell["median"]["mean"] == min(score["mean"] for score in stored)
    assert bcl("compare", "one.safetensors", "--format", "latex")[1].startswith(
        "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
    )
    assert bcl("compare", "one.safetensors", "--format", "markdown")[1].startswith("**CartPole-v1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "nothing to compare"),
        (["never.safetensors"], "'bcl attack never.safetensors' does it"),
        (["one.safetensors", "one.safetensors"], "given twice"),
        (["nowhere"], "'nowhere' does not exist; check the path"),
        (["one.safetensors", "--figure", "f.jpeg"], "png, svg, pdf"),
        (["one.safetensors", "--format", "word"], "--format"),
    ],
)
def test_mistakes_are_one_sentence(bcl, words: list[str], expected: str) -> None:
    code, out, err = bcl("compare", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_the_next_command_is_the_one_that_is_missing(bcl, judged: Path) -> None:
    bcl("attack", "one.safetensors", "--suite", "quick", "--eps", "0.1", "--episodes", "4", "--seed", "9")
    bcl("attack", "never.safetensors", "--attack", "noise", "--eps", "0", "--episodes", "4", "--seed", "9")
    code, out, _ = bcl("compare", "one.safetensors", "never.safetensors")
    assert code == 0
    assert "never.safetensors was evaluated by nominal play alone" in out
    assert out.splitlines()[-1] == "next: bcl attack never.safetensors --suite quick --eps 0.1 --episodes 4"


def printed(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_table(table, console)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 45, 36, 28])
def test_in_a_narrow_terminal_lines_break_between_words_and_only_names_are_cut(width: int) -> None:
    name, value = "a-run-of-20-letters.", "20 ± 0.35 [19.25, 20.75]"
    lines = printed(Table("t", ("agent", "no attack"), ((name, value), ("another-name-of-25-letters", ""))), width)
    assert all(len(line) <= width for line in lines)
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert " ".join(" ".join(second for _, second in cells).split()) == value
    assert all(word in value.split() for _, second in cells for word in second.split())
    assert cells[0][0] == name if width > 36 else cells[0][0].startswith("a-run-of-20")


def test_budgets_that_do_not_fit_beside_each_other_stand_below_each_other() -> None:
    table = Table("t", ("agent", *(f"{level}/255" for level in range(10, 20))), (("mine", *["20.9 ± 0.1"] * 10),))
    assert len([line for line in printed(table, 160) if "20.9" in line]) == 1
    for width in (80, 20):
        rows = [line for line in printed(table, width) if "20.9" in line]
        assert len(rows) == 10
        assert all(len(line) <= max(width, 23) for line in rows)


def test_a_table_that_fits_neither_way_stands_in_parts_in_which_no_number_is_broken() -> None:
    budgets = [f"{level}/255" for level in (1, 3, 5, 10, 15, 20, 25)]
    names = [f"PGD-50 x5 of kind {kind}" for kind in range(9)]
    rows = tuple((name, *[f"{number + 10} ± 0.12 [9.25, 21]" for number in range(7)]) for name in names)
    totals = (("worst within", *["9 ± 0.12"] * 7), ("start (vanilla)", *["8 ± 0.12"] * 7))
    lines = printed(Table("t", ("attack", *budgets), rows, (), totals), 80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    parts = text.count("attack")
    assert parts > 1
    assert all(text.count(f" {name} ") == parts for name in (*names, "worst within", "start (vanilla)"))
    assert all(text.count(f" {budget} ") == 1 for budget in budgets)
    assert text.count("[9.25, 21]") == 63
    assert len(re.findall(r"\b\d+ ± 0.12", text)) == 63 + 14


def test_only_the_row_to_quote_is_bold() -> None:
    totals = (("worst at exactly", "9"), ("worst within", "8"))
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    print_table(Table("t", ("attack", "0.1"), (("Noise", "9"),), (), totals, bold="worst within"), console)
    bold = {line for line in console.file.getvalue().splitlines() if "\x1b[1m" in line}
    assert [name for name in ("Noise", *dict(totals)) if any(name in line for line in bold)] == ["worst within"]


def test_a_turned_table_says_whose_a_column_is() -> None:
    rows = []
    for agent in ("first", "second"):
        rows += [(agent, *["20 ± 0.35 [19.25, 20.75]"] * 7), ("  at exactly this budget", *["19 ± 0.35"] * 7)]
    table = Table("t", ("agent", *(f"{level}/255" for level in range(10, 17))), tuple(rows))
    header = [map(str.strip, line.strip("┃").split("┃")) for line in printed(table, 80) if line.startswith("┃")]
    head = [" ".join(filter(None, words)) for words in zip(*header, strict=True)]
    assert head == ["agent", "first", "first: at exactly this budget", "second", "second: at exactly this budget"]
    beside = [line for line in printed(table, 240) if "exactly" in line]
    assert len(beside) == 2
    assert not any("first" in line or "second" in line for line in beside)


@pytest.mark.parametrize("agents", [2, 5])
def test_names_of_agents_are_whole_in_80_columns(agents: int) -> None:
    names = [f"acrobot-paced-radial-s{seed}" for seed in range(agents)]
    rows = tuple((name, *["0.50 [0.32, 0.68]"] * 6) for name in names)
    lines = printed(Table("t", ("agent", *map(str, range(6))), rows), 80)
    assert max(map(len, lines)) <= 80
    assert all(any(f" {name} " in line for line in lines) for name in names)


def test_the_table_of_a_run_with_its_start_fits_80_columns() -> None:
    scores = [
        Score(attack, eps, (19.5, 21.0, 20.123), (1,) * 3, 0.1, eps, 0.0, 0, "fixed")
        for attack, eps in ((None, 0.0), *((PGD(steps=10, step=0.2), level / 255) for level in (1, 3, 5)))
    ]
    table = Evaluation(resolve("pong").game, scores, began_from=[Start("vanilla", "p", scores)]).table()
    lines = printed(table, 80)
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("│")]) == 2 + 3  # none is broken
