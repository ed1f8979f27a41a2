"""Add scores, certificates and searches for a breaking budget that were made later to an agent of the zoo (docs/zoo.md).

    bcl attack zoo:NAME --suite paper --starts varied
    python benchmarks/add_results.py NAME [--results runs/zoo-NAME.results]

Rows that the agent has already are left out, and its returns in `agent.toml` are read anew.
"""

import argparse
import sys
from pathlib import Path

from publish import tables_of_returns

from bcl import zoo
from bcl.errors import BclError, StoreError, counted
from bcl.runs import store
from bcl.runs.results import Results, RowsFolder


def add_rows(source: RowsFolder, target: RowsFolder, agent: str) -> int:
    """Rows of an agent that `target` lacks; how many there were."""
    known = [row for _, row in target.read(agent)]
    new = [row for _, row in source.read(agent) if row not in known]
    for row in new:
        target.append(row)
    return len(new)


def add_results(name: str, folder: Path | None) -> str:
    """What was added to the agent of this name."""
    agent = zoo.named(name)
    made = Results(folder) if folder else agent.new_results
    scores = add_rows(made.scores, agent.results.scores, agent.judged)
    certificates = add_rows(made.certificates, agent.results.certificates, agent.judged)
    searches = add_rows(made.searches, agent.results.searches, agent.judged)
    if not scores + certificates + searches:
        raise StoreError(f"'{made.path}' has nothing new of zoo:{name}", f"play it with 'bcl attack zoo:{name}'")
    about = agent.folder / zoo.ABOUT
    facts, _, _ = about.read_text().partition("\n[returns]")
    lines = tables_of_returns(agent.results, agent.judged, agent.suite)
    store.write_text(about, "\n".join([facts.rstrip("\n"), *lines, ""]))
    found = ((scores, "score"), (certificates, "certificate"), (searches, "search", "searches"))
    return f"zoo:{name}: {', '.join(counted(*one) for one in found)} more"


def main() -> None:
    """Add them, or say why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="what follows zoo:")
    parser.add_argument("--results", type=Path, help="by default runs/zoo-NAME.results, where bcl attack puts them")
    options = parser.parse_args()
    try:
        print(add_results(options.name, options.results))
    except BclError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
