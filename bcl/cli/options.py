"""The options of a command: made from the signatures and docstrings of its functions, with tyro."""

import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bcl import recipes, zoo
from bcl.config import Config, preset_names
from bcl.errors import ConfigError
from bcl.settings import Eps, documented, typed

AGENT = "RUN|FILE|zoo:NAME"
METAVARS = {"agent": AGENT, "run": AGENT, "runs": AGENT, "folder": "RUN", "path": "FILE", "games": "GAME"}
METAVARS |= {"wandb": "PROJECT", "ray_address": "ADDRESS"}
SINGULAR = {"attacks": "attack"}  # parameter -> option
# Parameters that are no options: the console gives them, or they have options of their own.
NO_OPTIONS = {"found", "call", "settings", "workers", "listener", "say", "progress", "on_row", "as_command"}
OFTEN = (
    *("algo", "bootstrap", "tempo", "network.hidden"),
    *("dqn.steps", "ppo.steps", "dqn.learning_rate", "ppo.learning_rate"),
    *("attack.kind", "attack.steps", "curriculum.target", "curriculum.increment", "curriculum.runs"),
    *("evaluation.eps", "evaluation.episodes", "evaluation.suite"),
)
# Words that shells complete, by parameter; of attacks and formats, whose modules import PyTorch.
ATTACKS = (
    *("apgd", "apgd-margin", "corner-noise", "fgsm", "learned", "mad", "multi", "multi-t", "noise", "pgd", "pgd-10"),
    *("ri-fgsm", "square", "worst-action"),
)
WORDS = {
    "suite": ("quick", "paper", "strong", "learned"),
    "attack": ATTACKS,
    "attacks": ATTACKS,
    "format": ("radial-dqn", "radial-dqn-v1", "radial-ppo", "sb3"),
    "device": ("auto", "cpu", "cuda"),
}
# tyro's table for the shell has options alone: settings are added to them, and words in their place as switches of that
# name. After an option for several values it offers those alone: other options are added to them. In fish all this
# stands in double quotes.
COMPLETE_MORE = """\
COMPLETION_SPEC['subcommands']['train']['options'] += {settings}
for command, words in {places}.items():
    options = COMPLETION_SPEC['subcommands'][command]['options']
    flags = [flag for option in options for flag in option['flags']]
    for option in options:
        if option.get('nargs') == '*' and 'choices' in option:
            option['choices'] = [*option['choices'], *flags]
    options += [{{'flags': [word], 'description': word, 'type': 'flag'}} for word in words]"""
# Around tyro's function for bash. Bash splits words at ':' and '=': zoo:NAME is made one word, and what is offered is
# cut like it. The first word after a command is offered no options before it begins like one; beside zoo:NAME
# there are folders. Where nothing is offered (tyro has an empty word there) bash completes file names.
COMPLETE_BASH = """\
_bcl() {
  local word glued= typed=() offered=()
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ $glued || $word == :* ]]; then
      typed[${#typed[@]}-1]+=$word
    elif [[ $word != = ]]; then
      typed+=("$word")
    fi
    [[ $word == *: ]] && glued=1 || glued=
  done
  [[ $word == = ]] && typed+=('')
  local COMP_WORDS=("${typed[@]}") COMP_CWORD=$((${#typed[@]} - 1))
  local current=${typed[COMP_CWORD]}
  _tyro_bcl
  for word in "${COMPREPLY[@]}"; do
    [[ $word && ($current || $COMP_CWORD != 2 || $word != -*) ]] && offered+=("$word")
  done
  [[ ! $current && " ${offered[*]}" == *' zoo:'* ]] && compopt -o plusdirs 2> /dev/null
  [[ $current == *:* && $COMP_WORDBREAKS == *:* ]] && offered=("${offered[@]#"${current%"${current##*:}"}"}")
  COMPREPLY=("${offered[@]}")
}
complete -o default -o bashdefault -F _bcl bcl"""
ZSH_EQUALS = """\
  if [[ ${words[CURRENT]} == --*=* ]]; then
    words[CURRENT]=("${words[CURRENT]%%=*}" "${words[CURRENT]#*=}")
    CURRENT=$((CURRENT + 1))
    compset -P 1 '*='
  fi
  local completions
"""
FISH_FILES = """\
        set -l before (commandline -opc)
        if string match -qr '^[^-]' -- (commandline -ct); and not string match -q -- '--*' $before[-1]
            __fish_complete_path (commandline -ct)
        end
        for line in $results
"""
# In tyro's scripts, what stands there and what is put in its place, so that all shells complete file names where none
# of our words fits.
CHANGED = {
    "bash": {"'type': 'path'": "'type': 'value'"},  # it marks folders in the file names that it completes by itself
    "zsh": {
        '"$CURRENT"': '"$((CURRENT - 1))"',  # it counts words from 1, and tyro from 0
        "  local completions\n": ZSH_EQUALS,
        '"$completions" == "__TYRO_COMPLETE_FILES__"': "-z $completions || $completions == __TYRO_COMPLETE_FILES__",
    },
    "fish": {"        for line in $results\n": FISH_FILES},
}
REQUIRED = inspect.Parameter.empty
CONFIG = (tyro.conf.FlagCreatePairsOff,)
NOTHING: Mapping[str, Sequence[str]] = {}
Function = Callable[..., Any]


@dataclass(frozen=True)
class CommandOption:
    """One parameter of a function, as an option or as a word in its place."""

    parameter: str
    kind: Any
    """bool, int, float, str, Path or a Literal."""
    default: Any
    help: str
    several: bool
    positional: bool

    @property
    def name(self) -> str:
        """As an attribute of the parsed options; a switch that is on by default is turned off."""
        name = SINGULAR.get(self.parameter, self.parameter)
        return f"no_{name}" if self.default is True else name

    @property
    def word(self) -> str:
        """What is to be written for its value."""
        return (METAVARS.get(self.parameter) or _word(self.kind, self.name.upper())) + " ..." * self.several

    @property
    def shown(self) -> str:
        """For messages."""
        return self.word if self.positional else "--" + self.name.replace("_", "-")

    def words(self, known: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        """Those that can be written for its value, of an option for text some of them."""
        if typing.get_origin(self.kind) is Literal:
            return typing.get_args(self.kind)
        return tuple(known.get(self.parameter, ())) if self.kind is str or self.positional else ()

    def field(self, strict: bool, known: Mapping[str, Sequence[str]] = NOTHING) -> tuple[Any, ...]:
        """For tyro, to which all values are text. `strict`: with what is required; `known`: words to complete."""
        kind: Any = bool if self.kind is bool else tuple[str, ...] if self.several else str
        missing = {bool: False, str: "", tuple[str, ...]: ()}[kind]
        about: dict[str, Any] = {"help": self.help, "help_behavior_hint": f"(default: {self.default})"}
        if self.kind is not bool:
            about["metavar"] = self.word
        if self.default is REQUIRED and not self.several:
            about["help_behavior_hint"] = "(required)"
            missing = dataclasses.MISSING if strict else missing
        elif self.kind is bool or self.default in (None, (), "", REQUIRED):
            about["help_behavior_hint"] = ""
        if strict and (words := self.words(known)):  # completion offers them; none is taken from here
            choice: Any = Literal[words]
            kind = tuple[choice, ...] if self.several else choice
            missing = () if self.several else words[0]
        place = (tyro.conf.Positional,) if self.positional else ()
        return self.name, Annotated[(kind, tyro.conf.arg(**about), *place)], dataclasses.field(default=missing)

    def value(self, given: Any) -> Any:
        """The argument, from text."""
        where = self.name.replace("_", "-")
        shown = where.upper() if self.positional else self.shown
        if self.kind is bool:
            return not self.default
        if self.several:
            return [typed(self.kind, text, where, shown) for text in given]
        return typed(self.kind, given, where, shown)


def options_of(function: Function) -> Iterator[CommandOption]:
    """A function's options; a dataclass is a function of its fields."""
    help_of = documented(function)
    for place, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if name not in NO_OPTIONS:
            kinds = [*_members(parameter.annotation)]
            sequence = Sequence in [typing.get_origin(kind) for kind in kinds]
            listed = parameter.kind is parameter.VAR_POSITIONAL
            several = sequence or listed
            positional = listed or (place == 0 and parameter.kind is not parameter.KEYWORD_ONLY)
            yield CommandOption(name, _kind(kinds), parameter.default, help_of.get(name, ""), several, positional)


def take_settings(functions: Sequence[Function]) -> bool:
    """Whether a command takes settings, which are no options."""
    return any("settings" in inspect.signature(function).parameters for function in functions)


def usage(name: str, functions: Sequence[Function]) -> str:
    """A command line with all that is required."""
    options = [option for function in functions for option in options_of(function)]
    words = ["bcl", name]
    for option in options:
        required = option.default is REQUIRED and not option.several
        if option.positional:
            words.append(option.word if required else f"[{option.word}]")
        elif required:
            words.append(f"{option.shown} {option.word}")
    words += ["[options]"] if any(not option.positional for option in options) else []
    section = "game" if name == "import" else "section"  # which refuses the others
    words += [f"[--{section}.key value]"] if take_settings(functions) else []
    return " ".join(words)


def summary(name: str, functions: Sequence[Function]) -> str:
    """How a command is written, and the first sentence of its docstring."""
    sentence = " ".join((inspect.getdoc(functions[0]) or "").split()).split(". ")[0].removesuffix(".")
    about = textwrap.fill(sentence, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {usage(name, functions)}\n{about}"


def parse(name: str, functions: Sequence[Function], words: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The arguments of each function, and those words that are settings."""
    found = [[*options_of(function)] for function in functions]
    help_wanted = "-h" in words or "--help" in words
    see_help = f"see 'bcl {name} --help'"
    if not help_wanted:
        _refuse_unclear(itertools.chain(*found), words, see_help)
    try:
        given, rest = tyro.cli(
            _parsed_as(functions, strict=help_wanted),
            prog=f"bcl {name}",
            description=(inspect.getdoc(functions[0]) or "").split("\n\n")[0],  # what follows is for Python
            args=words,
            return_unknown_args=True,
            config=CONFIG,
        )
    except SystemExit:  # the help was printed
        if name == "train":
            print(settings_help())
        raise
    arguments = [_arguments(options, given, see_help) for options in found]
    if take_settings(functions) and words and words[0] in rest:
        hint = f"write the name first: {usage(name, functions)}"
        raise ConfigError(f"the setting '{words[0]}' stands first", hint)
    for word in rest:
        if not take_settings(functions) or word.removeprefix("--").partition("=")[0] in NO_OPTIONS:
            raise ConfigError(f"unknown argument '{word}'", see_help)
    return arguments, rest


def _parsed_as(functions: Iterable[Function], strict: bool, known: Mapping[str, Sequence[str]] = NOTHING) -> Any:
    fields = [option.field(strict, known) for function in functions for option in options_of(function)]
    return dataclasses.make_dataclass("Words", fields, kw_only=True)


def _arguments(options: Iterable[CommandOption], words: Any, see_help: str) -> dict[str, Any]:
    """What was given; the rest keeps the function's defaults."""
    arguments = {}
    for option in options:
        if given := getattr(words, option.name):
            arguments[option.parameter] = option.value(given)
        elif option.default is REQUIRED and not option.several:
            hint = "write it first, before all options" if option.positional else see_help
            raise ConfigError(f"{option.shown} is missing", hint)
    return arguments


def _refuse_unclear(options: Iterable[CommandOption], words: list[str], see_help: str) -> None:
    """Refuse an option without its value, or a list given twice, of which the parser would drop the first."""
    valued = {option.shown: option for option in options if option.kind is not bool and not option.positional}
    seen = set()
    for word, following in itertools.pairwise([*words, "--"]):
        option, given, value = word.partition("=")
        name = option.replace("_", "-")
        empty = not value if given else not following or following.startswith("--")
        if name in valued and empty:
            raise ConfigError(f"{option} has no value", see_help)
        if name in seen and valued[name].several:
            raise ConfigError(f"{option} is given twice", "give it once, with all its values")
        seen.update({name} & valued.keys())


def completion(commands: dict[str, Sequence[Function]], shell: str) -> str:
    """A script that completes commands, options and words in a shell."""
    agents = [zoo.PREFIX + name for name in zoo.names()]
    games = preset_names()
    known = WORDS | {"recipe": (*recipes.RECIPES,), "game": games, "games": games, "name": zoo.names()}
    known |= dict.fromkeys(("agent", "run", "runs"), agents)
    kinds = [
        Annotated[_parsed_as(functions, strict=True, known=known), tyro.conf.subcommand(name=name)]
        for name, functions in commands.items()
    ]
    words = ["--tyro-print-completion", shell]
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(typing.Union[tuple(kinds)], prog="bcl", args=words, config=CONFIG)  # type: ignore[call-overload] # noqa: UP007
    places = {
        name: [word for f in functions for option in options_of(f) if option.positional for word in option.words(known)]
        for name, functions in commands.items()
    }
    settings = []
    for setting in _used_most():
        about = {"flags": [f"--{setting.name}"], "description": setting.word, "type": "value", "nargs": 1}
        choices = {"type": "choice", "choices": [*typing.get_args(setting.kind)]}
        settings.append(about | choices if typing.get_origin(setting.kind) is Literal else about)
    more = COMPLETE_MORE.format(places=places, settings=settings)
    text = re.sub(r"^COMPLETION_SPEC = .*$", lambda found: f"{found[0]}\n{more}", script.getvalue(), flags=re.MULTILINE)
    for old, new in CHANGED[shell].items():
        assert old in text, f"tyro's script for {shell} has no {old!r} any more"
        text = text.replace(old, new)
    return text + COMPLETE_BASH if shell == "bash" else text


def settings_help() -> str:
    """The settings that people change most, each with its type and its help."""
    lines = ["settings, of which these are used most (all: bcl presets GAME):"]
    for setting in _used_most():
        lines += [f"  --{setting.name} {setting.word}", f"      {setting.help}"]
    return "\n".join(lines)


class _Setting(typing.NamedTuple):
    name: str
    kind: Any
    """Of a list, that of its items."""
    word: str
    """What is to be written for its value."""
    help: str


def _used_most() -> Iterator[_Setting]:
    for name in OFTEN:
        *sections, last = name.split(".")
        owner: Any = Config
        for section in sections:
            owner = typing.get_type_hints(owner)[section]
        hint = typing.get_type_hints(owner, include_extras=True)[last]
        several = typing.get_origin(hint) is tuple
        element = typing.get_args(hint)[0] if several else hint
        budget = Eps in (element, *typing.get_args(element))
        kind = _kind(_members(element))
        word = "BUDGET" if budget else _word(kind, last.upper())
        yield _Setting(name, kind, word + ",..." * several, documented(owner)[last])


def _members(hint: Any) -> Iterator[Any]:
    """The kinds that a hint allows, without None and annotations."""
    if typing.get_origin(hint) is Annotated:
        yield from _members(typing.get_args(hint)[0])
    elif typing.get_origin(hint) in (types.UnionType, typing.Union):
        for member in typing.get_args(hint):
            yield from _members(member)
    elif hint is not type(None):
        yield hint


def _kind(kinds: Iterable[Any]) -> Any:
    """What text stands for, where several kinds are allowed."""
    kinds = [*kinds]
    choices = [word for kind in kinds if typing.get_origin(kind) is Literal for word in typing.get_args(kind)]
    if any(kind is Path or typing.get_origin(kind) is os.PathLike for kind in kinds):
        return Path
    if str in kinds:
        return str
    return Literal[tuple(choices)] if choices else kinds[0]


def _word(kind: Any, otherwise: str) -> str:
    """What is to be written for a value of this kind."""
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(typing.get_args(kind)) + "}"
    return {int: "NUMBER", float: "NUMBER", bool: "{true,false}", Path: "PATH"}.get(kind, otherwise)
