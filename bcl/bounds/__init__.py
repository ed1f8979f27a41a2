"""What can be proven about a policy's actions while what it sees stays in a box.

Every question is a set of rows over the actions, merged into the last linear layer before anything is bounded: a row
e_a - e_y asks for score[a] - score[y], which is far tighter than comparing bounds of the two scores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bcl import dqn_kernels
from bcl.bounds import crown
from bcl.bounds.interval import box_intervals, propagate
from bcl.errors import BclError, ConfigError, did_you_mean

Method = Literal["ibp", "crown-ibp", "crown"]
METHODS: tuple[str, ...] = get_args(Method)
# Of the largest margin or score; float32 errs by less than a tenth of it on the networks we ship (tested).
ROUNDING = 1e-5


def input_box(obs: Tensor, eps: float | Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """What an adversary with budget `eps` can show instead of observations (B, ...): the ball cut to the valid box.

    Where an environment leaves its own box and the two do not meet, the ball's nearest point is left, as for attacks.
    """
    if isinstance(eps, Tensor) and dqn_kernels.fits_box(obs, eps, low, high):
        return dqn_kernels.input_box(obs, eps, low, high)
    below = obs - eps
    above = obs + eps
    return torch.clamp(low.to(obs), below, above), torch.clamp(high.to(obs), below, above)


def score_bounds(
    chain: nn.Sequential, lower: Tensor, upper: Tensor, method: Method = "crown", *, centred: bool = False
) -> tuple[Tensor, Tensor]:
    """Bounds (B, A) and (B, A) of the scores; `centred`: of the scores less their mean over actions, as in RADIAL."""
    head = _head(chain)
    if method == "ibp":  # the same rows for every sample: two matrix products
        middle, radius = box_intervals(list(chain)[:-1], lower, upper)
        with torch.autocast(lower.device.type, enabled=False):
            weight: Tensor = head.weight
            bias: Tensor | None = head.bias
            if centred:
                weight = weight - weight.mean(dim=0)
                bias = None if bias is None else bias - bias.mean()
            middle = F.linear(middle.to(weight.dtype), weight, bias)
            radius = F.linear(radius.to(weight.dtype), weight.abs())
        return middle - radius, middle + radius
    rows = _unit_rows(head)
    if centred:
        rows = rows - 1 / head.out_features
    bounds = _bound_rows(chain, lower, upper, torch.cat([rows, -rows]).unsqueeze(0), method)
    smallest, minus_largest = bounds.chunk(2, dim=1)
    return smallest, -minus_largest


def margins(chain: nn.Sequential, lower: Tensor, upper: Tensor, actions: Tensor, method: Method = "crown") -> Tensor:
    """Lower bounds (B, A) of score[action] - score[y] for every y; 0 where y is the action. `actions`: (B,) int64."""
    rows = _unit_rows(_head(chain))
    return _bound_rows(chain, lower, upper, rows[actions].unsqueeze(1) - rows, method)


def training_margins(chain: nn.Sequential, lower: Tensor, upper: Tensor, actions: Tensor) -> Tensor:
    """`margins` by intervals, as losses take them: in autocast's precision and without a tape, so no proof."""
    head = _head(chain)
    middle, radius = box_intervals(list(chain)[:-1], lower, upper)
    with torch.autocast(lower.device.type, enabled=False):
        middle = middle.to(head.weight.dtype)
        radius = radius.to(head.weight.dtype)
        scores = F.linear(middle, head.weight, head.bias)
        widths = (head.weight[actions].unsqueeze(1) - head.weight).abs()  # (B, A, features)
        return scores.gather(1, actions.unsqueeze(1)) - scores - torch.einsum("baf,bf->ba", widths, radius)


def pair_margins(chain: nn.Sequential, lower: Tensor, upper: Tensor, method: Method = "crown") -> Tensor:
    """Lower bounds (B, A, A) of score[first] - score[second] for every pair of actions."""
    rows = _unit_rows(_head(chain))
    pairs = (rows.unsqueeze(1) - rows).flatten(0, 1).unsqueeze(0)
    return _bound_rows(chain, lower, upper, pairs, method).unflatten(1, rows.shape)


def certified(margin: Tensor, actions: Tensor, scores: Tensor) -> Tensor:
    """Whether no input in the box changes the action (B,), from `margins` (B, A) of these actions (B,).

    `scores` (B, A) are the policy's own: a large value stream, which margins do not see, rounds its argmax.
    """
    others = torch.arange(margin.shape[1], device=margin.device) != actions.unsqueeze(1)
    return ((margin > _rounding(margin, scores)) | ~others).all(dim=1)


def impossible(pair_margin: Tensor, scores: Tensor) -> Tensor:
    """Which actions (B, A) no input in the box can make the best, from `pair_margins` (B, A, A) and scores (B, A)."""
    return (pair_margin > _rounding(pair_margin, scores)).any(dim=1)


@contextmanager
def full_precision() -> Iterator[None]:
    """Switches TF32 off: its rounding, a thousand times float32's, would void a certificate."""
    matmul = torch.backends.cuda.matmul.allow_tf32
    cudnn = torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = cudnn


def _bound_rows(
    chain: nn.Sequential, lower: Tensor, upper: Tensor, rows: Tensor, method: Method
) -> Tensor:  # rows (B or 1, S, A) -> (B, S)
    if method not in METHODS:
        raise ConfigError(f"unknown method '{method}'", did_you_mean(method, METHODS, f"one of {', '.join(METHODS)}"))
    head = _head(chain)
    body = list(chain)[:-1]
    weight = (rows @ head.weight).expand(len(lower), -1, -1)
    bias = lower.new_zeros(weight.shape[:2]) if head.bias is None else (rows @ head.bias).expand(len(lower), -1)
    question = crown.Question(weight, bias)

    steps, feature_lower, feature_upper = propagate(body, lower, upper)
    bounds = crown.lower_bounds((), question, feature_lower, feature_upper)
    if method == "ibp":
        return bounds
    bounds = torch.maximum(bounds, crown.lower_bounds(steps, question, lower, upper))
    if method == "crown-ibp":
        return bounds
    steps, _, _ = propagate(body, lower, upper, crown.Tightener(lower, upper))
    return torch.maximum(bounds, crown.lower_bounds(steps, question, lower, upper))


def _head(chain: nn.Sequential) -> nn.Linear:
    head = chain[-1]
    if type(head) is not nn.Linear:
        raise BclError(f"cannot bound a network that ends with {head}", "its last layer must be Linear")
    return head


def _unit_rows(head: nn.Linear) -> Tensor:
    return torch.eye(head.out_features, dtype=head.weight.dtype, device=head.weight.device)


def _rounding(margin: Tensor, scores: Tensor) -> Tensor:
    scale = torch.maximum(margin.abs().flatten(1).amax(dim=1), scores.abs().amax(dim=1)).clamp(min=1)
    return ROUNDING * scale.view(-1, *[1] * (margin.dim() - 1))
