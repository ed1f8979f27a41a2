"""Draw the figures of docs/pong.md from the records that are published here.

    python benchmarks/figures.py

A record is an archive of a run's folder without its weights; unpacked, `bcl report` reads it too.
"""

import tarfile
import tempfile
from pathlib import Path

from bcl.reports import figures
from bcl.reports.collect import collect

ROOT = Path(__file__).parents[1]
RECORDS = {"pong": "pong-bcl-mos-at", "pong-further": "pong-further"}  # figures by the record they show
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
WIDTH = 860  # pixels


def main() -> None:
    """The curriculum on Pong: time against budget, and what each phase learned."""
    for figure, record in RECORDS.items():
        with tempfile.TemporaryDirectory() as folder, tarfile.open(RESULTS / f"{record}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
            history = collect(Path(folder) / record).timeline
        assert history, f"{record} is the record of a curriculum"
        for name, draw in {"timeline": figures.timeline, "curves": figures.learning_curves}.items():
            file = IMAGES / f"{figure}-{name}.png"
            draw(history, WIDTH).savefig(file, dpi=200)
            print(file)


if __name__ == "__main__":
    main()
