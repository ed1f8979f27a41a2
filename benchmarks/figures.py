"""Draw the figures of docs/results.md from the records that are published here.

    python benchmarks/figures.py

A record is a run's folder without its weights; `bcl report` reads it too.
"""

from pathlib import Path

from bcl.reports import figures
from bcl.reports.collect import collect

ROOT = Path(__file__).parents[1]
RECORDS = {"pong": "pong-bcl-mos-at", "pong-further": "pong-further"}  # figures by the record they show
IMAGES = ROOT / "docs" / "images"
WIDTH = 860  # pixels


def main() -> None:
    """The curriculum on Pong: time against budget, and what each phase learned."""
    for figure, record in RECORDS.items():
        history = collect(ROOT / "benchmarks" / "results" / record).timeline
        assert history, f"{record} is the record of a curriculum"
        for name, draw in {"timeline": figures.timeline, "curves": figures.learning_curves}.items():
            file = IMAGES / f"{figure}-{name}.png"
            draw(history, WIDTH).savefig(file, dpi=200)
            print(file)


if __name__ == "__main__":
    main()
