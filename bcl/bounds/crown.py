"""CROWN (Zhang et al. 2018): linear functions of the input that lie below what is asked about the output.

Only lower bounds are computed: the upper bound of f is minus the lower bound of -f. A question walks back through the
steps; each rule turns one about a layer's output into one about its input whose answer is no larger.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bcl.bounds.interval import LayerBounds, Pair, middle_and_radius
from bcl.layers import PatchConv, Residual

Size = int | tuple[int, ...]

ELEMENTS_AT_ONCE = 2**22  # of one coefficient tensor: 16 MiB in float32
TILE = 2  # neurons of a convolution are bounded in squares of this side, which see only a part of the image
TINY = 1e-30  # keeps 0 / 0 out of the slope of a neuron that is exactly 0


@dataclass(frozen=True)
class Question:
    """How small can coefficients . x + constants be? Of an image x, only a window that starts at `corner` matters."""

    coefficients: Tensor  # (B, S, features) or (B, S, channels, height, width)
    constants: Tensor  # (B, S)
    corner: tuple[int, int] = (0, 0)

    def window(self, x: Tensor) -> Tensor:
        """The part of x (B, ...) that the coefficients are about."""
        return x if x.dim() < 4 else _window(x, (0, 0), self.corner, self.coefficients.shape[3:])


def lower_bounds(steps: Sequence[LayerBounds], question: Question, lower: Tensor, upper: Tensor) -> Tensor:
    """Lower bounds (B, S) of a question about what leaves the last step, over inputs between `lower` and `upper`."""
    rows = question.constants.shape[1]
    elements = question.coefficients.numel()
    if rows > 1 and elements > ELEMENTS_AT_ONCE:
        at_once = max(1, rows * ELEMENTS_AT_ONCE // elements)
        parts = zip(question.coefficients.split(at_once, dim=1), question.constants.split(at_once, dim=1), strict=True)
        questions = [Question(*part, question.corner) for part in parts]
        return torch.cat([lower_bounds(steps, some, lower, upper) for some in questions], dim=1)
    if steps:
        rule = _RULES[type(steps[-1].layer)]
        return lower_bounds(steps[:-1], rule(steps[-1], question), lower, upper)
    middle, radius = middle_and_radius(question.window(lower), question.window(upper))
    return question.constants + _dot(question.coefficients, middle) - _dot(question.coefficients.abs(), radius)


@dataclass(frozen=True)
class Tightener:
    """Intersects the intervals that enter nonlinear layers with CROWN's."""

    lower: Tensor  # the input box
    upper: Tensor

    def __call__(self, before: Sequence[LayerBounds], layer: nn.Module, lower: Tensor, upper: Tensor) -> Pair:
        undecided = ((lower < 0) & (upper > 0)).float() if isinstance(layer, nn.ReLU) else torch.ones_like(lower)
        mixing = [step for step in before if not isinstance(step.layer, nn.ReLU | nn.Flatten | nn.Identity)]
        if len(mixing) <= 1 or not undecided.any():  # up to the second of them intervals are exact
            return lower, upper
        tight_lower = lower.clone()
        tight_upper = upper.clone()
        for corner, tile in _tiles(lower.shape):
            if undecided[tile].any():
                part = self._tighten(before, corner, undecided[tile], lower[tile], upper[tile])
                tight_lower[tile], tight_upper[tile] = part
        return tight_lower, torch.maximum(tight_lower, tight_upper)  # rounding may cross them

    def _tighten(
        self, before: Sequence[LayerBounds], corner: tuple[int, int], undecided: Tensor, lower: Tensor, upper: Tensor
    ) -> Pair:
        shape = lower.shape
        undecided, lower, upper = (x.flatten(1) for x in (undecided, lower, upper))
        # States with fewer undecided neurons than others fill up with decided ones, which does no harm.
        neurons = undecided.argsort(dim=1, descending=True)[:, : int(undecided.sum(dim=1).max())]
        for some in neurons.split(max(1, ELEMENTS_AT_ONCE // (2 * lower.numel())), dim=1):
            unit = lower.new_zeros(*some.shape, lower.shape[1]).scatter(2, some.unsqueeze(2), 1).unflatten(2, shape[1:])
            zero = lower.new_zeros(len(some), 2 * some.shape[1])
            question = Question(torch.cat([unit, -unit], dim=1), zero, corner)
            smallest, minus_largest = lower_bounds(before, question, self.lower, self.upper).chunk(2, dim=1)
            lower = lower.scatter(1, some, torch.maximum(smallest, lower.gather(1, some)))
            upper = upper.scatter(1, some, torch.minimum(-minus_largest, upper.gather(1, some)))
        return lower.view(shape), upper.view(shape)


def _tiles(shape: Sequence[int]) -> Iterator[tuple[tuple[int, int], tuple[Any, ...]]]:
    if len(shape) < 4:
        yield (0, 0), (...,)
        return
    for top in range(0, shape[2], TILE):
        for left in range(0, shape[3], TILE):
            yield (top, left), (..., slice(top, top + TILE), slice(left, left + TILE))


def _dot(coefficients: Tensor, values: Tensor) -> Tensor:  # (B, S, ...), (B, ...) -> (B, S)
    return torch.einsum("bsn,bn->bs", coefficients.flatten(2), values.flatten(1))


def _linear(step: LayerBounds, question: Question) -> Question:
    assert isinstance(step.layer, nn.Linear)
    constants = question.constants
    if step.layer.bias is not None:
        constants = constants + question.coefficients @ step.layer.bias
    return Question(question.coefficients @ step.layer.weight, constants)


def _conv(step: LayerBounds, question: Question) -> Question:
    layer = step.layer
    coefficients = question.coefficients
    constants = question.constants
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer.padding, str)
    if layer.bias is not None:
        constants = constants + coefficients.sum(dim=(3, 4)) @ layer.bias
    back = _transposed(layer, coefficients.flatten(0, 1)).unflatten(0, coefficients.shape[:2])
    return _inside(step, Question(back, constants, _corner_before(question, layer.stride, layer.padding)))


def _transposed(layer: nn.Conv2d, x: Tensor) -> Tensor:
    if layer.in_channels > 1:
        return F.conv_transpose2d(x, layer.weight, None, layer.stride, 0, 0, layer.groups, layer.dilation)
    # The same for gray images, six times faster on CPUs.
    geometry = zip(x.shape[2:], layer.stride, layer.dilation, layer.kernel_size, strict=True)
    size = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in geometry]
    return F.fold(
        layer.weight.flatten(1).T @ x.flatten(2), (size[0], size[1]), layer.kernel_size, layer.dilation, 0, layer.stride
    )


def _relu(step: LayerBounds, question: Question) -> Question:
    # Below: 0 or z, whichever leaves less area. Above: the chord from (lower, 0) to (upper, upper).
    lower = question.window(step.lower)
    upper = question.window(step.upper)
    up = upper.clamp(min=0)
    down = (-lower).clamp(min=0)
    chord = up / (up + down).clamp(min=TINY)
    below = (upper > -lower).to(chord.dtype)
    coefficients = question.coefficients
    constants = question.constants + _dot(coefficients.clamp(max=0), chord * down)
    slopes = torch.where(coefficients > 0, below.unsqueeze(1), chord.unsqueeze(1))
    return Question(coefficients * slopes, constants, question.corner)


def _tanh(step: LayerBounds, question: Question) -> Question:
    # The slope of tanh is nowhere smaller than at one of the ends: lines of that slope through both ends enclose it.
    lower = question.window(step.lower)
    upper = question.window(step.upper)
    coefficients = question.coefficients
    slope = 1 - torch.maximum(lower.tanh() ** 2, upper.tanh() ** 2)
    below = lower.tanh() - slope * lower
    above = upper.tanh() - slope * upper
    offsets = _dot(coefficients.clamp(min=0), below) + _dot(coefficients.clamp(max=0), above)
    return Question(coefficients * slope.unsqueeze(1), question.constants + offsets, question.corner)


def _max_pool(step: LayerBounds, question: Question) -> Question:
    # In each window a likely winner x lies in [low, high] and no other exceeds `rival`. Below: x itself.
    # Above: max(x, rival), and over that its chord on [low, high].
    layer = step.layer
    coefficients = question.coefficients
    assert isinstance(layer, nn.MaxPool2d)
    kernel = _pair(layer.kernel_size)
    stride = _pair(layer.stride)
    corner = _corner_before(question, stride, layer.padding)
    size = [(n - 1) * s + k for n, s, k in zip(coefficients.shape[3:], stride, kernel, strict=True)]
    lower, upper = (_window(x, (0, 0), corner, size, outside=-torch.inf) for x in (step.lower, step.upper))

    _, winner = F.max_pool2d(lower + upper, kernel, stride, return_indices=True)
    low, high = (x.flatten(2).gather(2, winner.flatten(2)).view_as(winner) for x in (lower, upper))
    place, reach = (
        x.unfold(-2, kernel[0], stride[0]).unfold(-2, kernel[1], stride[1])
        for x in (torch.arange(size[0] * size[1], device=winner.device).view(*size), upper)
    )
    rival = reach.masked_fill(place == winner[..., None, None], -torch.inf).amax(dim=(4, 5))
    floor = torch.maximum(low, rival)
    chord = (high - floor).clamp(min=0) / (high - low).clamp(min=TINY)

    constants = question.constants + _dot(coefficients.clamp(max=0), floor - chord * low)
    passed = coefficients * torch.where(coefficients > 0, 1, chord.unsqueeze(1))
    index = winner.flatten(2).unsqueeze(1).expand(-1, coefficients.shape[1], -1, -1)
    back = coefficients.new_zeros(*coefficients.shape[:3], size[0] * size[1]).scatter_add(3, index, passed.flatten(3))
    return _inside(step, Question(back.unflatten(3, size), constants, corner))


def _reshape(step: LayerBounds, question: Question) -> Question:
    return Question(question.coefficients.reshape(*question.constants.shape, *step.lower.shape[1:]), question.constants)


def _residual(step: LayerBounds, question: Question) -> Question:
    path = question
    for inner in reversed(step.path):
        path = _RULES[type(inner.layer)](inner, path)
    # The path's 3x3 convolutions look at a larger window, which contains the shortcut's.
    shortcut = _window(question.coefficients, question.corner, path.corner, path.coefficients.shape[3:])
    return Question(shortcut + path.coefficients, path.constants, path.corner)


def _corner_before(question: Question, stride: Size, padding: Size) -> tuple[int, int]:
    top, left = question.corner
    down, right = _pair(stride)
    above, beside = _pair(padding)
    return top * down - above, left * right - beside


def _inside(step: LayerBounds, question: Question) -> Question:
    # What lies on the padding is dropped: it is 0, or never wins a maximum.
    height, width = step.lower.shape[2:]
    top, left = question.corner
    rows, columns = question.coefficients.shape[3:]
    corner = max(top, 0), max(left, 0)
    size = min(top + rows, height) - corner[0], min(left + columns, width) - corner[1]
    return Question(_window(question.coefficients, question.corner, corner, size), question.constants, corner)


def _window(
    x: Tensor, x_corner: tuple[int, int], corner: tuple[int, int], size: Sequence[int], outside: float = 0.0
) -> Tensor:
    above = x_corner[0] - corner[0]
    beside = x_corner[1] - corner[1]
    below = size[0] - x.shape[-2] - above
    behind = size[1] - x.shape[-1] - beside
    return F.pad(x, (beside, behind, above, below), value=outside)  # negative padding crops


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


_RULES: dict[type[nn.Module], Callable[[LayerBounds, Question], Question]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    PatchConv: _conv,
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.MaxPool2d: _max_pool,
    nn.Flatten: _reshape,
    nn.Identity: lambda step, question: question,
    Residual: _residual,
}
