"""The entry point `bcl`: finds the command, runs it, and turns errors into one sentence and an exit code. Nothing heavy
is imported here."""

import codecs
import inspect
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import bcl
from bcl.errors import BclError, ConfigError, did_you_mean
from bcl.processes import INTERRUPTED, end_all, is_importing, show_warning

# Command -> the function of `bcl` that it calls.
COMMANDS = {
    "train": "train",
    "resume": "resume",
    "status": "status",
    "attack": "evaluate",
    "certify": "certify",
    "report": "report",
    "compare": "compare",
    "video": "video",
    "zoo": "zoo_agents",
    "presets": "presets",
    "import": "import_policy",
    "bench": "bench",
}
USER_MISTAKE = 2
SHELLS = ("bash", "zsh", "fish")
AGAIN = "give the same command again"


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line and exit: 0 done, 1 the GPU failed, 2 a user's mistake, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="bcl-plain")  # a terminal without Unicode gets plain letters
    try:
        if arguments is None:  # the process is ours
            _on_interrupt(_stop)
        if (here := _working_directory()) not in sys.path:  # user-defined games and attacks are there
            sys.path.append(here)
        command = chosen(words)
        with _plain_warnings(), command.watched as more:
            found = command.call(**more)
        command.show(found)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BclError as error:
        if debug:
            raise
        notes = getattr(error, "__notes__", ())
        print(_folded(f"bcl: {error}"), *notes, sep="\n", file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt as stop:
        if arguments is None:  # the process ends: one more Ctrl-C would show a traceback of Python's own end
            try:
                _on_interrupt(signal.SIG_IGN)
            except KeyboardInterrupt:  # it came just before; no call stands between it and this clause
                _on_interrupt(signal.SIG_IGN)
        print(_folded("; ".join(map(str, ("bcl: interrupted", *(_said(stop) or [AGAIN]))))), file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, closed it
        _silence_stdout()
    except OSError as error:
        if debug:
            raise
        _silence_stdout()
        where = f" ({error.filename})" if error.filename else ""
        print(_folded(f"bcl: {error.strerror or error}{where}; check paths and space"), file=sys.stderr)
        sys.exit(USER_MISTAKE)
    except RuntimeError as error:  # PyTorch's, which is not imported here; other processes on the GPU can be the cause
        what = str(error).partition("\n")[0]
        if debug or not what.startswith("CUDA error"):
            raise
        print(_folded(f"bcl: the GPU failed ({what}); give the command again, what was done is kept"), file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def _folded(line: str) -> str:
    from bcl.api import console

    return console.folded(line, console.err)


def _on_interrupt(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """What Ctrl-C does; where it is ignored, as by a script's background jobs, it stays so. SIGTERM keeps its default,
    which ends native code that hangs too."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    if is_importing(frame):
        end_all(f"bcl: interrupted; {AGAIN}\n")
    raise KeyboardInterrupt


def _said(stop: BaseException | None) -> tuple[Any, ...]:
    """What an interrupt says, or the one that was on its way when it came."""
    while stop and not (isinstance(stop, KeyboardInterrupt) and stop.args):
        stop = stop.__context__
    return stop.args if stop else ()


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return "".join({"±": "+-", "\N{MINUS SIGN}": "-"}.get(letter, "?") for letter in letters), error.end


codecs.register_error("bcl-plain", _in_ascii)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Here and in the processes that work for this one."""
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        yield


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the folder that this terminal is in was deleted", "change to another with 'cd'") from None


def _silence_stdout() -> None:
    """Drop what is still buffered; else Python prints an error at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True)
class Command:
    """What a command line asks for."""

    call: Callable[..., Any]
    """Does the work."""
    show: Callable[[Any], object] = print
    """Prints what the call returned."""
    watched: AbstractContextManager[Mapping[str, Any]] = field(default_factory=lambda: nullcontext({}))
    """Shows the work; gives what the call needs for that."""


def chosen(words: list[str]) -> Command:
    """What a command line asks for, checked."""
    name, *rest = words or ["--help"]
    if name in ("-h", "--help", "help"):
        return Command(_help)
    if name == "--version":
        return Command(lambda: f"bcl {bcl.__version__}")
    if name == "--completion":
        from bcl.cli import options

        if len(rest) != 1 or rest[0] not in SHELLS:
            raise ConfigError(f"no completion for '{' '.join(rest)}'", f"one of {', '.join(SHELLS)}")
        return Command(partial(options.completion, {name: functions_of(name) for name in COMMANDS}, rest[0]))
    if name not in COMMANDS:
        raise ConfigError(f"unknown command '{name}'", did_you_mean(name, COMMANDS, "see 'bcl --help'"))
    return _command(name, rest)


def functions_of(name: str) -> list[Callable[..., Any]]:
    """Those whose parameters are a command's options: the API's, `Workers`, the console's, which prints its result."""
    from bcl.cli import commands

    own = getattr(commands, "import_" if name == "import" else name)
    verb = getattr(bcl, COMMANDS[name])
    return [verb, bcl.Workers, own] if "workers" in inspect.signature(verb).parameters else [verb, own]


def _command(name: str, words: list[str]) -> Command:
    from bcl.cli import commands, options
    from bcl.settings import parse_settings

    verb, *more = functions_of(name)
    (given, *of_workers, of_console), rest = options.parse(name, [verb, *more], words)
    signature = inspect.signature(verb)
    if "settings" in signature.parameters:
        given["settings"] = parse_settings(rest)
    if of_workers:
        given["workers"] = bcl.Workers(**of_workers[0])
    bound = signature.bind_partial()
    bound.arguments.update(given)
    call = partial(verb, *bound.args, **bound.kwargs)
    show = partial(more[-1], call=call, **of_console)
    return Command(call, show, commands.watched(call, quiet=of_console.get("json", False)))


def _help() -> str:
    from bcl.cli import options

    commands = "\n".join(options.summary(name, functions_of(name)) for name in COMMANDS)
    return f"""bcl {bcl.__version__}: deep-RL agents that keep playing well when an adversary tampers with what they see

commands:
{commands}

  bcl COMMAND --help    options of a command
  --completion SHELL    a script that completes commands and options, for bash, zsh or fish
  --debug               show the traceback of an error

start with: bcl presets"""
