"""One cell of an evaluation: play episodes on all copies of a game at once while an attack changes what is seen."""

import copy
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Generator, Tensor, nn

from bcl.attacks import Attack, CrossEntropy, perturb
from bcl.attacks.objectives import ascent
from bcl.bounds import Method, certified, full_precision, input_box, margins
from bcl.envs import Step, VectorEnv
from bcl.errors import BclError
from bcl.evaluation.courses import Courses, different
from bcl.evaluation.score import NO_ATTACK, Score
from bcl.graphs import Graphed
from bcl.policies import Policy, as_float

Protocol = Literal["fixed", "first"]
Precision = Literal["fast", "full"]
Progress = Callable[[int, int], None]
PROBE_EVERY = 32  # steps between looks at gradients and certificates
TOLERANCE = 1e-6  # rounding of a perturbation in float32


def evaluate(
    policy: Policy,
    env: VectorEnv,
    attack: Attack | None,
    eps: float,
    *,
    episodes: int,
    seed: int = 0,
    protocol: Protocol = "fixed",
    precision: Precision = "fast",
    choose: Callable[[Tensor], Tensor] | None = None,
    progress: Progress = lambda done, of: None,
) -> Score:
    """Greedy play under attack.

    `fixed`: every copy plays a number of episodes set beforehand, so that short episodes are not over-counted.
    `first`: the first `episodes` to finish on any copy count, in order of finishing, as the reference does on Procgen.
    `fast`: on a GPU attacks search in half precision, which sees steps of 1/8 gray level; actions are always decided in
    full precision. `choose` maps scores to actions instead of the argmax.
    """
    if episodes < 1:
        raise BclError(f"{episodes} episodes cannot be judged", "ask for at least 1")
    if protocol not in get_args(Protocol) or precision not in get_args(Precision):
        raise BclError(f"unknown protocol '{protocol}' or precision '{precision}'", "fixed or first; fast or full")
    attack = attack if eps > 0 else None
    decide = Decision.of(policy, attack, eps, seed, precision, choose)
    book = _Book(env.num_envs, episodes, protocol, next(policy.parameters()).device)
    obs = env.reset(seed)
    step_count = 0
    while not book.complete:
        decided = decide(obs)
        if step_count % PROBE_EVERY == 0:
            refuse_over_budget(decided.distance.amax(), eps, attack)
            decide.probe(obs, decided.actions, book.counting)
        env.send(decided.actions)
        book.watch(decided.actions != decided.clean, decided.distance)
        step = env.recv()
        book.add(step)
        obs = step.obs
        step_count += 1
        if step_count % PROBE_EVERY == 0:
            progress(book.finished, episodes)
    refuse_over_budget(book.largest, eps, attack)
    return Score(
        attack=NO_ATTACK if attack is None else repr(attack),
        eps=eps,
        returns=tuple(book.returns()),
        lengths=tuple(book.lengths()),
        changed=(book.changed / book.steps.clamp(min=1)).item(),
        max_perturbation=book.largest.item(),
        zero_gradient=decide.zero_gradients / max(decide.probed, 1),
        seed=seed,
        protocol=protocol,
        precision="half" if decide.searches_half else "full",
        stochastic=decide.stochastic,
        courses=book.courses(),
    )


class SearchForm(nn.Module):
    """What attacks look at: the chain whose scores differ between actions as the policy's do (a dueling value stream
    cancels in every objective of our suites, so it is not computed), in half precision and channels last where fast."""

    def __init__(self, policy: Policy, half: bool) -> None:
        super().__init__()
        self.is_half = half
        self._dtype = torch.float16 if half else next(policy.parameters()).dtype
        self._chain = policy.chain()
        if half:
            self._chain = copy.deepcopy(self._chain).half()
            nn.utils.convert_conv2d_weight_memory_format(self._chain, torch.channels_last)
        self.low, self.high = policy.low, policy.high

    def forward(self, obs: Tensor) -> Tensor:
        return self._chain(obs.to(self._dtype)).to(obs.dtype)


class Decided(NamedTuple):
    """What N copies do next, and why. On a GPU the next call of `Decision` writes over it."""

    actions: Tensor  # (N,)
    clean: Tensor  # (N,) actions on the clean observations
    seen: Tensor  # (N, *obs_shape) what the attack showed
    distance: Tensor  # (N,) how far each observation was moved


class Decision:
    """Observations in, actions out; on a GPU one captured graph, elsewhere the same code run eagerly."""

    def __init__(
        self,
        policy: Policy,
        searched: "SearchForm",
        attack: Attack | None,
        eps: float,
        generator: Generator,
        choose: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self._policy, self._searched, self._attack, self._eps = policy, searched, attack, eps
        # Where gradients are looked for: through the whole policy, what rounding leaves of a dueling value stream would hide
        # that nothing else has any.
        self._exact = SearchForm(policy, half=False)
        self._generator = generator
        self._choose = choose or (lambda scores: scores.argmax(dim=1))
        self._graph: Graphed[Decided] | None = None
        self.probed = self.zero_gradients = 0
        self.stochastic = False
        self.searches_half = searched.is_half

    @classmethod
    def of(
        cls,
        policy: Policy,
        attack: Attack | None,
        eps: float,
        seed: int,
        precision: Precision,
        choose: Callable[[Tensor], Tensor] | None = None,
    ) -> "Decision":
        """As an evaluation with these arguments decides."""
        device = next(policy.parameters()).device
        images = len(policy.spec.obs_shape) == 3  # in [0, 1]; half precision would be too coarse for larger numbers
        searched = SearchForm(policy, half=device.type == "cuda" and images and precision == "fast")
        return cls(policy, searched, attack, eps, Generator(device).manual_seed(seed), choose)

    def __call__(self, obs: Tensor) -> Decided:
        """What every copy does on these observations."""
        if obs.device.type != "cuda" or self._attack is None:
            return self._run(obs)
        if self._graph is None:
            self._input = torch.empty_like(obs)  # the fixed place from which the graph reads
            self._graph = Graphed(self._run_input, self._generator, enabled=True)
        self._input.copy_(obs)
        return self._graph()

    def _run_input(self) -> Decided:
        return self._run(self._input)

    def _run(self, obs: Tensor) -> Decided:
        clean_obs = as_float(obs)
        with torch.no_grad(), full_precision():
            clean = self._choose(self._policy(clean_obs))
        if self._attack is None:
            return Decided(clean, clean, clean_obs, clean_obs.new_zeros(len(obs)))
        eager = obs.device.type != "cuda"
        seen = perturb(self._attack, self._searched, clean_obs, self._eps, self._generator, check=eager)
        with torch.no_grad(), full_precision():
            actions = self._choose(self._policy(seen))
        return Decided(actions, clean, seen, (seen - clean_obs).abs().flatten(1).amax(dim=1))

    def probe(self, obs: Tensor, actions: Tensor, counting: Tensor) -> None:
        """Look for vanished gradients, for chance in the policy, and for a certified action that was changed."""
        if self._attack is None:
            return
        obs, actions = as_float(obs)[counting], actions[counting]
        if not len(obs):
            return
        with torch.no_grad():
            scores, again = self._policy(obs), self._policy(obs)
            searched = self._searched(obs)
        if not searched.isfinite().all():
            raise BclError("the policy's scores overflow in half precision", "evaluate with precision full")
        self.stochastic |= not torch.equal(scores, again)
        self.probed += len(obs)
        self.zero_gradients += int(without_gradient(self._exact, obs).sum())
        if not self.stochastic:  # else the action was another draw's than the scores
            _refuse_broken_certificate(self._policy, obs, self._eps, scores, actions, self._attack)


def without_gradient(searched: SearchForm, obs: Tensor) -> Tensor:
    """(N,) where the gradient of the cross-entropy is zero in every element: attacks that climb it cannot begin there."""
    _, _, gradient = ascent(CrossEntropy(), searched, obs, searched(obs).detach())
    return (gradient.flatten(1) == 0).all(dim=1)


def refuse_over_budget(largest: Tensor, eps: float, attack: Attack | None) -> None:
    """Stop at a perturbation that no adversary with this budget could make."""
    if not float(largest) <= eps + TOLERANCE:  # NaN included
        raise BclError(f"{attack} moved an observation by {largest:.6g} at eps {eps:.6g}", "this attack is broken")


def _refuse_broken_certificate(
    policy: Policy, obs: Tensor, eps: float, scores: Tensor, actions: Tensor, attack: Attack
) -> None:
    try:
        with torch.no_grad(), full_precision():
            lower, upper = input_box(obs, eps, policy.low, policy.high)
            clean = scores.argmax(dim=1)
            method: Method = "ibp" if policy.spec.kind == "impala" else "crown-ibp"  # seconds a state on IMPALA
            proven = certified(margins(policy.chain(), lower, upper, clean, method), clean, scores)
    except BclError:  # a layer without bounds: nothing is certified, so nothing can be broken
        return
    if bool((proven & (actions != clean)).any()):
        raise BclError(
            f"{attack} changed an action that was certified at eps {eps:.6g}", "the certificate is wrong: report it"
        )


class _Book:
    """Which steps and episodes count. Sums stay on the device; the host looks at rewards and ends."""

    def __init__(self, num_envs: int, episodes: int, protocol: Protocol, device: torch.device) -> None:
        self._episodes, self._protocol = episodes, protocol
        share, extra = divmod(episodes, num_envs)
        quota = torch.full((num_envs,), share)
        quota[:extra] += 1
        self._quota = quota if protocol == "fixed" else torch.full((num_envs,), episodes)
        self._finished: list[list[_Episode]] = [[] for _ in range(num_envs)]
        self._in_order: list[_Episode] = []
        self.counting = (self._quota > 0).to(device)
        self._length = torch.zeros(num_envs, dtype=torch.long, device=device)
        self._return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._courses = Courses(num_envs, device)
        self.changed = torch.zeros((), dtype=torch.long, device=device)
        self.steps = torch.zeros((), dtype=torch.long, device=device)
        self.largest = torch.zeros((), device=device)

    @property
    def finished(self) -> int:
        """Episodes that count so far."""
        return len(self._in_order)

    @property
    def complete(self) -> bool:
        """Whether every episode that counts is done."""
        return self.finished >= self._episodes

    def watch(self, changed: Tensor, distance: Tensor) -> None:
        """Note what the attack did, before the step is played."""
        self._changed_now, self._distance_now = changed, distance

    def add(self, step: Step) -> None:
        """Note what came of the step."""
        live = self.counting & step.playing
        self.steps += live.sum()
        self.changed += (live & self._changed_now).sum()
        self.largest = torch.maximum(self.largest, (self._distance_now * live).amax())
        self._return += step.reward * live
        self._length += live
        rewarded = live & (step.reward != 0)
        if bool(rewarded.any()):
            self._courses.follow(step, rewarded, self._length)
        over = live & step.ended
        if bool(over.any()):
            for i in over.nonzero().flatten().tolist():
                self._finish(i, _Episode(float(self._return[i]), int(self._length[i]), int(self._courses.numbers[i])))
            self._return[over] = 0
            self._length[over] = 0
            self._courses.restart(over)

    def _finish(self, copy: int, episode: "_Episode") -> None:
        if self.complete:
            return
        self._finished[copy].append(episode)
        self._in_order.append(episode)
        if len(self._finished[copy]) >= self._quota[copy]:
            self.counting[copy] = False

    def _counted(self) -> "list[_Episode]":
        if self._protocol == "first":
            return self._in_order[: self._episodes]
        return [episode for finished in self._finished for episode in finished]

    def returns(self) -> list[float]:
        """Returns that count, copy by copy, or in order of finishing."""
        return [episode.value for episode in self._counted()]

    def lengths(self) -> list[int]:
        """Their lengths in agent steps."""
        return [episode.length for episode in self._counted()]

    def courses(self) -> int:
        """How many different ones they are."""
        return different([episode.course for episode in self._counted()])


class _Episode(NamedTuple):
    value: float  # its return
    length: int
    course: int
