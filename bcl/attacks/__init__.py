"""What an adversary is: attacks on what a policy sees, and `perturb`, the one way to run them."""

from bcl.attacks.learned import Directed, Learned
from bcl.attacks.noise import CornerNoise, Square, UniformNoise
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
from bcl.attacks.pgd import APGD, FGSM, PGD, MixedPGD, WorstAction
from bcl.attacks.records import (
    attack_from_dict,
    attack_label,
    attack_labels,
    attack_to_dict,
    kind_of,
    lacks_source,
    rank,
    recorded,
)
from bcl.attacks.ri_fgsm import RIFGSM, Multi, MultiT
from bcl.attacks.suites import SUITES, attack_by_name, attacks_named, suite
from bcl.attacks.threat import Attack, AttackedPolicy, Ball, Budget, LowestScored, Randomness, perturb
