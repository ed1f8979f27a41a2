"""The console of each command: what it prints of what a function of the Python API returned. `call` is that function
with the arguments that were given; the options are its parameters and those here. Nothing heavy is imported at the
top."""

import contextlib
import inspect
import json as to_json
import os
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bcl
from bcl.api import Where, console
from bcl.errors import StoreError, counted
from bcl.runs import store
from bcl.runs.directory import Repeats, RunDirectory
from bcl.settings import format_eps

if TYPE_CHECKING:
    from bcl.api.evaluating import Certification
    from bcl.api.showing import Report, RunStatus, Video
    from bcl.api.training import Run
    from bcl.evaluation import Evaluation
    from bcl.policies import Policy
    from bcl.reports.compare import Comparison
    from bcl.result import Listing

Call = partial[Any]
NEXT = {"finished": "report", "stopped": "resume", "at work": "status"}  # by the state of a run


@contextlib.contextmanager
def watched(call: Call, quiet: bool) -> Iterator[dict[str, Any]]:
    """What a function is given so that the terminal shows its work: lines, Ctrl-C that keeps checkpoints, a bar."""
    parameters = inspect.signature(call.func).parameters
    # Of bench, the lines are the result.
    lines = {"say": partial(print, flush=True) if call.func is bcl.bench else console.say, "as_command": True}
    given = {name: value for name, value in lines.items() if name in parameters}
    if "listener" not in parameters:
        yield given
        return
    try:
        with console.progress(quiet) as bar:
            yield given | {"listener": bar}
    except KeyboardInterrupt:
        if call.func is bcl.video:
            raise
        raise KeyboardInterrupt("what is finished is kept, the same command goes on from there") from None


def _print(found: object, indent: int = 0) -> None:
    print(console.folded(str(found), console.out, indent))


def _print_next(*words: str | Path) -> None:
    """The command to go on with, as a shell takes it."""
    print(f"next: {shlex.join(['bcl', *map(str, words)])}")


def train(found: "Run", call: Call) -> None:
    _print(found)
    _print_next("report", found.folder)


resume = train


def status(found: "RunStatus", call: Call) -> None:
    _print(found, indent=6)
    _print_next(NEXT[found.state], call.args[0])


def attack(found: "Evaluation", call: Call, *, json: bool = False) -> None:
    """
    Args:
        json: Print JSON instead of a table.
    """
    from rich.text import Text

    from bcl.reports import tables
    from bcl.reports.style import TERMINAL_FLAG

    if json:
        print(to_json.dumps(found.to_dict()))
        return
    for one in found.evaluations:
        tables.print_table(one.table(), console.out)
        if one.breaking:
            console.out.print(str(one.breaking), highlight=False)
        for flag in one.flags:
            name = Text(f"flag {flag.name}", style=TERMINAL_FLAG)
            console.out.print(name.append(f": {flag.message} (docs/flags.md)", style="not bold default"))
    print(f"results: {found.folder}")
    if call.keywords.get("suite") not in ("strong", "learned"):
        eps = call.keywords.get("eps")
        same = _given(call, "episodes", "seed", "env_set", "protocol", "starts", "precision", "num_envs")
        _print_next("attack", call.args[0], "--suite", "strong", *(["--eps", *eps] if eps else []), *same)


def _given(call: Call, *names: str) -> list[str]:
    """Options that decide what is played, as they were given."""
    given = [(name.replace("_", "-"), str(call.keywords[name])) for name in names if name in call.keywords]
    return [word for name, value in given for word in (f"--{name}", value)]


def certify(found: "Certification", call: Call, *, json: bool = False) -> None:
    """
    Args:
        json: Print JSON instead of a table.
    """
    from bcl.reports.tables import print_table

    if json:
        print(to_json.dumps(found.to_dict()))
        return
    print_table(found.table(), console.out)
    print(f"results: {found.folder}")
    if found.method == "crown":
        _print_next("report", call.args[0])
    else:
        budgets = [format_eps(proof.eps) for proof in found.certificates]
        same = _given(call, "episodes", "seed", "env_set")
        _print_next("certify", call.args[0], "--eps", *budgets, "--method", "crown", *same)


def report(found: "Report", call: Call) -> None:
    from bcl.reports.collect import agent_file

    _print(found)
    about = found.collected
    agent = Path(about.agent)
    if about.state in ("stopped", "at work"):
        _print_next(NEXT[about.state], about.source)
    elif agent_file(agent):
        _print_next("video" if about.evaluations else "attack", agent)
    elif store.exists(last := RunDirectory(agent).stages()[-1].policy):  # the best one was copied from it
        _print_next("attack", last)
    else:
        print(f"next: copy the run again with all its files, '{agent}' has no best policy")


def compare(
    found: "Comparison",
    call: Call,
    *,
    format: Literal["table", "markdown", "latex", "json"] = "table",
    figure: Where | None = None,
) -> None:
    """
    Args:
        format: What is printed.
        figure: Also draw it: a png, svg or pdf file.
    """
    from bcl.reports import figures, tables

    file = Path(figure) if figure else None
    if file:  # before a reader of the tables closes the pipe
        store.write_bytes(file, figures.encoded(figures.comparison(found), figures.figure_format(file)))
    if format == "json":
        print(to_json.dumps(found.to_dict()))
        return
    if format != "table":
        written = tables.as_latex if format == "latex" else tables.as_markdown
        print("\n\n".join(map(written, tables.tables(found))))
        return
    for table in tables.tables(found):
        tables.print_table(table, console.out)
    if file:
        print(f"figure: {file}")
    last = ["--format", "latex"] if file else ["--figure", "compare.png"]
    _print_next(*(_missing(found) or ["compare", *call.args, *last]))


def _missing(found: "Comparison") -> list[str]:
    """The command that plays attacks which others faced; empty: none are missing."""
    for block in found.blocks:
        if missing := block.missing:
            entry = next(entry for entry in found.entries if entry.label == missing.row)
            agent = Repeats(entry.path).run(missing.member).path if len(entry.members) > 1 else entry.path
            words = ["attack", str(agent), *missing.options]
            words += ["--eps", *map(format_eps, missing.eps)] if missing.eps else []
            words += ["--episodes", str(block.episodes)]
            words += ["--env-set", block.levels] if block.levels else []
            words += ["--starts", block.starts] if block.starts != "game" else []
            words += ["--protocol", block.protocol] if block.protocol != "fixed" else []
            return words
    return []


def video(found: "Video", call: Call) -> None:
    print(found)
    given = call.keywords
    words = ["--attack", given.get("attack", "pgd"), "--eps", format_eps(found.eps)] if found.eps else []
    words += ["--env-set", given["env_set"]] if "env_set" in given else []
    _print_next("attack", call.args[0], *words)


def zoo(found: "Listing", call: Call) -> None:
    print(found)
    if not call.args:
        print("\nnext: bcl attack zoo:cartpole-at")


def presets(found: "Listing", call: Call) -> None:
    print(found)
    if not call.args:
        print("\nnext: bcl presets pong --recipe bcl-mos-at")


def import_(found: "Policy", call: Call, *, out: Path) -> None:
    """
    Args:
        out: The file to write; must not exist.
    """
    if os.path.lexists(out):
        raise StoreError(f"'{out}' exists already", "give another --out")
    bcl.save(found, out)
    parameters = counted(sum(p.numel() for p in found.parameters()), "parameter")
    actions = counted(found.spec.num_actions, "action")
    print(f"{out}: {found.spec.kind} for {found.spec.algo}, {parameters}, {actions}, {call.args[2]}")
    if statistics := call.keywords.get("normalise"):
        print(
            f"observations are normalised by {statistics} in the first layer; "
            "they are not clipped (VecNormalize's clip_obs)"
        )
    elif call.args[1] == "sb3" and found.spec.algo == "dqn":
        print("its zip does not tell whether it was trained behind VecNormalize; if it was, import it with --normalise")
    _print_next("attack", out)


def bench(found: "Listing", call: Call) -> None:
    """Its lines were printed as they were measured."""
