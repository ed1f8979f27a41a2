"""Plain data to frozen dataclasses and back: the command line, TOML, type checks and did-you-mean.

Budgets (eps) are in observation units: images live in [0, 1], so people write `3/255`.
"""

import dataclasses
import functools
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from bcl.errors import ConfigError, did_you_mean

TAG = "engine"  # key by which a table says which of several dataclasses it is, a class variable of these
Eps = Annotated[float, "budget"]
Count = Annotated[int, "at least 1"]
Natural = Annotated[int, "at least 0"]
Magnitude = Annotated[float, "at least 0"]
Share = Annotated[float, "between 0 and 1"]
Positive = Annotated[float, "above 0"]


def fits(value: float, condition: str) -> bool:
    """Whether a number keeps the condition that its annotation states."""
    return {
        "at least 1": value >= 1,
        "at least 0": value >= 0,
        "between 0 and 1": 0 <= value <= 1,
        "above 0": value > 0,
    }[condition]


def parse_eps(value: object, where: str = "eps") -> float:
    """A budget from `3/255` or a decimal; a bare integer is refused, because people mean gray levels by it."""
    text = str(value).strip()
    try:
        eps = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ConfigError(f"{where} = '{text}' is not a budget", "write it like 3/255 or 0.03") from None
    if text.lstrip("+").isdecimal() and eps != 0:
        raise ConfigError(
            f"{where} = {text} is ambiguous", f"write {text}/255 for gray levels, or a decimal such as 0.03"
        )
    if not 0 <= eps <= 1:
        raise ConfigError(f"{where} = {text} is outside [0, 1]", "write it like 3/255 or 0.03")
    return eps


def format_eps(eps: float) -> str:
    """`0`, a short decimal such as `0.2`, else `3/255` where that is what it is, else the shortest exact decimal."""
    levels = round(eps * 255)
    decimal = repr(float(eps)) if eps else "0"
    return f"{levels}/255" if len(decimal) > 6 and eps == levels / 255 else decimal


def format_return(value: float) -> str:
    """Four digits, of large numbers all before the point: `20.55`, `46,935`."""
    return f"{value:.4g}" if abs(value) < 9_999.5 else f"{value:,.0f}"


def format_error(value: float) -> str:
    """Two digits of a standard error, of large ones all before the point: `0.16`, `1,547`."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def parse_settings(arguments: list[str]) -> dict[str, Any]:
    """Nested settings from `--section.key value` and `--section.key=value`; values stay text until they are typed."""
    settings: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--"):
            raise ConfigError(
                f"unexpected argument '{word}'", "settings are written --section.key value, several values with commas"
            )
        key, equals, value = word[2:].partition("=")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise ConfigError(f"setting '--{key}' has no value", f"write --{key} VALUE")
        *sections, last = key.replace("-", "_").split(".")
        table = settings
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"'{section}' in '--{key}' is a value, not a section", "give it once")
        table[last] = value
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """A user's TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror}", "give --config an existing TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}", "compare it with 'bcl presets GAME'") from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, section by section."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def plain(value: Any) -> Any:
    """Settings with lists in place of arrays, which give no answer to what compares them with a word."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def current_names(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings of a dataclass by their names of today; those of older versions are in its `OLD_NAMES`."""
    hints = _hints(kind)
    old_names = getattr(kind, "OLD_NAMES", {})
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = old_names.get(key, str(key))
        section = dataclasses.is_dataclass(hints.get(name)) and isinstance(value, Mapping)
        found[name] = current_names(hints[name], value) if section else value
    return found


def build(kind: Any, data: Any, where: str) -> Any:
    """A dataclass from a table, or one of a union of dataclasses by their tag; `where` is its path, for messages."""
    if not isinstance(data, Mapping):
        hint = f"write --{where}.KEY VALUE, in a file {where}.KEY = VALUE"
        raise ConfigError(f"'{where}' is a section, not a value", hint)
    data = dict(data)
    if choices := {choice.engine: choice for choice in typing.get_args(kind)}:
        tag = str(data.pop(TAG, ""))
        if tag not in choices:
            raise ConfigError(f"{where}.{TAG} = '{tag}' is unknown or missing", f"one of {', '.join(choices)}")
        kind = choices[tag]
    hints = _hints(kind)
    for key in data:
        if key not in hints:
            raise ConfigError(f"unknown setting '{_path(where, key)}'", _closest_setting(key, where, hints))
    values = typed_values(kind, data, where)
    for field in dataclasses.fields(kind):
        path = _path(where, field.name)
        if field.name not in values and field.default is field.default_factory:
            raise ConfigError(f"setting '{path}' is missing", "every configuration needs it")
        if values.get(field.name) == () != field.default:
            raise ConfigError(f"{path} is empty", "give at least one, or leave it out")
    return kind(**values)


def typed_values(kind: Any, data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Values of fields of a dataclass, each as the type of its field."""
    hints = _hints(kind)
    return {key: typed(hints[key], value, _path(where, key)) for key, value in data.items()}


def to_toml(config: Any, *, comments: bool = False, without: str = "") -> str:
    """The whole configuration as TOML, with each setting's help beside it on request; a section can be left out."""
    sections: dict[str, list[str]] = {"": []}
    for name, value, hint, owner in _leaves(config):
        section, _, key = name.rpartition(".")
        lines = sections.setdefault(section, [])
        if value is not None:
            text = f"{key} = {_toml_value(value, hint)}"
            about = documented(owner).get(key) if comments else None
            lines.append(f"{text:<40}  # {about}" if about else text)
    top = sections.pop("")
    sections.pop(without, None)
    blocks = [top, *([f"[{section}]", *lines] for section, lines in sections.items())]
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def flat(config: Any) -> dict[str, Any]:
    """Every setting by its dotted name."""
    return {name: value for name, value, *_ in _leaves(config)}


def difference(old: Any, new: Any) -> list[str]:
    """Dotted names of the settings in which two configurations differ."""
    a = flat(old)
    b = flat(new)
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def setting_line(config: Any, wanted: str) -> str:
    """One setting by its dotted name, as `name = value`."""
    value, hint = next((value, hint) for name, value, hint, _ in _leaves(config) if name == wanted)
    return f"{wanted} = {'none' if value is None else _toml_value(value, hint)}"


def setting_rows(config: Any) -> list[dict[str, str]]:
    """Dotted name, value as TOML writes it, and help of every setting that has a value."""
    return [
        {"setting": name, "value": _toml_value(value, hint), "help": documented(owner).get(name.rpartition(".")[2], "")}
        for name, value, hint, owner in _leaves(config)
        if value is not None
    ]


def _leaves(config: Any, where: str = "") -> Iterator[tuple[str, Any, Any, type]]:
    """Dotted name, value, type and class of every setting, in the order of the fields."""
    kind: Any = type(config)
    if hasattr(kind, TAG):
        yield _path(where, TAG), getattr(kind, TAG), str, kind
    for name, hint in _hints(kind).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, _path(where, name))
        else:
            yield _path(where, name), value, hint, kind


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types of a dataclass's fields by name. Kept: Python evaluates them anew each time, and a report asks thousands of
    times."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def documented(kind: Any) -> dict[str, str]:
    """The docstrings under a dataclass's fields, or those of a function's parameters, each as one line."""
    import docstring_parser

    found = docstring_parser.parse_from_object(kind).params
    return {one.arg_name: " ".join((one.description or "").split()) for one in found}


def _closest_setting(key: str, where: str, hints: Mapping[str, Any]) -> str:
    hint = did_you_mean(key, hints)
    if not hint and not where:  # `--eps` for `--evaluation.eps`
        sections = [name for name, kind in hints.items() if key in getattr(kind, "__dataclass_fields__", ())]
        hint = f"did you mean '{sections[0]}.{key}'?" if sections else ""
        hint += " (budgets are written like 3/255)" if hint and key == "eps" else ""
    return hint or f"one of {', '.join(hints)}"


def typed(hint: Any, value: Any, where: str, shown: str = "") -> Any:
    """`value` as the type of its field or option; text is parsed, everything else must already fit. `shown`: how it is
    written on the command line, where that is not `--where`."""
    if any(dataclasses.is_dataclass(kind) for kind in (hint, *typing.get_args(hint))):
        return build(hint, value, where)
    if hint == Eps:
        return parse_eps(value, where)
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated:
        number = typed(arguments[0], value, where)
        condition = arguments[1]
        if not fits(number, condition):
            raise ConfigError(f"{where} = {value} is not allowed", f"it must be {condition}")
        return number
    if origin is Literal:
        if value in arguments:
            return value
        choices = did_you_mean(str(value), arguments, f"give {shown or '--' + where} one of {', '.join(arguments)}")
        raise ConfigError(f"{where} = '{value}' is not a choice", choices)
    if origin is tuple:
        items = _items(value, where) if isinstance(value, str) else value
        if isinstance(items, list | tuple):
            return tuple(typed(arguments[0], item, where) for item in items)
    elif origin in (types.UnionType, typing.Union):  # `X | None`
        return None if value in (None, "none") else typed(arguments[0], value, where)
    elif hint is bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
    elif hint in (str, Path) and isinstance(value, str):
        return hint(value)
    elif hint in (int, float) and not isinstance(value, bool):
        if hint is int and isinstance(value, int):
            return value  # a float would round large ones
        try:
            number = float(value)
            if hint is float and number == number and abs(number) != float("inf"):
                return number
            if hint is int and number == int(number):
                return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
        except (ValueError, TypeError, OverflowError):
            pass
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, "a list")
    raise ConfigError(f"{where} = {value!r} is not {expected}", f"give {shown or '--' + where} {expected}")


def _items(text: str, where: str) -> list[str]:
    """Of a list on the command line, between commas or blanks; none of empty text."""
    parts = [part.split() for part in text.split(",")]
    if len(parts) > 1 and not all(parts):
        raise ConfigError(f"{where} = '{text}' has an empty item", "write one comma between two items")
    return [item for part in parts for item in part]


def _toml_value(value: Any, hint: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item, typing.get_args(hint)[0]) for item in value) + "]"
    if hint == Eps:
        text = format_eps(value)
        return f'"{text}"' if "/" in text else repr(float(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes DEL too, JSON does not
    return repr(value)


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
