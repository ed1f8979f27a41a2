"""Algorithm 1 (`bcl`) and Algorithm 2 (`choose_next`) of the paper (arXiv 2206.10057), with its names.

Pure: training, scoring and the clock are callables, so running again over stored results replays every decision.
Where the paper leaves a choice (its public code jlwu002/BCL automates none of this), a comment says what was chosen.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from math import ceil, floor, inf
from typing import Final, Generic, Literal, TypeVar

from bcl.errors import ConfigError, counted

P = TypeVar("P")
Score = Callable[[P, float], float]  # (policy, eps) -> return; eps 0: nominal
Run = int | Literal["incumbent"]  # k = 1..K, or the policy that the phase started from
INCUMBENT: Final = "incumbent"
TARGET_REACHED = "target reached"
ALL_TRAINED = "trained up to the last budget"  # where no threshold says more
MOST_BUDGETS = 1000
LEARNED = 0.8  # share of the expected return, counted from the floor
TARGET_MISSED = "trained up to the target without meeting the thresholds there"


@dataclass(frozen=True)
class Rules:
    """What decides; the defaults are NCL: every budget in turn, one run each, no thresholds."""

    eps: tuple[float, ...]
    """eps_0 < eps_1 < ... < eps_L, as `budgets` lists them."""
    runs: int = 1
    """K."""
    min_runs: int = 1
    """K_min; BCL-RADIAL's is not in the paper, its text implies 1."""
    nominal: float | None = None
    """V_nom, a return; none: no such condition."""
    attacked: float | None = None
    """V_adv, a return under attack at the budget in question; none: no such condition."""
    adaptive: bool = False
    """Read both thresholds as shares of the bootstrap's nominal return, counted from `floor`."""
    floor: float = 0.0
    """The game's lowest return (Pong: -21), from which shares and normalised values count."""
    expected: float | None = None
    """The return of an agent that has learned the game, which adaptive thresholds need; none: not known."""
    value: Literal["raw", "normalised", "nominal"] = "raw"
    """V_k: the paper's; the same with each return as a share of its threshold; or R_nominal alone (BCL-RADIAL)."""
    skip: float = 0.0
    """Select, as a share of the possible skip: 0 always next (NCL, BCL-C), 1 maximum opportunistic skipping (MOS)."""
    robust_to: Literal["every", "any"] = "every"
    """Skip up to the smallest budget not robust (the paper's box), or past the largest robust one (its text)."""
    give_up: int | None = None
    """M: stop after so many failing phases in a row; none: never."""
    ratchet: bool = False
    """Beyond the paper: the incumbent competes with the runs of a phase."""
    toothless: float = 0.95
    """The training attack is useless once it leaves this share of R_nominal at the target (the paper: "near")."""
    judge_at: tuple[float, ...] = ()
    """The best policy on the path has the highest R_nominal + mean R_adv at these budgets, the paper's final score;
    empty: it is the last one that met its phase's thresholds."""

    def __post_init__(self) -> None:
        set_ones = [t for t in (self.nominal, self.attacked) if t is not None]
        above_floor = len(set_ones) == 2 and min(set_ones) > (0.0 if self.adaptive else self.floor)
        for kept, what, hint in (
            (1 <= self.min_runs <= self.runs, "not 1 <= min_runs <= runs", "set both, min_runs at most runs"),
            (0 <= self.skip <= 1, "skip is outside [0, 1]", "0 is always next, 1 the maximum"),
            (self.skip == 0 or self.attacked is not None, "skipping needs a threshold under attack", "set it"),
            (not self.give_up or set_ones or self.ratchet, "giving up needs a threshold", "set one, or the ratchet"),
            (self.value != "normalised" or above_floor, "normalised values need both thresholds, above the floor", ""),
        ):
            if not kept:
                raise ConfigError(f"curriculum: {what}", hint)


@dataclass(frozen=True)
class Phase:
    """What to train: `runs` times from the same policy, the budget rising from `start` = eps_{i-1} to `eps` = eps_i."""

    index: int
    start: float
    eps: float
    runs: int


@dataclass(frozen=True)
class Candidate:
    """One policy a phase could keep."""

    run: Run
    met: bool | None
    """Whether it met the thresholds at the phase's budget; none: there are none."""
    value: float | None
    """V_k; none where there was nothing to choose from."""
    scores: dict[float, float]
    """Returns by budget, as far as the phase needed them."""


@dataclass(frozen=True)
class Tried:
    """EvalRobust at one budget; at 0 the nominal condition."""

    eps: float
    score: float
    robust: bool
    by: Literal["score", "training attack"] = "score"


@dataclass(frozen=True)
class Decision:
    """All that was decided after a phase, as plain data; phase 0 is the bootstrap. Either `next` or `stop` is set."""

    phase: Phase
    thresholds: tuple[float | None, float | None]
    candidates: tuple[Candidate, ...]
    kept: Run
    best_phase: int
    tried: tuple[Tried, ...]
    next: int | None
    stop: str | None


@dataclass(frozen=True)
class Result(Generic[P]):
    """How a curriculum ended."""

    policy: P
    """Algorithm 1's: what the last phase kept."""
    best: P
    """The best on the path, bootstrap included (see `Rules.judge_at`): what NCL and open-ended rows report."""
    best_phase: int
    stopped: str
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, eq=False)
class _Agent(Generic[P]):
    policy: P
    score: Score[P]
    scores: dict[float, float] = field(default_factory=dict)

    def at(self, eps: float) -> float:
        if eps not in self.scores:
            self.scores[eps] = self.score(self.policy, eps)
        return self.scores[eps]


def bcl(
    bootstrap: P,
    rules: Rules,
    *,
    train: Callable[[P, Phase], Iterator[P]],
    score: Score[P],
    decided: Callable[[Decision], None] = lambda decision: None,
    out_of_budget: Callable[[int, int], str | None] = lambda phase, run: None,
    training_score: Score[P] | None = None,
) -> Result[P]:
    """Algorithm 1. `train` yields the K runs in order and is closed once no more are wanted. `out_of_budget` gives a
    reason to stop; it is asked after run k of phase i, if another could follow, and after a phase (k = 0).
    `training_score`, returns under the training attack, adds PPO's rule: stop when it has no teeth."""
    f = best = started = _Agent(bootstrap, score)
    rules = _fixed(rules, f)
    eps, L, K, K_min, M = rules.eps, len(rules.eps) - 1, rules.runs, rules.min_runs, rules.give_up or inf
    phase, kept = Phase(0, eps[0], eps[0], 0), Candidate(INCUMBENT, None, None, {})
    candidates: tuple[Candidate, ...] = (kept,)
    runs: dict[Run, _Agent[P]] = {INCUMBENT: f}
    best_phase, failures, cut, decisions = 0, 0, None, list[Decision]()
    while True:
        i, following, tried, stop = phase.index, L + 1, list[Tried](), cut
        if not stop and failures >= M:
            stop = f"{counted(failures, 'failing phase')} in a row"
        if not stop:
            # Before any training too. Always above i: a phase never comes again, even when all its runs failed.
            following, tried = choose_next(f, i, rules)
            if following > L:  # eps_{l-1} is the target
                judged = rules.nominal is not None or rules.attacked is not None
                stop = TARGET_REACHED if judged else ALL_TRAINED
                stop = TARGET_MISSED if i == L and kept.met is False else stop
            elif training_score and i > 0:
                stop = _toothless(f, started, training_score, rules, tried)
        stop = stop or out_of_budget(i, 0)
        thresholds, after = (rules.nominal, rules.attacked), None if stop else following
        known = tuple(replace(candidate, scores=dict(runs[candidate.run].scores)) for candidate in candidates)
        decisions += [Decision(phase, thresholds, known, kept.run, best_phase, tuple(tried), after, stop)]
        decided(decisions[-1])
        if stop:
            return Result(f.policy, best.policy, best_phase, stop, tuple(decisions))

        phase = Phase(following, eps[following - 1], eps[following], K)
        runs = {INCUMBENT: f} if rules.ratchet else {}
        trained = train(f.policy, phase)
        try:
            for k, f_k in enumerate(islice(trained, K), 1):
                runs[k] = _Agent(f_k, score)
                if k >= K_min and _meets(runs[k], phase.eps, rules):
                    break
                if k < K and (cut := out_of_budget(phase.index, k)):
                    break
        finally:
            getattr(trained, "close", lambda: None)()
        candidates = _judged(runs, phase, rules)
        # The box has one threshold on V_k, so a run that meets it wins. With two: met first, then V_k, then order. Under
        # the ratchet V_k alone, or a run could win with less. Over the runs done, not all K.
        kept = max(candidates, key=lambda c: (c.met is True and not rules.ratchet, c.value or 0.0))
        f = runs[kept.run]
        # In the paper only the thresholds count; under the ratchet, a better policy is progress too.
        failures = 0 if kept.met or (rules.ratchet and kept.run != INCUMBENT) else failures + 1
        at = rules.judge_at
        if _value(f, at, rules) > _value(best, at, rules) if at else kept.met is not False:
            best, best_phase = f, phase.index


def choose_next(f: _Agent[P], j: int, rules: Rules) -> tuple[int, list[Tried]]:
    """Algorithm 2 after phase j: the next phase l, from eps_{l-1} to eps_l (L + 1: done), and the budgets tried."""
    eps, L, tried = rules.eps, len(rules.eps) - 1, list[Tried]()

    def robust(budget: float, threshold: float | None) -> bool:
        if threshold is None:
            return True
        tried.append(Tried(budget, f.at(budget), f.at(budget) >= threshold))
        return tried[-1].robust

    i = j + 1
    if rules.skip > 0 and i <= L and robust(0.0, rules.nominal):  # always next needs no EvalRobust
        if rules.robust_to == "every":  # the smallest that f is not robust to; if none, L + 1, which the box omits
            i = next((i for i in range(j + 1, L + 1) if not robust(eps[i], rules.attacked)), L + 1)
        else:  # one above the largest that f is robust to
            i = next((i for i in range(L, j, -1) if robust(eps[i], rules.attacked)), j) + 1
    return j + 1 + floor(rules.skip * (i - j - 1) + 1e-9), tried  # Select over {j+1..i}


def budgets(start: float, target: float | None, increment: float) -> tuple[float, ...]:
    """eps_0..eps_L: start, start + increment, ..., exactly the target; open-ended (none) up to 1, where images end."""
    end = 1.0 if target is None else target
    # As fractions: the float 9/255 + 24/255 is not the float 33/255, and would be another file and label.
    low, high, step = (Fraction(x).limit_denominator(10**9) for x in (start, end, increment))
    if not (low < high and step > 0):
        raise ConfigError(f"no budgets from {start:g} to {end:g} in steps of {increment:g}", "start below the target")
    if (high - low) / step > MOST_BUDGETS:
        what = f"{float((high - low) / step):.3g} budgets from {start:g} to {end:g} in steps of {increment:g}"
        raise ConfigError(f"{what} are too many", "give a larger curriculum.increment")
    between = range(1, ceil((high - low) / step - Fraction(1, 10**6)))  # a rounding below the target is the target
    return (start, *(float(low + k * step) for k in between), end)


def _meets(f: _Agent[P], eps: float, rules: Rules) -> bool | None:
    """Every threshold that is set, all of them played, so that decisions have both returns; none where none is set, and
    then nothing stops early."""
    thresholds = {0.0: rules.nominal, eps: rules.attacked}
    met = [f.at(at) >= threshold for at, threshold in thresholds.items() if threshold is not None]
    return all(met) if met else None


def _judged(runs: dict[Run, _Agent[P]], phase: Phase, rules: Rules) -> tuple[Candidate, ...]:
    if not runs.keys() - {INCUMBENT}:
        raise ValueError(f"phase {phase.index} trained no run")
    around = () if rules.value == "nominal" else (phase.eps, phase.start)
    met = {k: _meets(f, phase.eps, rules) for k, f in runs.items()}
    V = {k: _value(f, around, rules) if len(runs) > 1 else None for k, f in runs.items()}
    return tuple(Candidate(k, met[k], V[k], dict(f.scores)) for k, f in runs.items())


def _value(f: _Agent[P], around: Sequence[float], rules: Rules) -> float:
    """V_k = R_nominal + (R_adv at eps_i + R_adv at eps_{i-1}) / 2; the final score has the table's three budgets."""

    def part(eps: float, threshold: float | None) -> float:
        if rules.value != "normalised" or threshold is None:
            return f.at(eps)
        return (f.at(eps) - rules.floor) / (threshold - rules.floor)

    attacked = sum(part(eps, rules.attacked) for eps in around)
    return part(0.0, rules.nominal) + (attacked / len(around) if around else 0.0)


def _toothless(
    f: _Agent[P], started: _Agent[P], training_score: Score[P], rules: Rules, tried: list[Tried]
) -> str | None:
    """Nothing is left to learn from the training attack; not so where there is little left to lose."""
    target, nominal = rules.eps[-1], f.at(0.0)
    left = training_score(f.policy, target)
    plays = nominal > rules.floor and nominal - rules.floor >= rules.toothless * (started.at(0.0) - rules.floor)
    useless = plays and left - rules.floor >= rules.toothless * (nominal - rules.floor)
    tried.append(Tried(target, left, useless, "training attack"))
    return f"the training attack has lost its teeth: {left:g} of {nominal:g} left at the target" if useless else None


def _fixed(rules: Rules, bootstrap: _Agent[P]) -> Rules:
    """Adaptive thresholds, which the paper suggests for future work, turned into returns."""
    if not rules.adaptive:
        return rules
    plays, scale = f"the bootstrap's nominal return {bootstrap.at(0.0):g}", bootstrap.at(0.0) - rules.floor
    if scale <= 0:
        what = f"{plays} is not above the floor {rules.floor:g}, so no share of it can be a threshold"
        hint = "start anew with a lower --curriculum.floor, and --init with the last stage's policy.safetensors to keep that"
        raise ConfigError(what, hint)
    if rules.expected is not None and scale < LEARNED * (rules.expected - rules.floor):
        what = f"{plays} is far below the {rules.expected:g} that agents of this game reach"
        hint = "start anew with another --seed, more steps or --init, or with --curriculum.expected_return none"
        raise ConfigError(f"{what}, so shares of it are no thresholds", hint)
    nominal, attacked = (None if t is None else rules.floor + t * scale for t in (rules.nominal, rules.attacked))
    return replace(rules, nominal=nominal, attacked=attacked, adaptive=False)
