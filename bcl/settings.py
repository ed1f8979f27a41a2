"""Plain data to frozen dataclasses and back: flags, TOML, type checks and did-you-mean."""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from bcl.errors import ConfigError, did_you_mean
from bcl.games import ENGINES, Game, engine_of
from bcl.quantities import Eps, fits, format_eps, parse_eps


def parse_flags(arguments: list[str]) -> dict[str, Any]:
    """Nested settings from `--section.key value` and `--section.key=value`; values stay text until they are typed."""
    settings: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--"):
            raise ConfigError(f"unexpected argument '{word}'", "settings are written --section.key value")
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
        raise ConfigError(
            f"'{path}' is not valid TOML: {error}", "mend it, or compare with 'bcl presets GAME'"
        ) from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, section by section."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def build(kind: Any, data: Any, where: str) -> Any:
    """A dataclass from a table; `where` is its path, for messages."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"'{where}' is a section, not a value", f"write --{where}.KEY VALUE")
    data = dict(data)
    if kind == Game:
        kind = ENGINES.get(str(data.pop("engine", "")))
        if kind is None:
            raise ConfigError("game.engine is missing or unknown", f"one of {', '.join(ENGINES)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    for key in data:
        if key not in hints:
            raise ConfigError(f"unknown setting '{_path(where, key)}'", _closest_setting(key, where, hints))
    values = {key: _typed(hints[key], value, _path(where, key)) for key, value in data.items()}
    missing = [f.name for f in dataclasses.fields(kind) if f.name not in values and f.default is f.default_factory]
    if missing:
        raise ConfigError(f"setting '{_path(where, missing[0])}' is missing", "every configuration needs it")
    return kind(**values)


def to_toml(config: Any, *, comments: bool = False, without: str = "") -> str:
    """The whole configuration as TOML, with each setting's help beside it on request; a section can be left out."""
    import docstring_parser

    lines: list[str] = []

    def emit(value: Any, kind: Any) -> None:
        documented = docstring_parser.parse_from_object(kind).params if comments else []
        help_of = {p.arg_name: " ".join((p.description or "").split()) for p in documented}
        hints = typing.get_type_hints(kind, include_extras=True)
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if dataclasses.is_dataclass(item) or item is None:
                continue
            text = f"{f.name} = {_toml_value(item, hints[f.name])}"
            lines.append(f"{text:<40}  # {help_of[f.name]}" if help_of.get(f.name) else text)

    emit(config, type(config))
    for f in dataclasses.fields(config):
        section = getattr(config, f.name)
        if dataclasses.is_dataclass(section) and f.name != without:
            lines.extend(["", f"[{f.name}]"])
            if f.name == "game":
                lines.append(f'engine = "{engine_of(config.game)}"')
            emit(section, type(section))
    return "\n".join(lines) + "\n"


def difference(old: Any, new: Any) -> list[str]:
    """Dotted names of the settings in which two configurations differ."""

    def flat(value: Any, where: str) -> dict[str, Any]:
        if not dataclasses.is_dataclass(value):
            return {where: value}
        flattened: dict[str, Any] = {f"{where}.engine": type(value)} if where == "game" else {}
        for f in dataclasses.fields(value):
            flattened |= flat(getattr(value, f.name), _path(where, f.name))
        return flattened

    a, b = flat(old, ""), flat(new, "")
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def setting_line(config: Any, name: str) -> str:
    """One setting by its dotted name, as `name = value`."""
    *sections, last = name.split(".")
    for section in sections:
        config = getattr(config, section)
    value = getattr(config, last)
    text = (
        "none" if value is None else _toml_value(value, typing.get_type_hints(type(config), include_extras=True)[last])
    )
    return f"{name} = {text}"


def _closest_setting(key: str, where: str, hints: Mapping[str, Any]) -> str:
    hint = did_you_mean(key, hints)
    if not hint and not where:  # `--eps` for `--evaluation.eps`
        sections = [name for name, kind in hints.items() if dataclasses.is_dataclass(kind)]
        inside = [f"{name}.{key}" for name in sections if key in typing.get_type_hints(hints[name])]
        hint = f"did you mean '{inside[0]}'?" if inside else ""
        hint += " (budgets are written like 3/255)" if hint and key == "eps" else ""
    return hint or f"one of {', '.join(hints)}"


def _typed(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type of its field; text (from flags) is parsed, everything else must already fit."""
    if hint == Game or dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    if hint == Eps:
        return parse_eps(value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        number, condition = _typed(arguments[0], value, where), arguments[1]
        if not fits(number, condition):
            raise ConfigError(f"{where} = {value} is not allowed", f"it must be {condition}")
        return number
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(
            f"{where} = '{value}' is not a choice",
            did_you_mean(str(value), arguments, f"one of {', '.join(arguments)}"),
        )
    if origin is tuple:
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        if isinstance(items, list | tuple):
            return tuple(_typed(arguments[0], item, where) for item in items)
    elif origin in (types.UnionType, typing.Union):  # `X | None`
        return None if value in (None, "none") else _typed(arguments[0], value, where)
    elif hint is bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
    elif hint is str and isinstance(value, str):
        return value
    elif hint in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
            if hint is float and number == number and abs(number) != float("inf"):
                return number
            if hint is int and number == int(number):
                return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
        except (ValueError, TypeError, OverflowError):
            pass
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, "a list")
    raise ConfigError(f"{where} = {value!r} is not {expected}", "mend that value")


def _toml_value(value: Any, hint: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item, typing.get_args(hint)[0]) for item in value) + "]"
    if hint == Eps:
        text = format_eps(value)
        return f'"{text}"' if "/" in text else text
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes DEL too, JSON does not
    return repr(value)


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
