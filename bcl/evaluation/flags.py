"""Reasons to distrust an evaluation; docs/flags.md has a paragraph on each."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations

from bcl import stats
from bcl.attacks import APGD, PGD, CornerNoise, Learned, Multi, MultiT, Square, UniformNoise, attack_label
from bcl.errors import counted
from bcl.evaluation.evaluation import Score, lowest
from bcl.runs.results import Flag
from bcl.settings import format_eps, format_return

ZERO_GRADIENT_SHARE = 0.1
SIGMAS = 2.0  # a difference counts above this many standard errors ...
SHARE_OF_NOMINAL = 0.05  # ... and above this share of the nominal return
WITHOUT_GRADIENT_DESCENT = (Multi, MultiT, Square, UniformNoise, CornerNoise)
MIN_EPISODES = 3  # comparisons of fewer say nothing
FEW_COURSES = 0.5  # share of the episodes
WORSE_THAN_START = "worse-than-start"


EXPLAINED = {
    "zero-gradients": "Attacks that follow gradients are blind there: trust those that do not, as in the strong suite.",
    "masking": "The gradients mislead, so PGD's numbers are too good: take the worst case of the strong suite.",
    "weak-pgd": "PGD's steps lead elsewhere: take Auto-PGD's return for the agent's.",
    "planning-wins": "Attacks that look at one step at a time miss what hurts this agent: take the learned adversary's "
    "return for the agent's.",
    "no-effect": "The agent is robust to this attack, or the attack does not work on this network: look at "
    "stronger ones.",
    "bigger-budget-weaker": "The search failed at the larger budget, which contains the smaller one: the worst within "
    "each budget already has the lower return.",
    "attack-helps": "Without attack the agent plays worse than it can: take that return for the agent's, and look at "
    "more episodes before calling it robust.",
    "more-effort-weaker": "The search is stuck, or one step was lucky: take the worst case of the strong suite.",
    "full-budget-survived": "The attack cannot find what certainly exists: do not publish these numbers.",
    "few-courses": "The game is nearly deterministic, so read the return as that of a few episodes: standard errors "
    "are too small.",
    "stochastic-policy": "Gradients are of one draw and actions of another: put the network into eval mode.",
    "no-learning": "Everything trained from this stage is worthless: train it longer, or with other settings.",
    "unknown-learning": "It is not known whether the stage learned to play: look at its return without attack.",
    WORSE_THAN_START: "Training made the agent worse than one that it started from: at these budgets use that agent, "
    "whose file is named.",
}
"""What each flag means and what to do; docs/flags.md has more. Two of them are raised for stages of a run."""


def flags(scores: Sequence[Score], floor: Score | None = None) -> list[Flag]:
    """All reasons to distrust these scores of one policy. `floor`: play in which every action is the lowest-scored."""
    nominal = next((s for s in scores if s.attack is None), None)
    attacked = [s for s in scores if s.attack is not None]
    found = []
    blind = max((s.zero_gradient for s in attacked), default=0.0)
    if blind > ZERO_GRADIENT_SHARE:
        found.append(Flag("zero-gradients", f"the gradient is exactly zero on {blind:.0%} of sampled states"))
    found += [Flag("no-effect", f"{s.label} changed no action at all") for s in attacked if s.changed == 0]
    if any(s.stochastic for s in attacked):
        found.append(Flag("stochastic-policy", "the policy answers one observation differently each time"))
    found += _few_courses(scores)
    found += _stronger_than_pgd("masking", WITHOUT_GRADIENT_DESCENT, attacked, nominal)
    found += _stronger_than_pgd("weak-pgd", (APGD,), attacked, nominal)
    found += [*_planning_wins(attacked, nominal), *_bigger_budget(attacked, nominal), *_more_effort(attacked, nominal)]
    if nominal:
        found += _attack_helps(attacked, nominal)
    if nominal and floor:
        found += _full_budget(attacked, nominal, floor)
    return found


def worse_than_start(scores: Sequence[Score], start: Sequence[Score], file: str) -> list[Flag]:
    """Where the worst within a budget is certainly below that of the agent in `file`, which training began from."""
    found = dict[tuple[Score, Score], str]()
    for eps in sorted({s.eps for s in scores} & {s.eps for s in start}):
        ours, theirs = (lowest(s for s in some if s.eps <= eps) for some in (scores, start))
        if stats.certainly_less(ours.returns, theirs.returns):
            where = f"within {format_eps(eps)}" if eps else "without attack"
            has, had = format_return(ours.mean), format_return(theirs.mean)
            found.setdefault((ours, theirs), f"{has} {where} instead of {had}")
    what = f"it has {', '.join(found.values())}; there the agent it started from is the better choice: {file}"
    return [Flag(WORSE_THAN_START, what)] if found else []


def clearly_lower(low: Score, high: Score, nominal: Score | None) -> bool:
    """By more than chance, and by a share of the nominal return that counts."""
    if min(len(low.returns), len(high.returns)) < MIN_EPISODES:
        return False
    noise = (low.sem**2 + high.sem**2) ** 0.5
    share = abs(nominal.mean) * SHARE_OF_NOMINAL if nominal else 0.0
    return high.mean - low.mean > max(SIGMAS * noise, share)


def _few_courses(scores: Sequence[Score]) -> Iterator[Flag]:
    known = [(s.courses / len(s.returns), s.courses, s) for s in scores if s.courses and len(s.returns) >= MIN_EPISODES]
    share, courses, fewest = min(known, key=lambda one: one[0], default=(1.0, 0, None))
    if fewest and share <= FEW_COURSES:
        where = f"under {fewest.label}" if fewest.attack else "without attack"
        what = f"the {len(fewest.returns)} episodes {where} took only {counted(courses, 'course')}"
        yield Flag("few-courses", what)


def _stronger_than_pgd(
    flag: str, rivals: tuple[type, ...], scores: Sequence[Score], nominal: Score | None
) -> Iterator[Flag]:
    """By budget: the strongest of `rivals`, where every PGD is clearly weaker."""
    for eps in sorted({s.eps for s in scores}):
        within = [s for s in scores if s.eps <= eps and isinstance(s.attack, PGD)]
        climbing = [s for s in within if s.eps == eps]
        others = [s for s in scores if s.eps == eps and isinstance(s.attack, rivals)]
        if not climbing or not others:
            continue
        rival = lowest(others)
        if clearly_lower(rival, lowest(within), nominal):
            yield Flag(flag, f"{_label_and_mean(rival)} beats {_label_and_mean(lowest(climbing))} at {format_eps(eps)}")


def _planning_wins(scores: Sequence[Score], nominal: Score | None) -> Iterator[Flag]:
    directed = [s for s in scores if isinstance(s.attack, Learned) and not s.instead]
    others = [s for s in scores if not isinstance(s.attack, Learned) or s.instead]
    for eps in sorted({s.eps for s in directed}):
        myopic = [s for s in others if s.eps <= eps]
        if not myopic:
            continue
        planned = lowest(s for s in directed if s.eps == eps)
        strongest = lowest([*myopic, nominal] if nominal else myopic)
        apart = planned.mean + SIGMAS * planned.sem < strongest.mean - SIGMAS * strongest.sem
        if apart and clearly_lower(planned, strongest, nominal):
            what = f"{_label_and_mean(planned)} beats {_label_and_mean(strongest)}, the least that anything else left"
            yield Flag("planning-wins", f"{what} within {format_eps(eps)}")


def _bigger_budget(scores: Sequence[Score], nominal: Score | None) -> Iterator[Flag]:
    for attack in dict.fromkeys(s.attack for s in scores):
        ladder = sorted((s for s in scores if s.attack == attack), key=lambda s: s.eps)
        for small, big in pairwise(ladder):
            if clearly_lower(small, big, nominal):
                what = f"{_label_and_mean(big)} hurts less at {format_eps(big.eps)} than at {format_eps(small.eps)}"
                yield Flag("bigger-budget-weaker", f"{what} ({format_return(small.mean)})")


def _more_effort(scores: Sequence[Score], nominal: Score | None) -> Iterator[Flag]:
    """Of two forms of PGD that differ in steps and restarts alone."""
    played = [(s, s.attack) for s in scores if isinstance(s.attack, PGD)]
    for (weak, less), (strong, more) in permutations(played, 2):
        alike = (less.step, less.random_start, less.objective) == (more.step, more.random_start, more.objective)
        harder = less.steps <= more.steps and less.restarts <= more.restarts and less != more
        if alike and harder and weak.eps == strong.eps and clearly_lower(weak, strong, nominal):
            what = f"{_label_and_mean(strong)} hurts less than {_label_and_mean(weak)}"
            yield Flag("more-effort-weaker", f"{what} at {format_eps(weak.eps)}")


def _attack_helps(scores: Sequence[Score], nominal: Score) -> Iterator[Flag]:
    for eps in sorted({s.eps for s in scores}):
        strongest = lowest(s for s in scores if s.eps == eps)
        if stats.certainly_less(nominal.returns, strongest.returns):
            what = f"{_label_and_mean(strongest)}, the worst attack at {format_eps(eps)}"
            yield Flag("attack-helps", f"{what}, leaves more than no attack ({format_return(nominal.mean)})")


def _full_budget(scores: Sequence[Score], nominal: Score, floor: Score) -> Iterator[Flag]:
    if not any(s.eps == 1 for s in scores):
        return
    worst = lowest(scores)
    noise = SIGMAS * (worst.sem**2 + floor.sem**2) ** 0.5
    allowed = floor.mean + 0.1 * max(nominal.mean - floor.mean, 0) + noise
    if worst.mean > allowed:
        what = f"a budget of 1 leaves a return of {format_return(worst.mean)}"
        floor_play = f"always playing the lowest-scored action gives {format_return(floor.mean)}"
        yield Flag("full-budget-survived", f"{what}; {floor_play}")


def _label_and_mean(score: Score) -> str:
    return f"{attack_label(score.attack)} ({format_return(score.mean)})"
