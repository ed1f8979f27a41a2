"""Losses of Q-learning and of PPO, plain and robust, as in the paper (arXiv 2206.10057) and its code jlwu002/BCL.

Pure functions of tensors that never read a value back from the device. Scores (B, A), actions (B,) int64, targets (B,);
weights (B,) sum to 1 and are 0 on rows that do not count. Targets get no gradient. In formulas a is the replayed
action, y any action and h the penalty; sums run over y, weighted means over the batch.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Penalty = Literal["min", "squared", "huber"]
Info = dict[str, Tensor]  # for the log: detached, 0-d
Scalar = float | Tensor
OVERLAP_CONSTANT = 1e-4  # of the public code's robust loss; it moves the logged loss, no gradient


def penalty(error: Tensor, kind: Penalty = "min") -> Tensor:
    """h, elementwise. `min`: min(x^2, |x|), whose slope falls from 2 to 1 at 1; `huber`: x^2 / 2, then |x| - 1/2."""
    if kind == "min":
        return torch.minimum(error.square(), error.abs())
    if kind == "squared":
        return error.square()
    return F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")


def double_q_target(next_online: Tensor, next_target: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """reward + discount * next_target[argmax next_online], (B,), detached; `discount` is 0 where the game ended."""
    return (reward + discount * _at(next_target, next_online.argmax(dim=1))).detach()


class Replayed(NamedTuple):
    """What B replayed transitions ask of the scores. None of it gets a gradient."""

    actions: Tensor  # (B,) int64
    target: Tensor  # (B,)
    weight: Tensor  # (B,)
    kind: Penalty = "min"


def standard(q: Tensor, past: Replayed) -> tuple[Tensor, Info]:
    """mean h(Q_a - target). Gradient: q at the actions."""
    chosen = _at(_wide(q), past.actions)
    td = _mean(penalty(chosen - past.target.detach(), past.kind), past.weight)
    return td, _log(td=td, q=_mean(chosen, past.weight), loss=td)


def radial_2(q: Tensor, lower: Tensor, upper: Tensor, past: Replayed, kappa: Scalar) -> tuple[Tensor, Info]:
    """RADIAL, approach 2: kappa * standard + (1 - kappa) * (mean sum g_y o_y + 1e-4), from bounds (B, A) of Q.

    g_y = max(0, Q_a - Q_y), without gradient; o_y = max(0, upper_y - lower_a + g_y / 2).
    Gradient: `standard`'s; upper where g_y > 0 and o_y > 0; lower at the actions.
    """
    td, info = standard(q, past)
    q = _wide(q).detach()
    lower = _wide(lower)
    upper = _wide(upper)
    lead = (_at(q, past.actions).unsqueeze(1) - q).clamp(min=0)
    overlap = (upper - _at(lower, past.actions).unsqueeze(1) + lead / 2).clamp(min=0)
    certified = _mean(proves_best(q, lower, upper), past.weight)
    robust = _mean((lead * overlap).sum(dim=1), past.weight) + OVERLAP_CONSTANT
    return _mixed(td, robust, kappa, info | _log(certified=certified))


def proves_best(q: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(B,) whether bounds (B, A) of the scores leave no action but the best of q (B, A)."""
    best = q.argmax(dim=1)
    others = upper.scatter(1, best.unsqueeze(1), -torch.inf)
    return _at(lower, best) > others.amax(dim=1)


def radial_1(q: Tensor, lower: Tensor, upper: Tensor, past: Replayed, kappa: Scalar) -> tuple[Tensor, Info]:
    """RADIAL, approach 1: kappa * standard + (1 - kappa) * mean sum h(w_y), from bounds (B, A) of Q.

    w_y = max(|upper_y - c_y|, |lower_y - c_y|) with c_a = target and c_y = Q_y for the others.
    Gradient: `standard`'s; the farther bound of every action; q at the others, which is not detached.
    """
    td, info = standard(q, past)
    centre = _centre(q, past)
    worst = torch.maximum((upper - centre).abs(), (lower - centre).abs())
    certified = _mean(proves_best(q, lower, upper), past.weight)
    robust = _mean(penalty(worst, past.kind).sum(dim=1), past.weight)
    return _mixed(td, robust, kappa, info | _log(certified=certified))


def adversarial(q: Tensor, q_seen: Tensor, past: Replayed, kappa: Scalar) -> tuple[Tensor, Info]:
    """Adversarial training: kappa * standard + (1 - kappa) * mean sum h(q_seen_y - c_y), q_seen being Q under attack.

    c_a = target and c_y = Q_y for the others. Gradient: `standard`'s; q_seen everywhere; q at the others, which is not
    detached, so that clean and attacked scores move towards each other.
    """
    td, info = standard(q, past)
    robust = _mean(penalty(q_seen - _centre(q, past), past.kind).sum(dim=1), past.weight)
    fooled = _mean(q.argmax(dim=1) != q_seen.argmax(dim=1), past.weight)
    return _mixed(td, robust, kappa, info | _log(fooled=fooled))


def sa(q: Tensor, margin: Tensor, past: Replayed, kappa: Scalar, ceiling: float = 1.0) -> tuple[Tensor, Info]:
    """SA-DQN: standard - kappa * mean min(ceiling, min_y margin_y), y other than the greedy action a* = argmax Q.

    `margin` (B, A): lower bounds of Q[a*] - Q[y]; its entry at a* is ignored. Gradient: `standard`'s; the smallest
    margin of each row while it is below the ceiling. None through the choice of a*.
    """
    td, info = standard(q, past)
    others = margin.scatter(1, q.argmax(dim=1, keepdim=True), torch.inf)
    robust = -_mean(others.amin(dim=1).clamp(max=ceiling), past.weight)
    loss = td + kappa * robust
    return loss, info | _log(robust=robust, certified=_mean((others > 0).all(dim=1), past.weight), loss=loss)


def distilled(clean: Tensor, worst: Tensor, mistakes: Tensor, weight: Tensor, kappa: Scalar) -> tuple[Tensor, Info]:
    """Distillation: kappa * mean l(clean) + (1 - kappa) * mean l(worst), with l(m) = log(1 + sum c_y exp(-m_y)).

    `clean`, `worst` (B, A): the student's lead of the teacher's action over each y, on the clean observation and at its
    smallest within the budget. `mistakes` (B, A): c_y in [0, 1], how bad y would be; 0 for the teacher's action and for
    those as good. With all c_y = 1, l is the cross-entropy. Gradient: clean and worst.
    """
    clean = _wide(clean)
    worst = _wide(worst)
    plain = _mean(_mistake_loss(clean, mistakes), weight)
    robust = _mean(_mistake_loss(worst, mistakes), weight)
    real = mistakes > 0.5
    counts = weight * real.any(dim=1)
    counts = counts / counts.sum().clamp(min=1e-9)
    agrees, held = (_mean(((lead > 0) | ~real).all(dim=1), counts) for lead in (clean, worst))
    loss = kappa * plain + (1 - kappa) * robust
    return loss, _log(plain=plain, robust=robust, agrees=agrees, held=held, loss=loss)


def mistakes(scores: Tensor, scale: Tensor) -> Tensor:
    """(B, A) how bad each action is by a teacher's scores (B, A): its distance from the best in `scale`, at most 1."""
    scores = _wide(scores)
    return ((scores.amax(dim=1, keepdim=True) - scores) / scale).clamp(max=1)


def gain(worst: Tensor, costs: Tensor, weight: Tensor) -> Tensor:
    """() share of what a teacher gains over the best single action that is left: 1 - (mean cost of the costliest action
    that does not stay behind) / (mean cost of that single action).

    `worst` (B, A) as in `distilled`; `costs` (B, A): how far each action is behind by the teacher's scores. 1: no
    mistake that costs anything; 0: no better than one action for all states; -1 at least. No gradient.
    """
    reached = torch.where(worst > 0, 0.0, costs).amax(dim=1)
    single = (weight.unsqueeze(1) * costs).sum(dim=0).amin()
    return (1 - _mean(reached, weight) / single.clamp(min=1e-9)).clamp(min=-1).detach()


def weighted_by_stakes(weight: Tensor, scores: Tensor, scale: Tensor, power: float) -> Tensor:
    """(B,) weights with the same sum, each times cost**power of the worst action by a teacher's scores (B, A).

    The cost is counted in `scale` and kept between 1/10 and 10, so that a few states do not decide everything.
    """
    scores = _wide(scores)
    cost = ((scores.amax(dim=1) - scores.amin(dim=1)) / scale).clamp(0.1, 10)
    weighted = weight * cost**power
    return weighted * (weight.sum() / weighted.sum())


def leads(scores: Tensor, actions: Tensor) -> Tensor:
    """(B, A) scores of the actions (B,) less every score."""
    scores = _wide(scores)
    return _at(scores, actions).unsqueeze(1) - scores


def _mistake_loss(lead: Tensor, mistakes: Tensor) -> Tensor:
    """(B,) log(1 + sum c_y exp(-m_y))."""
    terms = mistakes.clamp(min=1e-12).log() - lead
    return torch.cat([torch.zeros_like(terms[:, :1]), terms], dim=1).logsumexp(dim=1)


class Past(NamedTuple):
    """B samples of a rollout, as they were when they were collected. None of it gets a gradient."""

    actions: Tensor  # (B,) int64
    log_probs: Tensor  # (B,) of the actions
    values: Tensor  # (B,)
    advantages: Tensor  # (B,) standardised
    targets: Tensor  # (B,) what the values should have been
    weight: Tensor  # (B,)


class LossWeights(NamedTuple):
    """What PPO weighs against what."""

    clip: float
    """How far the ratio of probabilities may be from 1, and the value from what it was, before the gradient stops."""
    value: float
    entropy: float


def gae(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, decay: float
) -> Tensor:
    """Generalised advantage estimates of T steps of N copies, all (T, N), without gradient.

    d_t = r_t + gamma V(s_t+1) - V(s_t), without V(s_t+1) where the game `terminated`; A_t = d_t + gamma decay A_t+1,
    without A_t+1 where an episode `ended`, either way.
    """
    with torch.no_grad():
        errors = rewards + gamma * next_values * ~terminated - values
        found = [errors[-1]]
        for error, over in zip(errors[:-1].flip(0), ended[:-1].flip(0), strict=True):
            found.append(error + (gamma * decay * found[-1]).masked_fill(over, 0))
        return torch.stack(found[::-1])


def standardised(values: Tensor, weight: Tensor) -> Tensor:
    """(values - mean) / (population deviation + 1e-8) under weights of the same shape that sum to 1."""
    centred = values - _mean(values, weight)
    return centred / (_mean(centred.square(), weight).sqrt() + 1e-8)


def ppo(
    logits: Tensor, values: Tensor, past: Past, weights: LossWeights, robust: Tensor | None = None, kappa: Scalar = 1.0
) -> tuple[Tensor, Info]:
    """surrogate + c_v value - c_e entropy; a robust part makes the first kappa surrogate + (1 - kappa) robust.

    surrogate = -mean min(r A, clip(r) A), r = pi(a) / pi_old(a); value = mean max((V - t)^2, (V_clipped - t)^2) / 2.
    Gradient: logits and values.
    """
    logits = _wide(logits)
    values = _wide(values)
    surrogate = -_mean(_clipped_gain(logits, past, weights.clip), past.weight)
    near = past.values + (values - past.values).clamp(-weights.clip, weights.clip)
    errors = torch.maximum((values - past.targets).square(), (near - past.targets).square())
    value = _mean(errors, past.weight) / 2
    log_probs = logits.log_softmax(dim=1)
    entropy = -_mean((log_probs.exp() * log_probs).sum(dim=1), past.weight)
    moved = past.log_probs - _at(log_probs, past.actions)  # its mean estimates the KL divergence from the old policy
    info = _log(value=value, entropy=entropy, kl=_mean(moved, past.weight), surrogate=surrogate)
    rest = weights.value * value - weights.entropy * entropy
    if robust is None:
        loss = surrogate + rest
    else:
        loss = kappa * surrogate + (1 - kappa) * robust + rest
        info |= _log(robust=robust)
    return loss, info | _log(loss=loss)


def ppo_adversarial(
    logits: Tensor, values: Tensor, seen: Tensor, past: Past, weights: LossWeights, kappa: Scalar
) -> tuple[Tensor, Info]:
    """AT-PPO: `ppo` with a robust part, `seen` being the logits under attack.

    robust = -mean min_i min(r_i A, clip(r_i) A), where pi_1 takes the logit of a from `seen` and the others from
    `logits`, pi_2 the other way round. Gradient: `ppo`'s, and seen.
    """
    robust = _worst_surrogate(_wide(seen), _wide(logits), past, weights.clip)
    loss, info = ppo(logits, values, past, weights, robust, kappa)
    fooled = _mean(logits.argmax(dim=1) != seen.argmax(dim=1), past.weight)
    return loss, info | _log(fooled=fooled)


def ppo_radial(
    logits: Tensor, values: Tensor, lower: Tensor, upper: Tensor, past: Past, weights: LossWeights, kappa: Scalar
) -> tuple[Tensor, Info]:
    """RADIAL-PPO: as `ppo_adversarial` with bounds (B, A) of the logits.

    pi_1, an upper bound of pi(a), takes the logit of a from `upper` and the others from `lower`; pi_2 the other way
    round. Gradient: `ppo`'s, and both bounds.
    """
    robust = _worst_surrogate(_wide(upper), _wide(lower), past, weights.clip)
    loss, info = ppo(logits, values, past, weights, robust, kappa)
    return loss, info | _log(certified=_mean(proves_best(logits, lower, upper), past.weight))


def _worst_surrogate(one: Tensor, other: Tensor, past: Past, clip: float) -> Tensor:
    """Of two policies, which take the logit of a from one tensor and those of the others from the other."""
    taken = past.actions.unsqueeze(1) == torch.arange(one.shape[1], device=one.device)
    gains = [_clipped_gain(torch.where(taken, *pair), past, clip) for pair in ((one, other), (other, one))]
    return -_mean(torch.minimum(*gains), past.weight)


def _clipped_gain(logits: Tensor, past: Past, clip: float) -> Tensor:
    """(B,) min(r A, clip(r) A)."""
    ratio = (_at(logits.log_softmax(dim=1), past.actions) - past.log_probs).exp()
    return torch.minimum(ratio * past.advantages, ratio.clamp(1 - clip, 1 + clip) * past.advantages)


def _mixed(td: Tensor, robust: Tensor, kappa: Scalar, info: Info) -> tuple[Tensor, Info]:
    loss = kappa * td + (1 - kappa) * robust
    return loss, info | _log(robust=robust, loss=loss)


def _centre(q: Tensor, past: Replayed) -> Tensor:
    """(B, A): where scores should stay, the target for the replayed actions and the clean score for the others."""
    replayed = past.actions.unsqueeze(1) == torch.arange(q.shape[1], device=q.device)
    return torch.where(replayed, past.target.detach().unsqueeze(1), _wide(q))


def _at(scores: Tensor, actions: Tensor) -> Tensor:
    return scores.gather(1, actions.unsqueeze(1)).squeeze(1)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (weight * values).sum()  # autocast would round a product written with @


def _wide(scores: Tensor) -> Tensor:
    """At least float32: under autocast scores arrive in half precision, where products of them overflow."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _log(**values: Tensor) -> Info:
    return {name: value.detach() for name, value in values.items()}
