"""Certificates along play: how often the action is proven, and what the worst provably possible actions would earn."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from bcl import stats
from bcl.bounds import Method, certified, full_precision, impossible, input_box, margins, pair_margins
from bcl.envs import VectorEnv
from bcl.errors import BclError, StoreError, counted
from bcl.policies import Policy, as_float

FEW_NEURONS = 4096  # with which CROWN takes milliseconds for a batch of vectors (docs/certificates.md)
USUAL_LENGTH = 1000  # steps an episode is taken to have before one is known


@dataclass(frozen=True)
class Certificate:
    """What was proven at one budget."""

    eps: float
    method: Method
    acr: float
    """Action certification rate: share of visited states whose action no perturbation can change, mean over episodes."""
    acr_per_episode: tuple[float, ...]
    gwc: float
    """Greedy worst case: mean return when each step plays the lowest-scored action not proven impossible. One greedy
    path, so not a true lower bound of the return."""
    gwc_returns: tuple[float, ...]
    nominal: float
    episodes: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Certificate":
        """The inverse of `to_dict`."""
        try:
            lists = {name: tuple(data[name]) for name in ("acr_per_episode", "gwc_returns")}
            return cls(**{f.name: data[f.name] for f in fields(cls)} | lists)
        except (KeyError, TypeError) as error:
            what = f"a stored certificate does not fit ({error})"
            raise StoreError(what, "delete its file to have it proven again") from None


def affordable_method(policy: Policy) -> tuple[Method, str]:
    """The tightest method with which whole episodes can be certified, and why it is that one."""
    neurons = sum(layer.out_features for layer in policy.chain() if isinstance(layer, nn.Linear))
    if len(policy.spec.obs_shape) == 1 and neurons <= FEW_NEURONS:
        return "crown", "the tightest, affordable on a small network"
    if policy.spec.kind == "impala":
        return "ibp", "the cheapest: the others take seconds a state on IMPALA"
    return "crown-ibp", "crown is tighter, but takes seconds a state on images and large networks"


def certify(
    policy: Policy,
    env: VectorEnv,
    eps: float,
    *,
    method: Method = "ibp",
    episodes: int = 20,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Certificate:
    """ACR along the policy's own play and GWC along its own worst play; one episode per copy, so `episodes` copies.
    `progress` is told the share that is done."""
    if env.num_envs != episodes:
        raise BclError(
            f"{counted(episodes, 'episode')} on {counted(env.num_envs, 'copy', 'copies')}",
            "certificates need one copy per episode",
        )
    chain = policy.chain()

    def proven(obs: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = input_box(obs, eps, policy.low, policy.high)
        actions = scores.argmax(dim=1)
        return actions, certified(margins(chain, lower, upper, actions, method), actions, scores)

    def lowest_possible(obs: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = input_box(obs, eps, policy.low, policy.high)
        possible = ~impossible(pair_margins(chain, lower, upper, method), scores)
        return scores.masked_fill(~possible, torch.inf).argmin(dim=1), possible.sum(dim=1) == 1

    with torch.no_grad(), full_precision():
        nominal, rates, steps = _play(policy, env, proven, seed, USUAL_LENGTH, lambda share: progress(share / 2))
        worst, *_ = _play(policy, env, lowest_possible, seed, steps, lambda share: progress((1 + share) / 2))
    return Certificate(
        eps=eps,
        method=method,
        acr=stats.mean(rates),
        acr_per_episode=tuple(rates),
        gwc=stats.mean(worst),
        gwc_returns=tuple(worst),
        nominal=stats.mean(nominal),
        episodes=episodes,
        seed=seed,
    )


def _play(
    policy: Policy,
    env: VectorEnv,
    decide: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    seed: int,
    length: int,
    progress: Callable[[float], None],
) -> tuple[list[float], list[float], int]:
    """One episode per copy: its return, the share of its states in which `decide`'s second answer was yes, and the steps
    that the longest took; `length` is what that is expected to be."""
    obs = env.reset(seed)
    running = torch.ones(env.num_envs, dtype=torch.bool, device=obs.device)
    returns = torch.zeros(env.num_envs, dtype=torch.float64, device=obs.device)
    states, proofs, steps = torch.zeros_like(returns), torch.zeros_like(returns), 0
    while bool(running.any()):
        actions = torch.zeros(env.num_envs, dtype=torch.long, device=obs.device)
        proof = torch.zeros_like(running)
        playing_obs = as_float(obs)[running]
        actions[running], proof[running] = decide(playing_obs, policy(playing_obs))
        env.send(actions)
        step = env.recv()
        live = running & step.playing
        returns += step.reward * live
        states += live
        proofs += live & proof
        running &= ~step.ended
        obs, steps = step.obs, steps + 1
        progress(max(float((~running).double().mean()), min(0.95, steps / length)))
    return returns.tolist(), (proofs / states).tolist(), steps
