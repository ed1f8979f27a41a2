"""What an adversary is: attacks on what a policy sees, and `perturb`, the one way to run them."""

from bcl.attacks.apgd import APGD
from bcl.attacks.learned import Directed, Learned
from bcl.attacks.noise import CornerNoise, UniformNoise
from bcl.attacks.objectives import (
    KL,
    AwayFromActions,
    CrossEntropy,
    Margin,
    MinBest,
    Objective,
    OwnValue,
    TargetValue,
    TowardActions,
)
from bcl.attacks.pgd import FGSM, PGD, WorstAction
from bcl.attacks.ri_fgsm import RIFGSM, Multi, MultiT
from bcl.attacks.square import Square
from bcl.attacks.suites import SUITES, attack_by_name, attacks_named, suite
from bcl.attacks.threat import Attack, Ball, Budget, Policy, Randomness, RowGenerators, perturb

__all__ = [
    "APGD",
    "FGSM",
    "KL",
    "PGD",
    "RIFGSM",
    "SUITES",
    "Attack",
    "AwayFromActions",
    "Ball",
    "Budget",
    "CornerNoise",
    "CrossEntropy",
    "Directed",
    "Learned",
    "Margin",
    "MinBest",
    "Multi",
    "MultiT",
    "Objective",
    "OwnValue",
    "Policy",
    "Randomness",
    "RowGenerators",
    "Square",
    "TargetValue",
    "TowardActions",
    "UniformNoise",
    "WorstAction",
    "attack_by_name",
    "attacks_named",
    "perturb",
    "suite",
]
