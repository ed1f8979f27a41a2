"""The adversary a learner trains against."""

from bcl.attacks import PGD, RIFGSM, Attack, CrossEntropy, Margin, Objective, attack_by_name
from bcl.config import AttackConfig


def training_attack(config: AttackConfig, value: Objective, paper: Objective | None = None) -> Attack:
    """The configured attack; `value` is the learner's expected value, `paper` what the paper attacks if not that."""
    objectives: dict[str, Objective] = {
        "paper": paper or value,
        "value": value,
        "cross-entropy": CrossEntropy(),
        "margin": Margin(),
    }
    objective = objectives[config.objective]
    if config.kind == "ri-fgsm":
        return RIFGSM(objective)
    if config.kind == "pgd":
        return PGD(config.steps, config.relative_step, random_start=config.random_start, objective=objective)
    return attack_by_name(config.kind)
