"""Named attacks, and frozen sets of them: a number under a suite means the same thing everywhere."""

import importlib
import inspect
import re

from bcl.attacks.learned import SHORTEST, Learned
from bcl.attacks.noise import CornerNoise, Square, UniformNoise
from bcl.attacks.objectives import KL, CrossEntropy, Margin, MinBest
from bcl.attacks.pgd import APGD, FGSM, PGD, WorstAction
from bcl.attacks.ri_fgsm import RIFGSM, Multi, MultiT
from bcl.attacks.threat import Attack
from bcl.errors import ConfigError, did_you_mean

MAD = PGD(steps=50, step=0.1, random_start=True, objective=KL())  # maximal action difference, Zhang et al. 2020

MYOPIC = (PGD(steps=30, step=0.1), WorstAction())  # what a learned adversary has to beat

_PAPER: tuple[Attack, ...] = (PGD(steps=30, step=0.1), RIFGSM(), Multi(starts=1000), MultiT(starts=1000))
_STRONG: tuple[Attack, ...] = (
    *_PAPER,
    PGD(steps=50, step=0.1, random_start=True, restarts=5, objective=CrossEntropy()),
    PGD(steps=50, step=0.1, random_start=True, restarts=5, objective=Margin()),
    PGD(steps=50, step=0.1, random_start=True, restarts=5, objective=MinBest()),
    WorstAction(steps=50, step=0.1),
    MAD,
    APGD(steps=100, objective=CrossEntropy()),
    APGD(steps=100, objective=Margin()),
    Square(queries=500),
)

SUITES: dict[str, tuple[Attack, ...]] = {  # from weak to strong
    "quick": (PGD(steps=10, step=0.2),),  # 10 x 0.2 eps crosses the whole ball, as RADIAL's PPO evaluation does
    "paper": _PAPER,
    "strong": _STRONG,
    "learned": (*_STRONG, Learned()),
}

_NAMED: dict[str, Attack] = {
    "apgd": APGD(),
    "apgd-margin": APGD(objective=Margin()),
    "corner-noise": CornerNoise(),
    "fgsm": FGSM(),
    "learned": Learned(),
    "mad": MAD,
    "multi": Multi(),
    "multi-t": MultiT(),
    "noise": UniformNoise(),
    "pgd": PGD(steps=30, step=0.1),
    "ri-fgsm": RIFGSM(),
    "square": Square(),
    "worst-action": WorstAction(),
}

ATTACK_NAMES = (*_NAMED, "pgd-10")


def suite(name: str) -> tuple[Attack, ...]:
    """The attacks of a frozen suite."""
    if name not in SUITES:
        raise ConfigError(f"no suite named '{name}'", did_you_mean(name, SUITES, f"one of {', '.join(SUITES)}"))
    return SUITES[name]


def attacks_named(name: str) -> tuple[Attack, ...]:
    """The attacks of a suite, or the single attack of that name; `learned` is the suite."""
    return SUITES[name] if name in SUITES else (attack_by_name(name),)


def _imported_attack(path: str) -> Attack:
    """A class without required arguments, or an attack that is ready."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
        attack: Attack = found() if isinstance(found, type) else found
    except Exception as error:  # the user's code
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "give module:Class of a class without required fields, or module:NAME of an attack that is ready"
        raise ConfigError(f"cannot take the attack '{path}' ({reason})", hint) from None
    return with_name(attack, path)


def with_name(attack: Attack, shown: str) -> Attack:
    """An attack by whose repr scores can be found again: a memory address may be that of another attack tomorrow."""
    if not callable(attack) or inspect.isroutine(attack) or " at 0x" in repr(attack):
        raise ConfigError(f"the attack '{shown}' has no name of its own", "make it a frozen dataclass with __call__")
    return attack


def attack_by_name(name: str) -> Attack:
    """An attack as people write it: `square`, `pgd-10` for a number of steps, `learned-20000` for a training of so
    many, `module:Attack` for a user-defined one."""
    if name in _NAMED:
        return _NAMED[name]
    if ":" in name:
        return _imported_attack(name)
    if match := re.fullmatch(r"(a?)pgd-([1-9]\d{0,3})", name):
        steps = int(match[2])
        if match[1]:
            return APGD(steps)
        return PGD(steps=steps, step=min(1.0, max(0.1, 2 / steps)))  # can cross the ball: 30 x 0.1, 10 x 0.2, 5 x 0.4
    if match := re.fullmatch(r"learned-([1-9]\d{0,8})", name):
        return Learned(training=int(match[1]))
    known = f"one of {', '.join(ATTACK_NAMES)} (or any number of steps)"
    if re.fullmatch(r"a?pgd-\d+", name):
        raise ConfigError(f"no attack named '{name}'", "give 1 to 9999 steps, such as pgd-30")
    number = re.search(r"[1-9]\d{0,3}", name)
    steps = int(number[0]) if number else 10
    numbered = [f"pgd-{steps}", f"apgd-{steps}", f"learned-{max(steps, SHORTEST)}"]
    raise ConfigError(f"no attack named '{name}'", did_you_mean(name, (*_NAMED, *numbered), known))
