"""An attack as data: what is stored of it, rebuilt from it, and its names."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import Tensor

from bcl.attacks.learned import Learned
from bcl.attacks.noise import CornerNoise, Square, UniformNoise
from bcl.attacks.objectives import KL, CrossEntropy, Margin, MinBest, OwnValue
from bcl.attacks.pgd import APGD, FGSM, PGD, MixedPGD, WorstAction
from bcl.attacks.ri_fgsm import RIFGSM, Multi, MultiT
from bcl.attacks.threat import Attack, AttackedPolicy, Budget, LowestScored, Randomness
from bcl.errors import BclError, ConfigError

PerhapsAttack = TypeVar("PerhapsAttack", Attack, Attack | None)
SOURCE = "source_digest"  # key of an attack that is not one of this package
# In the order of tables: the paper's first.
_ATTACKS = (
    PGD, RIFGSM, Multi, MultiT, FGSM, APGD, WorstAction, Square, UniformNoise, CornerNoise, Learned, LowestScored,
    MixedPGD,
)  # fmt: skip
_OBJECTIVES = (CrossEntropy, KL, Margin, MinBest, OwnValue)
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*_ATTACKS, *_OBJECTIVES)}
_NAMES = {
    "RIFGSM": "RI-FGSM",
    "MultiT": "Multi-T",
    "WorstAction": "Worst action",
    "UniformNoise": "Noise",
    "CornerNoise": "Corner noise",
    "LowestScored": "Lowest-scored action",
    "MixedPGD": "Mixed PGD",
}


@dataclass(frozen=True, repr=False)
class OtherAttack:
    """An attack that is not one of this package, as a stored score names it. It cannot be played."""

    kind: str
    """`module:Class`; of scores of version 0.1 the class alone."""
    settings: tuple[tuple[str, Any], ...] = ()
    source: str = ""
    """See `source_digest`; empty in scores from before there was one."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        raise BclError(f"{self} is known by its name alone", "give the attack itself")

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.settings)
        return f"{self.kind.rpartition(':')[2]}({settings})"


def attack_to_dict(attack: Attack) -> dict[str, Any]:
    """Its kind, the fields that its repr shows and, if it is not of this package, a digest of its source."""
    if isinstance(attack, OtherAttack):
        name = attack.kind
        source = attack.source
        values = dict(attack.settings)
    else:
        kind = type(attack)
        ours = _KINDS.get(kind.__name__) is kind
        name = kind.__name__ if ours else f"{kind.__module__}:{kind.__qualname__}"
        source = "" if ours else source_digest(kind)
        values = {"repr": repr(attack)}
        if dataclasses.is_dataclass(attack):
            values = {field.name: getattr(attack, field.name) for field in dataclasses.fields(attack) if field.repr}
            for taken in {"kind", SOURCE} & values.keys():
                what = f"{name} has a field '{taken}', which says in stored scores what an attack is"
                raise ConfigError(what, "rename the field")
    data: dict[str, Any] = {"kind": name} | ({SOURCE: source} if source else {})
    for key, value in values.items():
        if dataclasses.is_dataclass(value):
            data[key] = attack_to_dict(cast(Attack, value))
        else:
            data[key] = value if isinstance(value, bool | int | float | str) else repr(value)
    return data


def attack_from_dict(data: dict[str, Any]) -> Attack:
    """The inverse of `attack_to_dict`; an `OtherAttack` if unknown here. TypeError or KeyError: it is no attack."""
    if not isinstance(data, dict):
        raise TypeError(f"{data!r:.60} is not an attack")
    fields = {name: value for name, value in data.items() if name not in ("kind", SOURCE)}
    settings = {name: attack_from_dict(value) if isinstance(value, dict) else value for name, value in fields.items()}
    if any(isinstance(value, list) for value in settings.values()):
        raise TypeError("a list is not a setting of an attack")
    kind = str(data["kind"])
    if kind in _KINDS:
        try:
            return cast(Attack, _KINDS[kind](**settings))
        except (TypeError, ConfigError):  # with fields of another version
            pass
    return OtherAttack(kind, tuple(settings.items()), str(data.get(SOURCE, "")))


@functools.cache  # a file that is edited later is not what was imported
def source_digest(kind: type) -> str:
    """Of the source of a class's module, in a notebook of the cell of its `__call__`; empty where none can be read."""
    for defined in (sys.modules.get(kind.__module__), vars(kind).get("__call__")):
        with contextlib.suppress(OSError, TypeError):
            lines, _ = inspect.findsource(cast(Any, defined))
            return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]
    return ""


def lacks_source(attack: Attack | None) -> bool:
    """Whether it may change while its stored form stays: the source of its class or objective cannot be read."""
    return attack is not None and _lacks_source(attack_to_dict(attack))


def _lacks_source(data: dict[str, Any]) -> bool:
    unknown = ":" in data["kind"] and SOURCE not in data
    return unknown or any(_lacks_source(value) for value in data.values() if isinstance(value, dict))


def recorded(attack: PerhapsAttack) -> PerhapsAttack:
    """The attack as it is read back once it was stored."""
    return attack and attack_from_dict(attack_to_dict(attack))


def kind_of(attack: object) -> str:
    """The class of an attack or objective, without its module."""
    kind = attack.kind if isinstance(attack, OtherAttack) else type(attack).__name__
    return kind.rpartition(":")[2]


def rank(attack: Attack | None) -> int:
    """Where an attack stands in tables."""
    return [*_ATTACKS, type(attack)].index(type(attack))


def attack_label(attack: Attack | None) -> str:
    """A short name: `PGD-30`, `PGD-50 x5 margin`, `Multi-T 1000`."""
    if attack is None:
        return "no attack"
    fields = attack_to_dict(attack)
    name = _NAMES.get(kind_of(attack), kind_of(attack))
    words = [f"{name}-{fields['steps']}" if fields.get("steps") else name]
    words += [str(fields[key]) for key in ("starts", "queries") if key in fields]
    if fields.get("restarts", 1) != 1:
        words.append(f"x{fields['restarts']}")
    objective = kind_of(getattr(attack, "objective", CrossEntropy()))
    if objective != "CrossEntropy":
        words.append({"KL": "KL", "MinBest": "best value"}.get(objective, objective.lower()))
    return " ".join(words)


def attack_labels(attacks: Iterable[Attack | None]) -> dict[Attack | None, str]:
    """Names that tell these attacks apart: short ones, and more of those that would have the same."""
    labels = {attack: attack_label(attack) for attack in attacks}
    for longer in (attack_label, repr, _repr_and_digest):
        often = Counter(labels.values())
        for attack, label in labels.items():
            if attack is not None and often[label] > 1:
                module = attack.kind.rpartition(":")[0] if isinstance(attack, OtherAttack) else ""
                labels[attack] = f"{module}:{longer(attack)}" if module else longer(attack)
    return labels


def _repr_and_digest(attack: Attack | None) -> str:
    data = json.dumps(attack and attack_to_dict(attack))
    return f"{attack!r} {hashlib.sha256(data.encode()).hexdigest()[:6]}"
