"""Observations that are the same are attacked once, and all of them see what is found."""

import pytest
import torch
from torch import Tensor

from bcl.attacks import Multi, MultiT, alike, perturb
from bcl.attacks.alike import digest, first_alike
from bcl.attacks.ri_fgsm import DRAW, StartsTogether


def test_the_first_that_is_the_same_at_the_same_budget() -> None:
    a, b = torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 1e-7], [0.0, 1e-7, 0.0]])
    obs = torch.stack([a, b, a, a, b, a, a])
    eps = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.1, 0.2, 0.1])
    assert first_alike(obs, eps).tolist() == [0, 1, 0, 3, 1, 3, 0]
    assert first_alike(obs, eps.view(-1, 1, 1)).tolist() == [0, 1, 0, 3, 1, 3, 0]
    assert first_alike(obs, torch.tensor(0.1)).tolist() == [0, 1, 0, 0, 1, 0, 0]


def test_numbers_that_are_alike_by_chance_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "digest", lambda batch: torch.zeros(len(batch), dtype=torch.long))
    obs = torch.tensor([[1.0], [2.0], [1.0], [2.0]])
    assert first_alike(obs, torch.tensor(0.1)).tolist() == [0, 1, 0, 3], "whoever is unlike the first stays alone"
    assert first_alike(obs[[0, 0, 0]], torch.tensor([0.1, 0.2, 0.1])).tolist() == [0, 1, 0]


def test_a_digest_depends_on_every_element_and_its_place() -> None:
    one = torch.rand(1, 2, 50, generator=torch.Generator().manual_seed(0))
    others = one.repeat(100, 1, 1)
    others.flatten(1)[range(100), range(100)] += 1e-6
    found = digest(torch.cat([one, others, one.flip(2)]))
    assert len(found.unique()) == 102
    assert torch.equal(digest(one), digest(one.clone()))
    pixels = torch.triu_indices(64, 64, offset=1).T  # equal values at two places
    assert len(digest(torch.zeros(len(pixels), 64).scatter(1, pixels, 1.0)).unique()) == len(pixels)
    images = torch.randint(256, (4000, 84), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    assert len(digest(images).unique()) == len(images.unique(dim=0))


@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize("attack", [Multi, MultiT])
def test_many_starts_look_once_at_what_is_the_same(cnn, seeded, attack, per_row: bool) -> None:
    policy = cnn(seed=2, actions=3).double()
    different = torch.rand(3, 1, 12, 12, generator=seeded(0), dtype=torch.float64)
    obs = different[[0, 1, 0, 2, 1, 0]]
    eps: Tensor | float = torch.tensor([0.05, 0.1, 0.05, 0.3, 0.0, 0.01], dtype=torch.float64) if per_row else 0.05
    sizes: list[int] = []
    policy.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))

    def scan(leaves: bool, obs: Tensor, eps: Tensor | float) -> tuple[Tensor, Tensor, int]:
        sizes.clear()
        generator = seeded(1)
        found = perturb(attack(starts=3 * DRAW + 5, leaves_settled=leaves), policy, obs, eps, generator)
        return found, generator.get_state(), sum(sizes)

    every, state, many = scan(False, obs, eps)
    once, state_once, few = scan(True, obs, eps)
    assert torch.allclose(once, every, atol=1e-12)
    assert torch.equal(state, state_once), "what is drawn next must not depend on it"
    # The same passes but for the clean scores, as without the twins; budgets of 0 never had any.
    firsts = [0, 1, 3, 5] if per_row else [0, 1, 3]
    _, _, of_firsts = scan(True, obs[firsts], eps[firsts] if isinstance(eps, Tensor) else eps)
    assert few - len(obs) == of_firsts - len(firsts)
    assert few < many


def test_multi_and_multi_t_choose_from_the_same_images(cnn, seeded) -> None:
    policy = cnn(seed=2, actions=8).double()
    obs = torch.rand(8, 1, 12, 12, generator=seeded(0), dtype=torch.float64)
    sizes: list[int] = []
    policy.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    multi = perturb(Multi(200), policy, obs, 0.05, seeded(1))
    sizes.clear()
    alone = [multi, perturb(MultiT(200), policy, obs, 0.05, seeded(1))]
    of_multi_t = sum(sizes)
    sizes.clear()
    eps = torch.full((16,), 0.05, dtype=torch.float64)
    generators = [seeded(1), seeded(1)]
    together = perturb(StartsTogether((Multi(200), MultiT(200))), policy, torch.cat([obs, obs]), eps, generators)
    assert torch.allclose(together, torch.cat(alone), atol=1e-12)
    assert not torch.equal(*alone), "they choose differently"
    assert sum(sizes) - 2 * len(obs) == of_multi_t - len(obs), "no passes for Multi but that of the clean scores"
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    other = [seeded(1), seeded(2)]  # other draws: nothing is shared
    apart_again = perturb(StartsTogether((Multi(200), MultiT(200))), policy, torch.cat([obs, obs]), eps, other)
    assert torch.allclose(apart_again[:8], alone[0], atol=1e-12)
    assert torch.allclose(apart_again[8:], perturb(MultiT(200), policy, obs, 0.05, seeded(2)), atol=1e-12)
