"""The adversary a learner trains against."""

from bcl.attacks import PGD, RIFGSM, Attack, CrossEntropy, Margin, Objective, attack_by_name
from bcl.config import AttackConfig


def training_attack(config: AttackConfig, paper_objective: Objective) -> Attack:
    """The configured attack; `paper_objective` is what the learner's own attack in the paper descends."""
    objectives: dict[str, Objective] = {
        "paper": paper_objective,
        "cross-entropy": CrossEntropy(),
        "margin": Margin(),
    }
    objective = objectives[config.objective]
    if config.kind == "ri-fgsm":
        return RIFGSM(objective)
    if config.kind == "pgd":
        return PGD(config.steps, config.relative_step, random_start=config.random_start, objective=objective)
    return attack_by_name(config.kind)
