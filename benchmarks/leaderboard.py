"""Write docs/leaderboard.md: every agent by game and budget, from stored scores and the paper's tables. Plays nothing.

    python benchmarks/leaderboard.py [--out docs/leaderboard.md]

Our agents are those of the zoo, by `bcl compare`; weights that the paper's authors released are rows of
benchmarks/results/released.json, or scores in benchmarks/results/evals; the rest are the paper's own rows. All are the worst within each budget: the
lowest mean return of the budgets up to it that the table has, and without attack.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from released import AGENTS

import bcl
from bcl import zoo
from bcl.attacks import attack_label
from bcl.reports.compare import Block
from bcl.reports.published import results
from bcl.settings import format_eps

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "leaderboard.md"
RESULTS = ROOT / "benchmarks" / "results"
TITLES = {
    "pong": "Pong",
    "freeway": "Freeway",
    "bank_heist": "BankHeist",
    "road_runner": "RoadRunner",
    "fruitbot": "FruitBot",
    "jumper": "Jumper",
}
LEVELS = {"": "", "train": ", training levels", "eval": ", unlimited levels"}
IMPORTED = {"00ee36ae16ecdcb8": "FruitBot_BCL_MOS_V_AT_PPO.pt"}  # released weights by the fingerprint in their scores
HEAD = """# Leaderboard

Every agent of the paper's six games by the worst within each budget: the lowest mean return at the budgets up to it that its row has,
and without attack. `zoo:NAME` is an agent of ours, from the scores it was published with ([the zoo](zoo.md)); *released* are weights of the
paper's authors, evaluated by us (only what was played so far); *paper* are the rows of its main tables, the median of three runs. Rows are
ordered by the mean over the columns; those that lack a column come last. *Varied starts*: on episodes that begin with [random
actions](attacks.md#starts-that-differ).

`python benchmarks/leaderboard.py` writes this page from stored scores; a test compares the two. Nothing is played for it.
"""


@dataclass(frozen=True)
class Row:
    """One agent: what it has within each budget."""

    agent: str
    source: str
    returns: dict[float, float]

    def within(self, budgets: Iterable[float]) -> list[float | None]:
        """The lowest return up to each budget; none where it was not evaluated."""
        known = dict(sorted(self.returns.items()))
        lowest = dict(zip(known, accumulate(known.values(), min), strict=True))
        return [lowest.get(eps) for eps in budgets]


def by_order(row: Row, budgets: Iterable[float]) -> tuple[bool, float]:
    """Whole rows first, the best of them in front."""
    cells = row.within(budgets)
    known = [cell for cell in cells if cell is not None]
    return None in cells, -sum(known) / len(known)


def of_the_zoo(game: str) -> dict[str, tuple[list[Row], list[str]]]:
    """By levels, our agents and what `bcl compare` says of their attacks; those with varied starts once more."""
    agents = [agent for agent in map(zoo.named, zoo.names()) if agent.game == game]
    blocks = list[Block]()
    for starts in ("game", "varied"):  # an agent need not have both
        played = [agent for agent in agents if any(play.on.starts == starts for play in agent.plays)]
        if played:
            compared = bcl.compare(*(f"{zoo.PREFIX}{agent.folder.name}" for agent in played))
            blocks += [block for block in compared.blocks if block.starts == starts]
    found: dict[str, tuple[list[Row], list[str]]] = {}
    for block in blocks:
        rows, said = found.setdefault(block.levels, ([], []))
        varied = ", varied starts" if block.starts == "varied" else ""
        for row in block.rows:
            exactly = {eps: cell.exactly.mean for eps, cell in row.cells.items()}
            rows.append(Row(f"`{row.label}`{varied}", "ours", exactly))
        *others, last = map(attack_label, block.usual_attacks)
        attacks = f"the worst of {', '.join(others)} and {last}" if others else last
        notes = "".join(f"; {note}" for note in block.notes if not note.startswith("the score is"))  # none is shown
        said.append(f"Ours{varied}: {block.episodes} episodes under {attacks}{notes}.")
    return found


def released(game: str, levels: str) -> list[Row]:
    """Weights of the paper's authors, as we evaluated them under PGD-30."""
    rows: dict[str, dict[float, float]] = {}
    for row in json.loads((RESULTS / "released.json").read_text())["rows"]:
        if row["weights"].lower().startswith(game) and (row["levels"] == "unlimited") == (levels == "eval"):
            rows.setdefault(row["weights"], {})[int(row["eps"].removesuffix("/255")) / 255] = row["ours"]
    for score in map(json.loads, (RESULTS / "evals" / "scores-procgen.jsonl").read_text().splitlines()):
        on_all_levels = score["game"]["num_levels"] == 0
        if score["agent"] in IMPORTED and score["game"]["id"] == game and on_all_levels == (levels == "eval"):
            rows.setdefault(IMPORTED[score["agent"]], {})[score["eps"]] = score["mean"]
    return [Row(AGENTS[weights][1], "released", cells) for weights, cells in rows.items()]


def section(game: str) -> Iterator[str]:
    """The tables of one game, one for each set of levels."""
    ours = of_the_zoo(game)
    published = results(game)
    for levels in dict.fromkeys(row.levels for row in published):
        paper = [row for row in published if row.levels == levels]
        budgets = paper[0].eps
        rows, said = ours.get(levels, ([], ["No agent of ours is published on this game yet."]))
        rows = [*rows, *released(game, levels)]
        rows += [Row(row.method, "paper", dict(zip(row.eps, row.mean, strict=True))) for row in paper]
        yield f"\n## {TITLES[game]}{LEVELS[levels]}\n"
        yield "| agent | source | " + " | ".join(format_eps(eps) if eps else "0" for eps in budgets) + " |"
        yield "|---|---" + "|---" * len(budgets) + "|"
        for row in sorted(rows, key=lambda row: by_order(row, budgets)):
            cells = ["not evaluated" if cell is None else f"{round(cell, 2):,.10g}" for cell in row.within(budgets)]
            yield f"| {row.agent} | {row.source} | {' | '.join(cells)} |"
        yield "\n" + " ".join(said)


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([HEAD, *(line for game in TITLES for line in section(game))]) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    options.out.write_text(page())
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
