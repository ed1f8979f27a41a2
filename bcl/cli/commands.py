"""The commands: what the console prints of what a function of the Python API returns. `call` is that function with the
arguments that were given; the options are its parameters and those here. Nothing heavy is imported at the top."""

import json as to_json
import os
import shlex
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bcl
from bcl.api import Where, console
from bcl.errors import ConfigError, StoreError, counted
from bcl.recipes import Settings
from bcl.runs.directory import Repeats, RunDirectory
from bcl.settings import format_eps

if TYPE_CHECKING:
    from bcl.reports.compare import Comparison

Call = partial[Any]
NONE: Settings = {}
NEXT = {"finished": "report", "stopped": "resume", "at work": "status"}  # by the state of a run


def _print_next(*words: str | Path) -> None:
    """The command to go on with, as a shell takes it."""
    print(f"next: {shlex.join(['bcl', *map(str, words)])}")


def train(call: Call) -> None:
    found = call(say=console.say, as_command=True)
    print(found)
    _print_next("report", found.folder)


resume = train


def status(call: Call) -> None:
    found = call()
    wrapper = textwrap.TextWrapper(
        max(40, console.out.width), subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False
    )
    for line in str(found).splitlines():
        print(wrapper.fill(line))
    _print_next(NEXT[found.state], call.args[0])


def attack(call: Call, *, json: bool = False) -> None:
    """
    Args:
        json: Print JSON instead of a table.
    """
    from rich.text import Text

    from bcl.reports import tables
    from bcl.reports.style import TERMINAL_FLAG

    found = _played(call, json)
    if json:
        return
    tables.print_table(found.table(), console.out)
    if found.breaking:
        console.out.print(str(found.breaking), highlight=False)
    for flag in found.flags:
        name = Text(f"flag {flag.name}", style=TERMINAL_FLAG)
        console.out.print(name.append(f": {flag.message} (docs/flags.md)", style="not bold default"))
    print(f"results: {found.folder}")
    if call.keywords.get("suite") not in ("strong", "learned"):
        eps = call.keywords.get("eps")
        _print_next("attack", call.args[0], "--suite", "strong", *(["--eps", *eps] if eps else []))


def certify(call: Call, *, json: bool = False) -> None:
    """
    Args:
        json: Print JSON instead of a table.
    """
    from bcl.reports.tables import print_table

    found = _played(call, json)
    if json:
        return
    print_table(found.table(), console.out)
    print(f"results: {found.folder}")
    if found.method == "crown":
        _print_next("report", call.args[0])
    else:
        budgets = [format_eps(proof.eps) for proof in found.certificates]
        _print_next("certify", call.args[0], "--eps", *budgets, "--method", "crown")


def _played(call: Call, json: bool) -> Any:
    """The result of an evaluation, printed as JSON on request."""
    try:
        with console.progress(quiet=json) as bar:
            found = call(listener=bar)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is finished is kept, the same command goes on from there") from None
    if json:
        print(to_json.dumps(found.to_dict()))
    return found


def report(call: Call) -> None:
    from bcl.reports.collect import agent_file

    made = call(say=console.say)
    print(made)
    found = made.collected
    agent = Path(found.agent)
    if found.state in ("stopped", "at work"):
        _print_next(NEXT[found.state], found.source)
    elif agent_file(agent):
        _print_next("video" if found.evaluations else "attack", agent)
    elif (last := RunDirectory(agent).stages()[-1].policy).exists():  # the best one was copied from it
        _print_next("attack", last)
    else:
        print(f"next: copy the run again with all its files, '{agent}' has no best policy")


def compare(
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
    from bcl.runs import store

    file = Path(figure) if figure else None
    ending = figures.figure_format(file) if file else ""  # before the work
    found = call()
    if file:  # before a reader of the tables closes the pipe
        store.write_bytes(file, figures.encoded(figures.comparison(found), ending))
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


def video(call: Call) -> None:
    with console.progress() as bar:
        made = call(listener=bar)
    print(made)
    given = call.keywords
    words = ["--attack", given.get("attack", "pgd"), "--eps", format_eps(made.eps)] if made.eps else []
    words += ["--env-set", given["env_set"]] if "env_set" in given else []
    _print_next("attack", call.args[0], *words)


def zoo(call: Call) -> None:
    found = call()
    print(found)
    if not call.args:
        first = f"zoo:{found.rows[0]['name']}"
        print()
        _print_next("attack", first, "--eps", "10/255", "--episodes", "1")


def presets(call: Call) -> None:
    print(call())
    if not call.args:
        print("\nnext: bcl presets pong --recipe bcl-mos-at")


def import_(call: Call, *, out: Path, settings: Settings = NONE) -> None:
    """
    Args:
        out: The file to write; must not exist.
    """
    from bcl.config import resolve

    if os.path.lexists(out):
        raise StoreError(f"'{out}' exists already", "give another --out")
    file, format, game = call.args
    for name, value in settings.items():
        if name != "game":
            name += f".{next(iter(value))}" if isinstance(value, dict) else ""
            hint = "leave it out: only settings of the game count here (--game.KEY VALUE)"
            raise ConfigError(f"{name} changes nothing in an import", hint)
    config = resolve(game, settings=settings)  # before PyTorch is imported
    policy = call.func(file, format, config.game, **call.keywords)
    bcl.save(policy, out)
    parameters = counted(sum(p.numel() for p in policy.parameters()), "parameter")
    actions = counted(policy.spec.num_actions, "action")
    print(f"{out}: {policy.spec.kind} for {policy.spec.algo}, {parameters}, {actions}, {game}")
    if statistics := call.keywords.get("normalise"):
        print(
            f"observations are normalised by {statistics} in the first layer; "
            "they are not clipped (VecNormalize's clip_obs)"
        )
    _print_next("attack", out)


def bench(call: Call) -> None:
    call(say=partial(print, flush=True))
