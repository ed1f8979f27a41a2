import dataclasses
import json
import math
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

import bcl
from bcl.config import resolve, resolve_stages
from bcl.errors import ConfigError, WeightsError
from bcl.policies import KINDS, Policy, PolicySpec, as_float, default_kind, files
from bcl.policies.policy import Kind
from bcl.runs.directory import RunDirectory

SPECS = {
    "dueling-cnn": PolicySpec("dueling-cnn", (1, 84, 84), 4, (0.0,), (1.0,), game=resolve("pong").game),
    "plain-cnn": PolicySpec("plain-cnn", (1, 80, 80), 18, (0.0,), (1.0,)),
    "impala": PolicySpec("impala", (3, 64, 64), 15, (0.0,), (1.0,), game=resolve("fruitbot").game),
    "dueling-mlp": PolicySpec(
        "dueling-mlp", (4,), 2, (-2.0, -math.inf, -2.0, -math.inf), (2.0, math.inf, 2.0, math.inf), (128, 128),
        game=resolve("cartpole").game, parent="runs/x", notes={"seed": "3"},
    ),
    "actor-critic-mlp": PolicySpec("actor-critic-mlp", (6,), 3, (-1.0,) * 6, (1.0,) * 6, (64, 64)),
    "plain-mlp": PolicySpec("plain-mlp", (6,), 3, (-1.0,) * 6, (1.0,) * 6, (64, 64), "tanh"),
}  # fmt: skip


def count(policy: Policy) -> int:
    return sum(p.numel() for p in policy.parameters())


def observations(spec: PolicySpec, n: int = 5) -> torch.Tensor:
    return torch.rand(n, *spec.obs_shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("actions", "parameters"), [(3, 3_286_180), (4, 3_286_693), (6, 3_287_719)])
def test_dueling_cnn_has_the_published_size(actions: int, parameters: int) -> None:
    assert count(Policy(dataclasses.replace(SPECS["dueling-cnn"], num_actions=actions))) == parameters


def test_other_networks_have_the_published_sizes() -> None:
    assert count(Policy(SPECS["plain-cnn"])) == 1_261_234
    assert count(Policy(SPECS["impala"])) == 626_256


@pytest.mark.parametrize("kind", KINDS)
def test_the_chain_differs_between_actions_as_the_policy_does(kind: str) -> None:
    policy = Policy(SPECS[kind])
    obs = observations(policy.spec)
    scores, chain = policy(obs), policy.chain()(obs)
    assert scores.shape == (5, policy.spec.num_actions)
    torch.testing.assert_close(scores - scores[:, :1], chain - chain[:, :1])


def test_dueling_is_value_plus_centred_advantage() -> None:
    policy = Policy(SPECS["dueling-mlp"])
    obs = observations(policy.spec)
    network = policy.network
    features = network.cnn(obs)
    by_hand = network.value(features) + network.advantage(features) - network.advantage(features).mean(1, keepdim=True)
    torch.testing.assert_close(policy(obs), by_hand)
    torch.testing.assert_close(policy(obs).mean(1, keepdim=True), network.value(features))


@pytest.mark.parametrize("kind", ["impala", "actor-critic-mlp"])
def test_actor_critics_take_any_float_type(kind: str) -> None:
    policy = Policy(SPECS[kind])
    obs = observations(policy.spec)
    torch.testing.assert_close(policy(obs.double()), policy(obs))


def test_actor_critic_starts_almost_uniform() -> None:
    policy = Policy(SPECS["impala"])
    logits, value = policy.network.logits_and_value(observations(policy.spec))
    assert value.shape == (5,)
    assert logits.abs().max() < 0.1
    torch.testing.assert_close(logits, policy(observations(policy.spec)))
    head = torch.cat([policy.network.logits.weight, policy.network.value.weight])
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(16), atol=1e-8, rtol=1e-4)  # orthogonal, gain 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_saved_policies_come_back_the_same(kind: str, tmp_path: Path) -> None:
    policy = Policy(SPECS[kind])
    bcl.save(policy, tmp_path / "p.safetensors")
    loaded = bcl.load(tmp_path / "p.safetensors")
    obs = observations(policy.spec)
    assert loaded.spec == policy.spec
    assert not loaded.training
    assert torch.equal(loaded(obs), policy(obs))
    assert torch.equal(loaded.low, policy.low)


def test_half_precision_files_load_as_float(tmp_path: Path) -> None:
    policy = Policy(SPECS["dueling-mlp"])
    bcl.save(policy.half(), tmp_path / "p.safetensors")
    assert next(bcl.load(tmp_path / "p.safetensors").parameters()).dtype == torch.float32


@pytest.mark.parametrize("kind", ["dueling-mlp", "dueling-cnn"])
@pytest.mark.parametrize("weights", ["float16", "int16"])
def test_files_of_16_bits_are_about_half_as_large_and_close(
    kind: str, weights: files.NumberFormat, tmp_path: Path
) -> None:
    policy, path = Policy(SPECS[kind]), tmp_path / "p.safetensors"
    path.write_bytes(files.to_bytes(policy, weights))
    assert path.stat().st_size < 0.6 * len(files.to_bytes(policy))
    loaded = bcl.load(path).network.state_dict()
    for name, tensor in policy.network.state_dict().items():
        size = tensor.abs()
        if weights == "int16" and tensor.dim() > 1:  # steps are as wide for all numbers of a row
            size = size.flatten(1).amax(dim=1).view(-1, *[1] * (tensor.dim() - 1)) / 2**4
        assert ((loaded[name] - tensor).abs() <= size * 2**-11 + 2**-25).all()


def saved(tmp_path: Path, weights: files.NumberFormat = "float32") -> Path:
    path = tmp_path / "p.safetensors"
    path.write_bytes(files.to_bytes(Policy(SPECS["dueling-mlp"]), weights))
    return path


def test_int8_is_a_quarter_and_rounds_by_half_a_step_of_its_row(tmp_path: Path) -> None:
    policy, path = Policy(SPECS["dueling-cnn"]), tmp_path / "p.safetensors"
    path.write_bytes(files.to_bytes(policy, "int8"))
    assert path.stat().st_size < 0.3 * len(files.to_bytes(policy))
    weight, loaded = (p.network.advantage[0].weight for p in (policy, bcl.load(path)))
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((loaded - weight).abs() <= 0.501 * step).all()


@pytest.mark.parametrize("cut", [0, 4, 8, 100, 2000, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(WeightsError) as caught:
        bcl.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", ["float32", "int16"])
def test_damage_anywhere_is_refused(weights: files.NumberFormat, tmp_path: Path) -> None:
    path = saved(tmp_path, weights)
    good = path.read_bytes()
    original = bcl.load(path)
    for position in [*range(0, 1500, 7), *range(len(good) - 4000, len(good), 97), len(good) - 1]:
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x01]) + good[position + 1 :])
        try:
            loaded = bcl.load(path)
        except WeightsError as error:
            assert "\n" not in str(error)
        else:  # a byte of the description that does not matter, such as the version
            assert torch.equal(loaded(observations(loaded.spec)), original(observations(original.spec)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden", []), ("hidden", [-1, 8]), ("num_actions", -1), ("num_actions", 10**12), ("obs_shape", [-4]),
        ("obs_shape", [1, 2]), ("low", []), ("low", [1.0, 2.0]), ("low", [float("nan")] * 4), ("low", [3.0] * 4),
        ("game", {"engine": "doom"}), ("game", {"engine": "atari", "id": "pong", "pipeline": "v9"}), ("notes", 3),
        ("kind", "transformer"), ("activation", "gelu"), ("format", 99),
    ],
)  # fmt: skip
def test_a_description_that_lies_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = saved(tmp_path)
    with safetensors.safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["bcl"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path.write_bytes(safetensors.torch.save(tensors, metadata={"bcl": json.dumps(about | {key: value})}))
    with pytest.raises(WeightsError) as caught:
        bcl.load(path)
    assert "\n" not in str(caught.value)


def test_damage_inside_a_run_names_a_copy_that_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(file: Path) -> str:
        with pytest.raises(WeightsError) as refused:
            files.load(file)
        return refused.value.hint

    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)

    policy, other = Policy(SPECS["dueling-mlp"]), Policy(SPECS["dueling-mlp"])
    run = RunDirectory.create(tmp_path / "run", resolve_stages("cartpole", recipe="bcl-mos-at"), {})
    first, *_, last = run.stages()
    kept = last.phase(2).run(1)
    for folder, trained in ((first, other), (kept, policy), (last, policy)):
        files.save(trained, folder.policy)
        folder.finish({"policy": files.fingerprint(trained)})
    for file in (run.best, tmp_path / "alone.safetensors"):
        files.save(policy, file)
        damage(file)
    assert refusal(tmp_path / "alone.safetensors") == "get it again"
    assert refusal(run.best) == f"restore it from its copy '{last.policy}'"  # before the run ends
    run.finish({"policy": files.fingerprint(policy)})
    assert refusal(run.best) == f"restore it from its copy '{last.policy}'"
    damage(last.policy)
    assert refusal(run.best) == f"restore it from its copy '{kept.policy}'"
    run.best.write_bytes(run.best.read_bytes()[:50])
    assert refusal(run.best) == f"restore it from its copy '{kept.policy}'"
    damage(kept.policy)
    assert {*map(refusal, (run.best, last.policy, kept.policy))} == {"train it again"}
    assert refusal(run.init.policy) == "check the path"
    assert files.load(first.policy)
    foreign = run.path / "notes.safetensors"
    foreign.write_text("none of the run's")
    assert "bcl import" in refusal(foreign)
    with monkeypatch.context() as later:
        later.setattr(files, "FORMAT", files.FORMAT + 1)
        assert refusal(first.policy) == files.OTHER_VERSION, "training it again would not help"


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(WeightsError, match="no bcl policy"):
        bcl.load(path)
    path.write_text("hello")
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        bcl.load(path)
    with pytest.raises(WeightsError, match="does not exist"):
        bcl.load(tmp_path / "nothing")
    with pytest.raises(WeightsError, match="directory"):
        files.load(tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    policy, file = Policy(SPECS["dueling-mlp"]), tmp_path / "p.safetensors"
    bcl.save(policy, file)
    with safetensors.safe_open(file, "pt") as stored:
        about, tensors = stored.metadata(), {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    tensors["value.0.weight"][0, 0] = math.nan
    safetensors.torch.save_file(tensors, file, about)
    with pytest.raises(WeightsError, match="not finite"):
        bcl.load(file)
    with torch.no_grad():
        policy.network.value[0].weight[0, 0] = math.nan
    with pytest.raises(WeightsError, match=r"'value.0.weight' of this policy has values that are not finite"):
        bcl.save(policy, tmp_path / "other.safetensors")


def test_a_network_that_cannot_read_the_observation_is_refused() -> None:
    with pytest.raises(ConfigError, match="dueling-mlp, actor-critic-mlp, plain-mlp"):
        Policy(PolicySpec("dueling-cnn", (4,), 2, (0.0,), (1.0,)))
    with pytest.raises(ConfigError, match="at least 36 pixels"):
        Policy(PolicySpec("dueling-cnn", (1, 20, 20), 2, (0.0,), (1.0,)))


@pytest.mark.parametrize(
    ("shape", "algo", "kind"),
    [((1, 84, 84), "dqn", "dueling-cnn"), ((1, 80, 80), "dqn", "plain-cnn"), ((3, 64, 64), "ppo", "impala"),
     ((4,), "dqn", "dueling-mlp"), ((4,), "ppo", "actor-critic-mlp")],
)  # fmt: skip
def test_default_networks(shape: tuple[int, ...], algo: str, kind: Kind) -> None:
    assert default_kind(shape, algo) == kind


def test_bytes_become_floats_once() -> None:
    assert torch.equal(as_float(torch.tensor([0, 51, 255], dtype=torch.uint8)), torch.tensor([0.0, 0.2, 1.0]))
    assert torch.equal(as_float(torch.tensor([0.5])), torch.tensor([0.5]))
