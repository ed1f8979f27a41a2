"""Algorithm 1 (`bcl`) and Algorithm 2 (`choose_next`) of the paper (arXiv 2206.10057), with its names.

Pure: training, scoring and the clock are callables, so running again over stored results replays every decision.
Where the paper leaves a choice (its public code jlwu002/BCL automates none of this), a comment says what was chosen.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import floor, inf
from typing import Generic, TypeVar

from bcl.curriculum_rules import INCUMBENT, Candidate, CurriculumResult, Decision, Phase, Rules, RunNumber, Tried
from bcl.errors import counted

P = TypeVar("P")
Returns = Callable[[P, float], float]  # (policy, eps) -> return; eps 0: nominal
LimitReached = Callable[[int, int], str | None]
TARGET_REACHED = "target reached"
ALL_TRAINED = "trained up to the last budget"  # where no threshold says more
TARGET_MISSED = "trained up to the target without meeting the thresholds there"


@dataclass(frozen=True)
class Guess:
    """The run that probably comes next."""

    phase: Phase
    number: int
    starts_from: int | None
    """Where it is of the next phase: which run of this one, or 0, the bootstrap."""


@dataclass(frozen=True, eq=False)
class Scored(Generic[P]):
    """A policy and its returns, each played when it is first asked for."""

    policy: P
    play: Returns[P]
    scores: dict[float, float] = field(default_factory=dict)

    def at(self, eps: float) -> float:
        if eps not in self.scores:
            self.scores[eps] = self.play(self.policy, eps)
        return self.scores[eps]


def bcl(
    bootstrap: P,
    rules: Rules,
    *,
    train: Callable[[P, Phase], Iterator[P]],
    score: Returns[P],
    decided: Callable[[Decision], None] = lambda decision: None,
    limit_reached: LimitReached = lambda phase, run: None,
    training_score: Returns[P] | None = None,
) -> CurriculumResult[P]:
    """Algorithm 1. `train` yields the K runs in order and is closed once no more are wanted. `limit_reached` gives a
    reason to stop; it is asked after run k of phase i, if another could follow, and after a phase (k = 0).
    `training_score`, returns under the training attack, adds PPO's rule: stop when that attack is too weak."""
    f = best = started = Scored(bootstrap, score)
    rules = rules.in_returns(f.at)
    phase = Phase(0, rules.eps[0], rules.eps[0], 0)
    kept = Candidate(INCUMBENT, None, None, f.scores)
    candidates = [kept]
    best_phase = 0
    failures = 0
    cut: str | None = None
    decisions: list[Decision] = []
    while True:
        stop, following, tried = _after(phase, f, kept, cut, failures, started, rules, training_score)
        stop = stop or limit_reached(phase.index, 0)
        known = tuple(replace(one, scores=dict(one.scores)) for one in candidates)
        after = None if stop else following
        thresholds = (rules.nominal_threshold, rules.attacked_threshold)
        decisions.append(Decision(phase, thresholds, known, kept.run, best_phase, tuple(tried), after, stop))
        decided(decisions[-1])
        if stop:
            return CurriculumResult(f.policy, best.policy, best_phase, stop, tuple(decisions))

        phase = Phase(following, rules.eps[following - 1], rules.eps[following], rules.runs)
        runs: dict[RunNumber, Scored[P]] = {INCUMBENT: f} if rules.ratchet else {}
        trained = train(f.policy, phase)
        try:
            for k, f_k in enumerate(islice(trained, rules.runs), 1):
                runs[k] = Scored(f_k, score)
                if k >= rules.min_runs and _meets(runs[k], phase.eps, rules):
                    break
                cut = limit_reached(phase.index, k) if k < rules.runs else None
                if cut:
                    break
        finally:
            getattr(trained, "close", lambda: None)()
        candidates = as_candidates(runs, phase, rules)
        kept = _best(candidates, rules)
        f = runs[kept.run]
        # In the paper only the thresholds count; under the ratchet, a better policy is progress too.
        progress = kept.met or (rules.ratchet and kept.run != INCUMBENT)
        failures = 0 if progress else failures + 1
        if _is_better(f, best, kept, rules):
            best = f
            best_phase = phase.index


def _after(
    phase: Phase,
    f: Scored[P],
    kept: Candidate,
    cut: str | None,
    failures: int,
    started: Scored[P],
    rules: Rules,
    training_score: Returns[P] | None,
) -> tuple[str | None, int, list[Tried]]:
    """Why the curriculum stops after a phase, if it does, the next phase, and the budgets tried; `cut`: the limit that
    its runs reached."""
    if cut:
        return cut, 0, []
    if failures >= (rules.failed_phases or inf):
        return f"{counted(failures, 'failing phase')} in a row", 0, []
    # Before any training too. Always above i: a phase never comes again, even when all its runs failed.
    following, tried = choose_next(f, phase.index, rules)
    stop = _reached(following, phase, kept, rules)
    if not stop and training_score and phase.index > 0:
        stop = _too_weak(f, started, training_score, rules, tried)
    return stop, following, tried


def choose_next(f: Scored[P], j: int, rules: Rules) -> tuple[int, list[Tried]]:
    """Algorithm 2 after phase j: the next phase l, from eps_{l-1} to eps_l (L + 1: done), and the budgets tried."""
    L = len(rules.eps) - 1
    tried: list[Tried] = []

    def robust(budget: float, threshold: float | None) -> bool:
        if threshold is None:
            return True
        tried.append(Tried(budget, f.at(budget), f.at(budget) >= threshold))
        return tried[-1].robust

    i = j + 1
    if rules.skip > 0 and i <= L and robust(0.0, rules.nominal_threshold):  # always next needs no EvalRobust
        if rules.robust_to == "every":  # the smallest that f is not robust to; if none, L + 1, which the box omits
            above = range(j + 1, L + 1)
            i = next((i for i in above if not robust(rules.eps[i], rules.attacked_threshold)), L + 1)
        else:  # one above the largest that f is robust to
            below = range(L, j, -1)
            i = next((i for i in below if robust(rules.eps[i], rules.attacked_threshold)), j) + 1
    return j + 1 + floor(rules.skip * (i - j - 1) + 1e-9), tried  # Select over {j+1..i}


def likely_next(phase: Phase, k: int, rules: Rules, succeeds: bool, judged: Sequence[Candidate] = ()) -> Guess | None:
    """The run that Algorithm 1 asks for after run k of a phase, as far as it can be told before run k is judged;
    `succeeds`: it is expected to meet the thresholds; `judged`: the K - 1 runs before the last. None: there is none, or
    too many could be it."""

    def after(kept: int) -> Guess | None:
        following = phase.index + 1
        if following >= len(rules.eps):
            return None
        return Guess(Phase(following, rules.eps[following - 1], rules.eps[following], rules.runs), 1, kept)

    has_thresholds = rules.nominal_threshold is not None or rules.attacked_threshold is not None
    expected = has_thresholds and succeeds
    if phase.runs <= 1 and not rules.ratchet:
        return after(k)  # whatever its scores are, it is kept
    if k < phase.runs and (k < rules.min_runs or not expected):
        return Guess(phase, k + 1, None)
    if expected and rules.min_runs == 1:
        return after(k)
    # With K_min above 1 a run that is expected to meet the thresholds need not be like the others; under the ratchet
    # the incumbent may stay.
    if not judged or expected or rules.ratchet:
        return None
    best = _best(judged, rules).run  # if runs are alike, the best of all K in K - 1 of K cases
    assert best != INCUMBENT, "without a ratchet none competes"
    return after(best)


def _reached(following: int, phase: Phase, kept: Candidate, rules: Rules) -> str | None:
    """Why there is no next phase; eps_{l-1} is the target."""
    last = len(rules.eps) - 1
    if following <= last:
        return None
    if phase.index == last and kept.met is False:
        return TARGET_MISSED
    return ALL_TRAINED if rules.nominal_threshold is None and rules.attacked_threshold is None else TARGET_REACHED


def _meets(f: Scored[P], eps: float, rules: Rules) -> bool | None:
    """Whether all thresholds that are set are met, each of them played; none: none is set, and nothing stops early."""
    thresholds = {0.0: rules.nominal_threshold, eps: rules.attacked_threshold}
    met = [f.at(at) >= threshold for at, threshold in thresholds.items() if threshold is not None]
    return all(met) if met else None


def as_candidates(runs: dict[RunNumber, Scored[P]], phase: Phase, rules: Rules) -> list[Candidate]:
    """What a phase chooses from."""
    if not runs.keys() - {INCUMBENT}:
        raise ValueError(f"phase {phase.index} trained no run")
    around = () if rules.value == "nominal" else (phase.eps, phase.start)
    met = {k: _meets(f, phase.eps, rules) for k, f in runs.items()}
    V = {k: _value(f, around, rules) if len(runs) > 1 else None for k, f in runs.items()}
    return [Candidate(k, met[k], V[k], f.scores) for k, f in runs.items()]


def _best(candidates: Sequence[Candidate], rules: Rules) -> Candidate:
    """The box has one threshold on V_k, so a run that meets it wins. With two: met first, then V_k, then order. Under
    the ratchet V_k alone, or a run could win with less. Over the runs done, not all K."""
    return max(candidates, key=lambda c: (c.met is True and not rules.ratchet, c.value or 0.0))


def _value(f: Scored[P], around: Sequence[float], rules: Rules) -> float:
    """V_k = R_nominal + (R_adv at eps_i + R_adv at eps_{i-1}) / 2; the final score has the table's three budgets."""

    def part(eps: float, threshold: float | None) -> float:
        if rules.value != "normalised" or threshold is None:
            return f.at(eps)
        return (f.at(eps) - rules.floor) / (threshold - rules.floor)

    attacked = sum(part(eps, rules.attacked_threshold) for eps in around)
    return part(0.0, rules.nominal_threshold) + (attacked / len(around) if around else 0.0)


def _is_better(f: Scored[P], best: Scored[P], kept: Candidate, rules: Rules) -> bool:
    """See `Rules.scored_at`."""
    if rules.scored_at:
        return _value(f, rules.scored_at, rules) > _value(best, rules.scored_at, rules)
    return kept.met is not False


def _too_weak(
    f: Scored[P], started: Scored[P], training_score: Returns[P], rules: Rules, tried: list[Tried]
) -> str | None:
    """The training attack leaves nothing to learn from; not so where there is little left to lose."""
    target = rules.eps[-1]
    nominal = f.at(0.0)
    left = training_score(f.policy, target)
    plays = nominal > rules.floor and nominal - rules.floor >= rules.weak_attack_share * (started.at(0.0) - rules.floor)
    weak = plays and left - rules.floor >= rules.weak_attack_share * (nominal - rules.floor)
    tried.append(Tried(target, left, weak, "training attack"))
    return f"the training attack is too weak: it leaves {left:g} of {nominal:g} at the target" if weak else None
