"""Losses against numbers worked out by hand, and against loops over single numbers."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcl import losses

NAMES = ["standard", "radial_2", "radial_1", "adversarial", "sa"]
INPUTS = {  # beside q, actions, target and weight
    "standard": [],
    "radial_2": ["lower", "upper"],
    "radial_1": ["lower", "upper"],
    "adversarial": ["q_seen"],
    "sa": ["margin"],
}
every_loss = pytest.mark.parametrize("name", NAMES)
every_kind = pytest.mark.parametrize("kind", get_args(losses.Penalty))


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


# Replayed actions 1 and 0, greedy ones 1 and 2. Errors Q_a - target: 0.5 and -3.
HAND = {
    "q": double([[1.0, 2.5, 0.5], [0.0, -1.0, 3.0]]),
    "actions": torch.tensor([1, 0]),
    "target": double([2.0, 3.0]),
    "weight": double([0.25, 0.75]),
    "lower": double([[0.25, 1.75, 0.0], [-1.0, -1.5, 2.0]]),
    "upper": double([[1.5, 3.25, 0.625], [0.5, -0.25, 4.5]]),
    "q_seen": double([[1.25, 0.5, 2.5], [2.25, -1.0, 4.5]]),
    "margin": double([[0.5, -7.0, 1.25], [-2.0, 1.5, -9.0]]),  # -7 and -9 stand at the greedy actions
}
TD = 0.25 * 0.25 + 0.75 * 3  # 2.3125


def call(name, data, kappa=0.8, kind="min", **more):
    chosen = {key: data[key] for key in ("q", *INPUTS[name])}
    if name != "standard":
        chosen["kappa"] = kappa
    past = losses.Replayed(data["actions"], data["target"], data["weight"], kind)
    return getattr(losses, name)(**chosen, past=past, **more)


def leaves(data):
    """The same data; everything that could receive a gradient asks for one."""
    return {
        key: value if key in ("actions", "weight") else value.clone().requires_grad_() for key, value in data.items()
    }


def gradients(name, data, **more):
    """Gradients by input; None where the loss does not even depend on it."""
    data = leaves(data)
    keys = ["q", "target", *INPUTS[name]]
    loss, _ = call(name, data, **more)
    return dict(zip(keys, torch.autograd.grad(loss, [data[key] for key in keys], allow_unused=True), strict=True))


def drawn(seed, batch, actions):
    generator = torch.Generator().manual_seed(seed)
    data = {
        key: 1.5 * torch.randn(batch, actions, generator=generator, dtype=torch.float64)
        for key in ("q", "q_seen", "lower", "upper", "margin")
    }
    weight = torch.rand(batch, generator=generator, dtype=torch.float64) + 0.1
    return data | {
        "actions": torch.randint(actions, (batch,), generator=generator),
        "target": torch.randn(batch, generator=generator, dtype=torch.float64),
        "weight": weight / weight.sum(),
        # bounds on both sides of q, at random distances
        "lower": data["q"] - data["lower"].abs(),
        "upper": data["q"] + data["upper"].abs(),
    }


# --- the penalty


@pytest.mark.parametrize(
    ("kind", "values", "slopes"),
    [
        ("min", [3.0, 0.25, 0.0, 0.25, 2.0], [-1.0, -1.0, 0.0, 1.0, 1.0]),
        ("squared", [9.0, 0.25, 0.0, 0.25, 4.0], [-6.0, -1.0, 0.0, 1.0, 4.0]),
        ("huber", [2.5, 0.125, 0.0, 0.125, 1.5], [-1.0, -0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_penalty_and_its_slope(kind, values, slopes):
    error = double([-3.0, -0.5, 0.0, 0.5, 2.0]).requires_grad_()
    result = losses.penalty(error, kind)
    (slope,) = torch.autograd.grad(result.sum(), error)
    assert result.tolist() == values
    assert slope.tolist() == slopes


def test_the_kink_of_the_papers_penalty():
    error = double([0.75, 1.0, 1.25, -0.75, -1.0, -1.25]).requires_grad_()
    result = losses.penalty(error)
    (slope,) = torch.autograd.grad(result.sum(), error)
    assert result.tolist() == [0.5625, 1.0, 1.25, 0.5625, 1.0, 1.25]
    assert slope.tolist() == [1.5, 1.5, 1.0, -1.5, -1.5, -1.0]  # at the kink torch takes the middle of 2 and 1


# --- the target


def test_double_q_target_takes_the_online_choice():
    online = double([[1.0, 3.0, 2.0], [5.0, 0.0, 1.0], [0.0, 0.0, 9.0]]).requires_grad_()
    target = double([[10.0, 20.0, 30.0], [-4.0, 50.0, 60.0], [7.0, 8.0, 9.0]]).requires_grad_()
    result = losses.double_q_target(online, target, double([1.0, -1.0, 0.5]), double([0.5, 0.25, 0.0]))
    assert result.tolist() == [11.0, -2.0, 0.5]  # 1 + 20 / 2, -1 - 4 / 4, and 0.5 where the game ended
    assert not result.requires_grad


# --- by hand


def test_bounds_prove_the_greedy_action_only_where_no_other_can_reach_it():
    q = double([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    lower = double([[0.5, -1.0], [0.5, -1.0], [-1.0, 0.25]])
    upper = double([[2.0, 0.25], [2.0, 0.5], [0.5, 2.0]])
    assert losses.proves_best(q, lower, upper).tolist() == [
        True,
        False,
        False,
    ]  # 0.5 against 0.25, 0.5; 0.25 against 0.5


@pytest.mark.parametrize(("kind", "expected"), [("min", 2.3125), ("squared", 6.8125), ("huber", 1.90625)])
def test_standard_by_hand(kind, expected):
    loss, info = call("standard", HAND, kind=kind)
    assert loss.item() == expected
    assert {key: value.item() for key, value in info.items()} == {"td": expected, "q": 0.625, "loss": expected}
    assert gradients("standard", HAND)["q"].tolist() == [[0.0, 0.25, 0.0], [-0.75, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("name", "kappa", "robust", "loss", "share"),
    [
        # g o: row 0 has 1.5 * 0.5, 0, and 2 * 0 (from -0.125); row 1 has 0, 1 * 1.25, 0.
        # Greedy actions 1 and 2: 1.75 is above 1.5 and 0.625, 2 above 0.5 and -0.25.
        ("radial_2", 0.8, 0.25 * 0.75 + 0.75 * 1.25 + 1e-4, 1.85 + 0.2 * 1.1251, {"certified": 1.0}),
        # w: 0.75, 1.25, 0.5 and 4, 0.75, 1.5
        ("radial_1", 0.8, 0.25 * 2.0625 + 0.75 * 6.0625, 1.85 + 0.2 * 5.0625, {"certified": 1.0}),
        # d: 0.25, -1.5, 2 and -0.75, 0, 1.5; the attack moves the best action from 1 to 2 in row 0 only
        ("adversarial", 0.8, 0.25 * 3.5625 + 0.75 * 2.0625, 1.85 + 0.2 * 2.4375, {"fooled": 0.25}),
        # smallest margins 0.5 and -2
        ("sa", 0.02, -0.25 * 0.5 + 0.75 * 2.0, 2.3125 + 0.02 * 1.375, {"certified": 0.25}),
    ],
)
def test_robust_losses_by_hand(name, kappa, robust, loss, share):
    result, info = call(name, HAND, kappa)
    expected = {"td": TD, "q": 0.625, "robust": robust, "loss": loss} | share
    assert {key: value.item() for key, value in info.items()} == pytest.approx(expected, rel=1e-12)
    assert result.item() == pytest.approx(loss, rel=1e-12)


def test_the_penalty_of_a_robust_loss_is_the_chosen_one():
    # squares: 0.0625 + 2.25 + 4 and 0.5625 + 0 + 2.25; with huber 0.03125 + 1 + 1.5 and 0.28125 + 0 + 1
    assert call("adversarial", HAND, kind="squared")[1]["robust"].item() == 0.25 * 6.3125 + 0.75 * 2.8125
    assert call("adversarial", HAND, kind="huber")[1]["robust"].item() == 0.25 * 2.53125 + 0.75 * 1.28125
    # 0.5625 + 1.5625 + 0.25 and 16 + 0.5625 + 2.25; 0.28125 + 0.75 + 0.125 and 3.5 + 0.28125 + 1
    assert call("radial_1", HAND, kind="squared")[1]["robust"].item() == 0.25 * 2.375 + 0.75 * 18.8125
    assert call("radial_1", HAND, kind="huber")[1]["robust"].item() == 0.25 * 1.15625 + 0.75 * 4.78125


@pytest.mark.parametrize(
    ("name", "kappa", "expected"),
    [
        (
            "radial_2",  # g is a constant: q has the gradient of 0.8 * td alone
            0.8,
            {
                "q": [[0.0, 0.2, 0.0], [-0.6, 0.0, 0.0]],
                "lower": [[0.0, -0.075, 0.0], [-0.15, 0.0, 0.0]],
                "upper": [[0.075, 0.0, 0.0], [0.0, 0.15, 0.0]],
            },
        ),
        (
            "radial_1",  # q of the other actions takes what the farther bound gets, with the sign turned
            0.8,
            {
                "q": [[0.075, 0.2, 0.05], [-0.6, -0.225, -0.15]],
                "lower": [[-0.075, 0.0, -0.05], [-0.15, 0.0, 0.0]],
                "upper": [[0.0, 0.05, 0.0], [0.0, 0.225, 0.15]],
            },
        ),
        (
            "adversarial",
            0.8,
            {
                "q": [[-0.025, 0.2, -0.05], [-0.6, 0.0, -0.15]],
                "q_seen": [[0.025, -0.05, 0.05], [-0.225, 0.0, 0.15]],
            },
        ),
        (
            "sa",
            0.02,
            {
                "q": [[0.0, 0.25, 0.0], [-0.75, 0.0, 0.0]],
                "margin": [[-0.005, 0.0, 0.0], [-0.015, 0.0, 0.0]],
            },
        ),
    ],
)
def test_where_gradient_flows(name, kappa, expected):
    result = gradients(name, HAND, kappa=kappa)
    assert result.pop("target") is None
    assert result.keys() == expected.keys()
    for key, rows in expected.items():
        torch.testing.assert_close(
            result[key], double(rows), rtol=1e-12, atol=1e-15, msg=lambda m, key=key: f"{key}: {m}"
        )


def test_sa_stops_at_its_ceiling():
    data = HAND | {"margin": double([[3.0, 0.0, 1.25], [-2.0, 0.5, 0.0]])}  # smallest of the others: 1.25 and -2
    assert call("sa", data)[1]["robust"].item() == -0.25 * 1.0 + 0.75 * 2.0
    assert call("sa", data, ceiling=1.5)[1]["robust"].item() == -0.25 * 1.25 + 0.75 * 2.0
    assert gradients("sa", data, kappa=1.0)["margin"].tolist() == [[0.0, 0.0, 0.0], [-0.75, 0.0, 0.0]]
    assert gradients("sa", data, kappa=1.0, ceiling=1.5)["margin"].tolist() == [[0.0, 0.0, -0.25], [-0.75, 0.0, 0.0]]


def test_a_margin_of_zero_certifies_nothing():
    data = HAND | {"margin": double([[0.0, 0.0, 1.0], [1e-9, 2.0, 0.0]])}
    assert call("sa", data)[1]["certified"].item() == 0.75


# --- by loops


def slow_h(x, kind):
    size = abs(x)
    if kind == "squared":
        return x * x
    if kind == "huber":
        return x * x / 2 if size < 1 else size - 0.5
    return x * x if size < 1 else size


def slow_row(name, data, i, kind):
    """One row's robust loss over 0-d tensors; item() is what stops gradients."""
    q, a, y_t, actions = data["q"][i], int(data["actions"][i]), data["target"][i].item(), range(data["q"].shape[1])
    if name == "sa":
        best = max(actions, key=lambda y: q[y].item())
        smallest = min(data["margin"][i][y] for y in actions if y != best)
        return -smallest if smallest < 1 else torch.tensor(-1.0, dtype=torch.float64)
    total = torch.tensor(0.0, dtype=torch.float64)
    for y in actions:
        if name == "radial_2":
            g = q[a].item() - q[y].item()
            overlap = data["upper"][i][y] - data["lower"][i][a] + g / 2
            if g > 0 and overlap > 0:
                total = total + g * overlap
        elif name == "radial_1":
            centre = y_t if y == a else q[y]
            above, below = data["upper"][i][y] - centre, data["lower"][i][y] - centre
            total = total + slow_h(above if abs(above) > abs(below) else below, kind)
        else:
            total = total + slow_h(data["q_seen"][i][y] - (y_t if y == a else q[y]), kind)
    return total


def slow_loss(name, data, kappa, kind):
    td = robust = 0.0
    for i, w in enumerate(data["weight"].tolist()):
        td = td + w * slow_h(data["q"][i][int(data["actions"][i])] - data["target"][i].item(), kind)
        if name != "standard":
            robust = robust + w * slow_row(name, data, i, kind)
    if name == "standard":
        return td
    if name == "sa":
        return td + kappa * robust
    return kappa * td + (1 - kappa) * (robust + (0.0001 if name == "radial_2" else 0))


@every_kind
@every_loss
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 6),
    actions=st.integers(2, 6),
    kappa=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
)
def test_loops_agree_in_value_and_gradient(name, kind, seed, batch, actions, kappa):
    data = leaves(drawn(seed, batch, actions))
    keys = ["q", *INPUTS[name]]
    inputs = [data[key] for key in keys]
    slow = slow_loss(name, data, kappa, kind)
    fast, info = call(name, data, kappa, kind)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(info["loss"], slow.detach())
    theirs = torch.autograd.grad(slow, inputs, allow_unused=True, materialize_grads=True)
    ours = torch.autograd.grad(fast, inputs)
    for key, our, their in zip(keys, ours, theirs, strict=True):
        torch.testing.assert_close(our, their, msg=lambda m, key=key: f"{key}: {m}")


# --- what holds for every loss


@every_loss
def test_masked_rows_change_nothing(name):
    data, junk = drawn(0, 5, 4), drawn(1, 3, 4)
    junk = {key: value if key == "actions" else 100 * value for key, value in junk.items()} | {"weight": torch.zeros(3)}
    both = {key: torch.cat([junk[key], data[key]]) for key in data}
    loss, info = call(name, data)
    masked_loss, masked_info = call(name, both)
    torch.testing.assert_close(masked_loss, loss)
    torch.testing.assert_close(masked_info, info)
    masked = gradients(name, both)
    for key, expected in gradients(name, data).items():
        if expected is not None:
            torch.testing.assert_close(masked[key][3:], expected)
            assert (masked[key][:3] == 0).all()


@pytest.mark.parametrize("name", NAMES[1:])
def test_kappa_may_be_a_tensor(name):
    for kappa in (0.0, 0.3, 1.0):
        loss, info = call(name, HAND, kappa)
        tensor_loss, tensor_info = call(name, HAND, double(kappa))
        torch.testing.assert_close(tensor_loss, loss)
        torch.testing.assert_close(tensor_info, info)


@every_loss
def test_info_is_scalar_and_detached(name):
    proven = {"robust", "certified"}
    extra = {"adversarial": {"robust", "fooled"}, "standard": set()}
    loss, info = call(name, leaves(HAND))
    assert loss.requires_grad
    assert info.keys() == {"td", "q", "loss"} | extra.get(name, proven)
    assert all(value.shape == () and not value.requires_grad for value in info.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_loss
def test_half_precision_scores_are_combined_in_float32(name, dtype):
    """Scores of several hundred: their products leave float16's range, their differences bfloat16's digits."""
    exact = {key: value if key == "actions" else value.float() for key, value in drawn(2, 16, 6).items()}
    half = exact | {key: (200 * exact[key]).to(dtype) for key in ("q", "q_seen", "lower", "upper", "margin")}
    exact = {key: value if key == "actions" else value.double() for key, value in half.items()}
    expected, expected_info = call(name, exact, kind="squared")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, info = call(name, leaves(half), kind="squared")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        {key: value.double() for key, value in info.items()}, expected_info, rtol=1e-5, atol=1e-5
    )


@every_kind
@every_loss
def test_nothing_is_read_back_from_the_device(name, kind):
    """Meta tensors hold no values, so that an .item() or a branch on one fails."""
    data = {key: value.to("meta") for key, value in HAND.items()}
    loss, info = call(name, leaves(data), torch.tensor(0.8, device="meta"), kind)
    loss.backward()
    assert {value.device.type for value in (loss, *info.values())} == {"meta"}
    target = losses.double_q_target(data["q"], data["q_seen"], data["target"], data["weight"])
    assert target.device.type == "meta"


@every_loss
def test_compiles_without_a_graph_break(name):
    compiled = torch.compile(lambda data, kappa: call(name, data, kappa), fullgraph=True, backend="eager")
    loss, info = compiled(HAND, double(0.8))
    expected, expected_info = call(name, HAND)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(info, expected_info)
