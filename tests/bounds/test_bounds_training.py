"""The margins that losses take are those of certificates by intervals, and below what inputs of the box give."""

import torch

from bcl.bounds import margins, training_margins
from bcl.bounds.interval import _relu, middle_and_radius
from bcl.policies import Policy, PolicySpec


def test_they_are_the_certificates_margins_and_below_every_sample():
    for spec in (
        PolicySpec("dueling-cnn", (1, 84, 84), 4, (0.0,), (1.0,)),
        PolicySpec("impala", (3, 64, 64), 5, (0.0,), (1.0,)),
        PolicySpec("dueling-mlp", (6,), 3, (-1.0,), (1.0,), hidden=(32, 32)),
    ):
        torch.manual_seed(0)
        policy = Policy(spec)
        obs = torch.rand(6, *spec.obs_shape)
        actions = torch.arange(6) % spec.num_actions
        lower, upper = obs - 0.02, obs + 0.02
        with torch.no_grad():
            found = training_margins(policy.chain(), lower, upper, actions)
            torch.testing.assert_close(
                found, margins(policy.chain(), lower, upper, actions, "ibp"), rtol=1e-4, atol=1e-5
            )
            for _ in range(20):
                scores = policy(lower + torch.rand_like(obs) * (upper - lower))
                real = scores.gather(1, actions.unsqueeze(1)) - scores
                assert (found <= real + 1e-4).all()


def test_a_relu_of_intervals_and_its_gradient_are_those_of_its_corners():
    torch.manual_seed(0)
    middle = torch.randn(500, dtype=torch.float64, requires_grad=True)
    radius = torch.cat([torch.rand(400, dtype=torch.float64) * 2, torch.zeros(100, dtype=torch.float64)])
    radius.requires_grad_()
    weights = torch.randn(2, 500, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad((weights * torch.stack(pair)).sum(), (middle, radius)) + pair
        for pair in (
            _relu(middle, radius),
            middle_and_radius((middle - radius).relu(), (middle + radius).relu()),
        )
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_small_box_survives_rounding_to_half_precision():
    middle, radius = torch.tensor([3.0, -3.0]).bfloat16(), torch.full((2,), 1e-4).bfloat16()
    assert torch.equal(torch.stack(_relu(middle, radius)), torch.tensor([[3.0, 0.0], [1e-4, 0.0]]).bfloat16())
