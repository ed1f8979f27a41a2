"""What holds for every attack, every policy and every budget."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from bcl.attacks import (
    APGD,
    FGSM,
    KL,
    PGD,
    RIFGSM,
    CornerNoise,
    Margin,
    MinBest,
    MixedPGD,
    Multi,
    MultiT,
    OwnValue,
    Square,
    UniformNoise,
    WorstAction,
    perturb,
)
from bcl.errors import BclError, ConfigError

ATTACKS = [
    UniformNoise(),
    CornerNoise(),
    FGSM(),
    FGSM(objective=Margin()),
    PGD(steps=4, step=0.3),
    PGD(steps=4, step=0.3, random_start=True, restarts=3, objective=Margin()),
    PGD(steps=3, step=0.5, random_start=True, objective=KL()),
    PGD(steps=3, step=0.5, random_start=True, restarts=2, objective=MinBest()),
    MixedPGD(steps=3, step=0.3, random_start=False, large_steps=0.5),
    RIFGSM(),
    RIFGSM(objective=OwnValue()),
    Multi(starts=10, chunk=16),
    MultiT(starts=10, chunk=16),
    WorstAction(steps=4, step=0.3),
    APGD(steps=8),
    APGD(steps=8, objective=Margin()),
    Square(queries=12),
]
BUDGETS = [0.0, 1 / 255, 0.1, 1.0]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=repr)


def observations(kind, batch, seed, low=0.0, high=1.0):
    shape = (batch, 1, 12, 12) if kind == "cnn" else (batch, 6)
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 1.4 - 0.2
    return low + (high - low) * drawn.clamp(0, 1)  # some elements on the edge of the box


@every_attack
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["mlp", "cnn"]),
    actions=st.integers(2, 5),
    eps=st.sampled_from(BUDGETS),
    seed=st.integers(0, 1000),
    training=st.booleans(),
    box=st.sampled_from([(0.0, 1.0), (-2.0, 3.0), (-float("inf"), float("inf"))]),
)
def test_stays_in_ball_and_box_repeats_and_leaves_the_policy_alone(
    attack, mlp, cnn, kind, actions, eps, seed, training, box
):
    low, high = box
    policy = (mlp if kind == "mlp" else cnn)(seed=seed, actions=actions, low=low, high=high).train(training)
    next(policy.parameters()).requires_grad_(False)
    flags = [parameter.requires_grad for parameter in policy.parameters()]
    weights = [parameter.clone() for parameter in policy.parameters()]
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda _: pytest.fail("a weight gradient was computed"))
    obs = observations(kind, 3, seed, max(low, -2.0), min(high, 3.0))
    given_obs, global_state = obs.clone(), torch.get_rng_state()

    found, again = (perturb(attack, policy, obs, eps, torch.Generator().manual_seed(seed)) for _ in range(2))

    assert found.shape == obs.shape
    assert found.dtype == obs.dtype
    assert not found.requires_grad
    assert found.isfinite().all()
    assert (found.double() - obs.double()).abs().max() <= eps + 1e-6
    assert (found >= low).all()
    assert (found <= high).all()
    assert torch.equal(found, again)
    assert torch.equal(obs, given_obs)
    assert found.data_ptr() != obs.data_ptr()
    if eps == 0:
        assert torch.equal(found, obs)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert policy.training == training
    assert [parameter.requires_grad for parameter in policy.parameters()] == flags
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert all(torch.equal(now, was) for now, was in zip(policy.parameters(), weights, strict=True))


@pytest.mark.parametrize("eps", [1e-5, 1 / 255, 0.1, 1.0])
@pytest.mark.parametrize("size", [1.0, 100.0, 1e4, 1e6])
def test_the_ball_survives_float_rounding(mlp, seeded, size, eps):
    policy = mlp(low=-float("inf"), high=float("inf"))
    obs = (torch.rand(200, 6, generator=seeded(0)) - 0.5) * size
    found = perturb(CornerNoise(), policy, obs, eps, seeded(1))
    assert (found.double() - obs.double()).abs().max() <= eps + 1e-6


def test_a_wild_attack_is_projected_and_an_undefined_one_refused(mlp, seeded):
    obs = observations("mlp", 3, 0)
    far = perturb(lambda policy, obs, eps, generator: obs + 100, mlp(), obs, 0.1, seeded(0))
    torch.testing.assert_close(far, (obs + 0.1).clamp(max=1))
    with pytest.raises(BclError, match="NaN observations"):
        perturb(lambda policy, obs, eps, generator: obs * float("nan"), mlp(), obs, 0.1, seeded(0))


def test_observations_outside_the_box_go_to_it_as_far_as_the_ball_allows(mlp, seeded):
    obs = torch.tensor([[1.05, -0.05, 1.5, -0.5, 0.5, 1.0]])
    found = perturb(CornerNoise(), mlp(), obs, 0.1, seeded(0))
    assert 0.95 <= found[0, 0] <= 1.0
    assert 0.0 <= found[0, 1] <= 0.05
    torch.testing.assert_close(found[0, 2:4], torch.tensor([1.4, -0.4]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_undefined_observations_are_refused_by_name(mlp, seeded, bad, eps):
    obs = observations("mlp", 3, 0)
    obs[1, 2] = bad
    with pytest.raises(BclError, match="observation 1 of 3 has NaN or infinite"):
        perturb(FGSM(), mlp(), obs, eps, seeded(0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.bool])
def test_observations_that_are_not_float_are_refused_by_name(mlp, seeded, dtype):
    with pytest.raises(BclError, match=f"observations are {dtype}"):
        perturb(FGSM(), mlp(), torch.zeros(2, 6, dtype=dtype), 0.1, seeded(0))


@pytest.mark.parametrize("eps", [-0.1, float("nan"), 1.5, 3, float("inf"), torch.tensor(-0.1)], ids=str)
def test_impossible_budgets_are_refused_by_name(mlp, seeded, eps):
    with pytest.raises(ConfigError, match=r"eps = .* is outside \[0, 1\]"):
        perturb(FGSM(), mlp(), torch.zeros(2, 6), eps, seeded(0))


@pytest.mark.parametrize(
    "build",
    [
        lambda: PGD(steps=0, step=0.1),
        lambda: PGD(steps=5, step=0.1, restarts=3),
        lambda: PGD(steps=5, step=-0.1),
        lambda: WorstAction(step=float("nan")),
        lambda: Square(area=1.5),
        lambda: Multi(starts=0),
        lambda: MultiT(chunk=-1),
        lambda: APGD(steps=0),
        lambda: Square(queries=0),
        lambda: WorstAction(steps=-1),
    ],
)
def test_impossible_settings_are_refused(build):
    with pytest.raises(ConfigError):
        build()


def test_a_policy_without_gradient_is_refused_by_gradient_attacks_only(linear, seeded):
    policy = linear(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), then=lambda scores: scores.detach())
    obs = torch.tensor([[0.6, 0.5]])
    with pytest.raises(BclError, match="cannot be differentiated"):
        perturb(FGSM(), policy, obs, 0.2, seeded(0))
    assert policy(perturb(Square(queries=50), policy, obs, 0.2, seeded(0))).argmax() == 1


@every_attack
def test_works_where_gradients_are_off_and_on_empty_batches(attack, cnn, seeded):
    policy, obs = cnn(), observations("cnn", 2, 0)
    expected = perturb(attack, policy, obs, 0.1, seeded(0))
    with torch.no_grad():
        assert torch.equal(perturb(attack, policy, obs, 0.1, seeded(0)), expected)
    with torch.inference_mode():
        assert torch.equal(perturb(attack, policy, obs.clone(), 0.1, seeded(0)), expected)
    assert perturb(attack, policy, obs[:0], 0.1, seeded(0)).shape == (0, 1, 12, 12)


class NoHostSync(TorchDispatchMode):
    """Fails on operations that read a value back or have a data-dependent shape."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2"}, name
        return func(*args, **(kwargs or {}))


@every_attack
def test_never_waits_for_the_device_and_takes_a_budget_from_a_tensor(attack, cnn, seeded):
    policy, obs = cnn(), observations("cnn", 2, 0)
    expected = perturb(attack, policy, obs, 0.125, seeded(0))
    with NoHostSync():
        found = perturb(attack, policy, obs, torch.tensor(0.125), seeded(0), check=False)
    torch.testing.assert_close(found, expected)


def test_the_sync_detector_detects(mlp, seeded):
    with NoHostSync(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        perturb(FGSM(), mlp(), observations("mlp", 2, 0), 0.1, seeded(0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_attack
def test_can_be_captured_in_a_cuda_graph(attack, cnn):
    policy, obs = cnn().cuda(), observations("cnn", 4, 0).cuda()
    eps, generator = torch.tensor(0.1, device="cuda"), torch.Generator("cuda").manual_seed(0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        perturb(attack, policy, obs, eps, generator, check=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        found = perturb(attack, policy, obs, eps, generator, check=False)
    graph.replay()
    assert (found - obs).abs().max() <= 0.1 + 1e-6
    eps.fill_(0.01)
    graph.replay()
    assert (found - obs).abs().max() <= 0.01 + 1e-6


class Scores:
    """Of two actions, for three numbers."""

    low, high = torch.tensor(-1.0), torch.tensor(1.0)

    def __call__(self, obs):
        return obs[:, :2]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda obs: 1 / 0, "failed (division by zero)"),
        (lambda obs: None, "returned NoneType"),
        (lambda obs: obs[:, :1], "returned (2, 1)"),
    ],
)
def test_an_attack_of_ones_own_that_is_wrong_is_one_sentence(answer, sentence, seeded):
    with pytest.raises(BclError) as told:
        perturb(lambda policy, obs, eps, generator: answer(obs), Scores(), torch.zeros(2, 3), 0.1, seeded(0))
    assert sentence in told.value.message
    assert ("ZeroDivisionError" in "".join(getattr(told.value, "__notes__", []))) == ("failed" in sentence)
