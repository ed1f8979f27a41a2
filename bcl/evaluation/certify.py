"""Certificates along play: ACR and GWC."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from bcl import stats
from bcl.attacks.alike import first_alike
from bcl.bounds import METHODS, Method, certified, full_precision, impossible, input_box, margins, pair_margins
from bcl.envs import VectorEnv
from bcl.evaluation.plan import Cell, Conditions, Plan
from bcl.evaluation.play import Group, SharedEnv, play, refuse_broken_scores
from bcl.evaluation.slot import Decided, Episode, Slot
from bcl.policies import Policy, as_float
from bcl.runs.results import CertificatesFolder
from bcl.runs.store import fitting
from bcl.settings import format_eps, format_return, typed_values

FEW_NEURONS = 4096  # with which CROWN takes milliseconds for a batch of vectors (docs/certificates.md)
USUAL_LENGTH = 1000  # steps an episode is taken to have before one is known


@dataclass(frozen=True)
class Certificate:
    """What was proven at one budget."""

    eps: float
    method: Method
    acr: float
    """Action certification rate: share of visited states whose action is proven, mean over episodes."""
    acr_per_episode: tuple[float, ...]
    gwc: float
    """Greedy worst case: mean return by the lowest-scored actions not proven impossible; no true lower bound."""
    gwc_returns: tuple[float, ...]
    nominal: float
    episodes: int
    seed: int

    @property
    def at_worst(self) -> float:
        """The greedy worst case for people: an adversary may also do nothing."""
        return min(self.gwc, self.nominal)

    def __str__(self) -> str:
        return f"{self.method} at {format_eps(self.eps)}: ACR {self.acr:.1%}, GWC {format_return(self.at_worst)}"

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self)}


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
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Certificate:
    """ACR along the policy's own play, GWC along its worst, an episode of each copy; `progress` gets the share done."""
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
        usual = _play(policy, env, proven, seed, USUAL_LENGTH, lambda share: progress(share / 2))
        steps = max(episode.length for episode in usual)
        worst = _play(policy, env, lowest_possible, seed, steps, lambda share: progress((1 + share) / 2))
    rates = [episode.noted / episode.length for episode in usual]
    returns = tuple(episode.value for episode in worst)
    return Certificate(
        eps=eps,
        method=method,
        acr=stats.mean(rates),
        acr_per_episode=tuple(rates),
        gwc=stats.mean(returns),
        gwc_returns=returns,
        nominal=stats.mean([episode.value for episode in usual]),
        episodes=env.num_envs,
        seed=seed,
    )


def _play(
    policy: Policy,
    env: VectorEnv,
    rule: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    seed: int,
    length: int,
    progress: Callable[[float], None],
) -> list[Episode]:
    """One episode per copy; noted: where the rule's second answer was yes. `length`: expected, of the longest."""
    plan = Plan(env.game, env.num_envs, seed, num_envs=env.num_envs)
    slot = Slot(Cell(None, 0.0), plan, policy.device)

    def decide(obs: Tensor) -> Decided:
        counting = torch.from_numpy(slot.counting).to(obs.device)
        actions = torch.zeros(len(obs), dtype=torch.long, device=obs.device)
        proof = torch.zeros_like(counting)
        counted = as_float(obs)[counting]
        scores = policy(counted)
        refuse_broken_scores(scores)
        first = first_alike(counted)
        different, place = first.unique(return_inverse=True)  # copies with the same start see the same
        actions[counting], proof[counting] = (found[place] for found in rule(counted[different], scores[different]))
        return Decided(actions, actions, obs, torch.zeros(len(obs)), proof)

    for steps in play([Group([slot], lambda slots: decide)], [SharedEnv(env, [slot])]):
        progress(max(slot.finished / env.num_envs, min(0.95, steps / length)))
    return slot.episodes()


def read_certificates(folder: CertificatesFolder, agent: str) -> list[tuple[Conditions, Certificate]]:
    """Of the agent with this fingerprint, with what they were proven under."""
    found = []
    for source, row in folder.read(agent):
        with fitting(f"the certificate in {source}", "delete it to have it proven again"):
            values = {field.name: row[field.name] for field in fields(Certificate)}
            proof = Certificate(**typed_values(Certificate, values))
            if not 0 <= proof.eps <= 1:
                raise ValueError(f"its budget is {proof.eps:g}")
        found.append((Conditions.from_row(row, source), proof))
    return found


def method_for(eps: float, proofs: Iterable[Certificate]) -> Method | None:
    """By which an attack at this budget is held against what was proven: the quickest at the nearest budget that is no
    smaller, since what holds within a budget holds within smaller ones."""
    covering = [proof for proof in proofs if proof.eps >= eps]
    nearest = min(covering, key=lambda proof: (proof.eps, METHODS.index(proof.method)), default=None)
    return nearest.method if nearest else None
