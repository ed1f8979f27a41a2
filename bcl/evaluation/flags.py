"""Reasons to distrust an evaluation. docs/flags.md has a paragraph on each: raised if, meaning, what to do."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bcl.attacks.names import attack_label
from bcl.evaluation.score import NO_ATTACK, Score, lowest
from bcl.quantities import counted, format_eps

ZERO_GRADIENT_SHARE = 0.1
SIGMAS = 2.0  # a difference counts above this many standard errors ...
SHARE_OF_NOMINAL = 0.05  # ... and above this share of the nominal return
WITHOUT_GRADIENT_DESCENT = ("Multi(", "MultiT(", "Square(", "UniformNoise(", "CornerNoise(")
LEARNED = "Learned("
MIN_EPISODES = 3  # comparisons of fewer say nothing
FEW_COURSES = 0.5  # share of the episodes


@dataclass(frozen=True)
class Flag:
    """One reason."""

    name: str
    message: str


def flags(scores: Sequence[Score], floor: Score | None = None) -> list[Flag]:
    """All reasons to distrust these scores of one policy. `floor`: play in which every action is the lowest-scored."""
    nominal = next((s for s in scores if s.attack == NO_ATTACK), None)
    attacked = [s for s in scores if s.attack != NO_ATTACK]
    found = [*_zero_gradients(attacked), *_no_effect(attacked), *_stochastic(attacked), *_few_courses(scores)]
    found += [*_masking(attacked, nominal), *_weak_pgd(attacked, nominal)]
    found += [*_planning_wins(attacked, nominal)]
    found += [*_bigger_budget(attacked, nominal), *_more_effort(attacked, nominal)]
    if nominal:
        found += _attack_helps(attacked, nominal)
    if nominal and floor:
        found += _full_budget(attacked, nominal, floor)
    return found


def clearly_lower(low: Score, high: Score, nominal: Score | None) -> bool:
    """By more than chance and more than a trifle."""
    if min(len(low.returns), len(high.returns)) < MIN_EPISODES:
        return False
    noise = (low.sem**2 + high.sem**2) ** 0.5
    trifle = abs(nominal.mean) * SHARE_OF_NOMINAL if nominal else 0.0
    return high.mean - low.mean > max(SIGMAS * noise, trifle)


def _zero_gradients(scores: Sequence[Score]) -> list[Flag]:
    worst = max(scores, key=lambda s: s.zero_gradient, default=None)
    if worst is None or worst.zero_gradient <= ZERO_GRADIENT_SHARE:
        return []
    return [Flag("zero-gradients", f"the gradient is exactly zero on {worst.zero_gradient:.0%} of sampled states")]


def _no_effect(scores: Sequence[Score]) -> list[Flag]:
    idle = [s for s in scores if s.changed == 0]
    return [
        Flag("no-effect", f"{attack_label(s.attack)} at {format_eps(s.eps)} changed no action at all") for s in idle
    ]


def _stochastic(scores: Sequence[Score]) -> list[Flag]:
    if not any(s.stochastic for s in scores):
        return []
    return [Flag("stochastic-policy", "the policy answers one observation differently each time")]


def _few_courses(scores: Sequence[Score]) -> list[Flag]:
    known = [(s.courses / len(s.returns), s.courses, s) for s in scores if s.courses and len(s.returns) >= MIN_EPISODES]
    share, courses, fewest = min(known, key=lambda one: one[0], default=(1.0, 0, None))
    if fewest is None or share > FEW_COURSES:
        return []
    nominal = fewest.attack == NO_ATTACK
    where = "without attack" if nominal else f"under {attack_label(fewest.attack)} at {format_eps(fewest.eps)}"
    what = f"the {len(fewest.returns)} episodes {where} took only {counted(courses, 'course')}"
    return [Flag("few-courses", what)]


def _masking(scores: Sequence[Score], nominal: Score | None) -> list[Flag]:
    return [Flag("masking", what) for what in _stronger_than_pgd(WITHOUT_GRADIENT_DESCENT, scores, nominal)]


def _weak_pgd(scores: Sequence[Score], nominal: Score | None) -> list[Flag]:
    return [Flag("weak-pgd", what) for what in _stronger_than_pgd(("APGD(",), scores, nominal)]


def _stronger_than_pgd(rivals: tuple[str, ...], scores: Sequence[Score], nominal: Score | None) -> Iterator[str]:
    """By budget: the strongest of `rivals`, where it is clearly stronger than every PGD within the budget."""
    for eps in sorted({s.eps for s in scores}):
        within = [s for s in scores if s.eps <= eps and s.attack.startswith("PGD(")]
        climbing = [s for s in within if s.eps == eps]
        others = [s for s in scores if s.eps == eps and s.attack.startswith(rivals)]
        if not climbing or not others:
            continue
        rival = lowest(others)
        if clearly_lower(rival, lowest(within), nominal):
            yield f"{_called(rival)} beats {_called(lowest(climbing))} at {format_eps(eps)}"


def _planning_wins(scores: Sequence[Score], nominal: Score | None) -> list[Flag]:
    found = []
    for eps in sorted({s.eps for s in scores if s.attack.startswith(LEARNED)}):
        within = [s for s in scores if s.eps <= eps]
        myopic = [s for s in within if not s.attack.startswith(LEARNED)]
        if not myopic:
            continue
        planned = lowest(s for s in within if s.eps == eps and s.attack.startswith(LEARNED))
        strongest = lowest([*myopic, nominal] if nominal else myopic)
        apart = planned.mean + SIGMAS * planned.sem < strongest.mean - SIGMAS * strongest.sem
        if apart and clearly_lower(planned, strongest, nominal):
            what = f"{_called(planned)} beats {_called(strongest)}, the least that anything else left"
            found.append(Flag("planning-wins", f"{what} within {format_eps(eps)}"))
    return found


def _bigger_budget(scores: Sequence[Score], nominal: Score | None) -> list[Flag]:
    found = []
    for attack in dict.fromkeys(s.attack for s in scores):
        ladder = sorted((s for s in scores if s.attack == attack), key=lambda s: s.eps)
        for small, big in pairwise(ladder):
            if clearly_lower(small, big, nominal):
                what = f"{_called(big)} hurts less at {format_eps(big.eps)} than at {format_eps(small.eps)}"
                found.append(Flag("bigger-budget-weaker", f"{what} ({small.mean:.4g})"))
    return found


def _more_effort(scores: Sequence[Score], nominal: Score | None) -> list[Flag]:
    found = []
    plain = [(s, *effort) for s in scores if (effort := _effort(s.attack))]
    for weak, weak_kind, weak_effort in plain:
        for strong, strong_kind, strong_effort in plain:
            more = weak_kind == strong_kind and weak.eps == strong.eps and weak_effort != strong_effort
            more = more and all(w <= s for w, s in zip(weak_effort, strong_effort, strict=True))
            if more and clearly_lower(weak, strong, nominal):
                what = f"{_called(strong)} hurts less than {_called(weak)}"
                found.append(Flag("more-effort-weaker", f"{what} at {format_eps(weak.eps)}"))
    return found


def _attack_helps(scores: Sequence[Score], nominal: Score) -> list[Flag]:
    found = []
    for eps in sorted({s.eps for s in scores}):
        strongest = lowest(s for s in scores if s.eps == eps)
        if clearly_lower(nominal, strongest, nominal):
            what = f"{_called(strongest)}, the worst attack at {format_eps(eps)}"
            found.append(Flag("attack-helps", f"{what}, leaves more than no attack ({nominal.mean:.4g})"))
    return found


def _called(score: Score) -> str:
    return f"{attack_label(score.attack)} ({score.mean:.4g})"


def _effort(attack: str) -> tuple[str, tuple[int, int]] | None:
    """What kind of PGD this is apart from its effort, and its steps and restarts."""
    match = re.fullmatch(r"PGD\(steps=(\d+), (step=[^,]+, random_start=\w+), restarts=(\d+), (.*)\)", attack)
    return (match[2] + match[4], (int(match[1]), int(match[3]))) if match else None


def _full_budget(scores: Sequence[Score], nominal: Score, floor: Score) -> list[Flag]:
    if not any(s.eps == 1 for s in scores):
        return []
    worst = lowest(scores)
    noise = SIGMAS * (worst.sem**2 + floor.sem**2) ** 0.5
    allowed = floor.mean + 0.1 * max(nominal.mean - floor.mean, 0) + noise
    if worst.mean <= allowed:
        return []
    what = f"a budget of 1 leaves a return of {worst.mean:.4g}; always playing the lowest-scored action gives {floor.mean:.4g}"
    return [Flag("full-budget-survived", what)]
