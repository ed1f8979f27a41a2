"""The entry point `bcl`: finds the command, runs it, and turns errors into one sentence and an exit code.

Nothing heavy is imported here: `bcl --help` should answer at once.
"""

import codecs
import contextlib
import importlib
import io
import itertools
import os
import re
import signal
import sys
import typing
from typing import Any, NoReturn

import bcl
from bcl.errors import BclError, ConfigError, did_you_mean

# Command -> what it does; its code is bcl.cli.NAME_command.
COMMANDS = {
    "train": "train an agent: bcl train GAME [--recipe R] [--out DIR] [--section.key value]",
    "resume": "continue a run after a kill or Ctrl-C: bcl resume RUN",
    "status": "tell where a run stands, also while it is at work: bcl status RUN",
    "attack": "judge an agent under attack: bcl attack RUN|FILE [--suite quick|paper|strong] [--eps 1/255 3/255]",
    "certify": "prove what no attack can change: bcl certify RUN|FILE [--eps 1/255] [--method ibp|crown]",
    "report": "write one page about a run that opens anywhere: bcl report RUN|FILE [--out FILE]",
    "compare": "set agents side by side, with intervals: bcl compare RUN|FILE... [--format latex] [--figure FILE]",
    "video": "show an agent under attack: bcl video RUN|FILE [--attack pgd] [--eps 3/255]",
    "zoo": "list the published agents, which stand for FILE as zoo:NAME: bcl zoo [NAME]",
    "presets": "list games and recipes, or print one game's whole configuration",
    "import": "convert a published checkpoint: bcl import FILE --format F --game G --out policy.safetensors",
    "bench": "measure this machine: bcl bench env|attack [GAME...]",
}
USER_MISTAKE, INTERRUPTED = 2, 130


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line and exit: 0 done, 2 a user's mistake, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if os.getcwd() not in sys.path:  # games and attacks of people's own lie there; `python -m bcl` looks there anyway
        sys.path.append(os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="bcl-plain")  # a terminal without Unicode is no reason to fail
    try:
        _dispatch(words)
    except BclError as error:
        if debug:
            raise
        _complain("\n".join([f"bcl: {error}", *getattr(error, "__notes__", ())]))
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt as stop:
        if arguments is None:  # the process ends: one more Ctrl-C would show a traceback of Python's own end
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _complain("; ".join(["bcl: interrupted", *map(str, stop.args)]))
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has what it wanted
        _silence_stdout()
    except OSError as error:
        if debug:
            raise
        _silence_stdout()
        _complain(
            f"bcl: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}; check paths and space"
        )
        sys.exit(USER_MISTAKE)
    sys.exit(0)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return "".join({"±": "+-", "\N{MINUS SIGN}": "-"}.get(letter, "?") for letter in letters), error.end


codecs.register_error("bcl-plain", _in_ascii)


def _silence_stdout() -> None:
    """What is still buffered has nowhere to go, and Python would complain about it at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
    elif words[0] == "--version":
        print(f"bcl {bcl.__version__}")
    elif words[0] == "--completion":
        _print_completion(words[1:])
    elif words[0] not in COMMANDS:
        raise ConfigError(f"unknown command '{words[0]}'", did_you_mean(words[0], COMMANDS, "see 'bcl --help'"))
    else:
        _run(words[0], words[1:])
    if sys.stdout is not None:
        sys.stdout.flush()


def _print_completion(words: list[str]) -> None:
    from bcl.cli import options

    if len(words) != 1 or words[0] not in options.SHELLS:
        raise ConfigError(f"no completion for '{' '.join(words)}'", f"one of {', '.join(options.SHELLS)}")
    options.print_completion(COMMANDS, words[0])


def _run(name: str, words: list[str]) -> None:
    command, settings = parse(name, words)
    command.run(settings)


def parse(name: str, words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words after its name describe, and those that are settings."""
    from bcl.cli import options

    module = importlib.import_module(f"bcl.cli.{name}_command")
    help_wanted = "-h" in words or "--help" in words
    complaint = io.StringIO()
    try:
        with contextlib.nullcontext() if help_wanted else contextlib.redirect_stderr(complaint):
            command, rest = options.parse(module.Command, name, words)
    except SystemExit as exit:
        if help_wanted or not exit.code:
            print(getattr(module, "more_help", str)(), end="")
            raise
        what, hint = _plain(_one_sentence(complaint.getvalue()), words, module.Command)
        raise ConfigError(what, hint or f"see 'bcl {name} --help'") from None
    if rest and not module.Command.takes_settings:
        raise ConfigError(f"unknown argument '{rest[0]}'", f"see 'bcl {name} --help'")
    return command, rest


def _plain(complaint: str, words: list[str], command: type) -> tuple[str, str]:
    """What is wrong in words of people, and a hint or none, from tyro's complaint."""
    if missing := re.match(r"Missing from \S+ \S+: (\S+)", complaint):
        return f"{missing[1]} is missing", ""
    if valueless := re.match(r"Missing value for argument '(\S+)'", complaint):
        return f"{valueless[1]} has no value", ""
    if choice := re.match(r"invalid choice '(.*)' for argument '(\S+)'\. Expected one of \((.*)\)", complaint):
        known = re.findall(r"'([^']+)'", choice[3])
        return f"{choice[2]} '{choice[1]}' is not a choice", did_you_mean(
            choice[1], known, f"one of {', '.join(known)}"
        )
    if parsed := re.match(r"Error parsing (--[\w-]+):", complaint):
        hint = str(typing.get_type_hints(command)[parsed[1][2:].replace("-", "_")])
        value = next((word for flag, word in itertools.pairwise(words) if flag == parsed[1]), "")
        value = value or next((w.partition("=")[2] for w in words if w.startswith(f"{parsed[1]}=")), "")
        return f"{parsed[1]} '{value}' is not {'a whole number' if 'int' in hint else 'a number'}", ""
    return complaint, ""


def _one_sentence(box: str) -> str:
    """tyro draws its complaint in a box with a title; the words inside up to the first rule are the complaint."""
    lines = [re.sub(r"^-+$", "", line.strip(" │╭╮╰╯─\n")) for line in box.splitlines()[1:]]  # -: without Unicode
    wanted = itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines))
    return " ".join(wanted).rstrip(".") or "these arguments do not fit"


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{what}" for name, what in COMMANDS.items())
    return f"""bcl {bcl.__version__}: deep-RL agents that keep playing well when an adversary tampers with what they see

commands:
{commands}

  bcl COMMAND --help    options of a command
  --completion SHELL    a script that completes commands and options, for bash, zsh or fish
  --debug               show the traceback of an error

start with: bcl presets"""


def _complain(text: str) -> None:
    print(text, file=sys.stderr)
