"""The network that attacks look at, and what it proves."""

import pytest
import torch
from torch import Tensor, nn

from bcl.api.measuring import untrained_policy
from bcl.attacks import Multi, MultiT, perturb
from bcl.config import resolve
from bcl.evaluation.play import SearchForm
from bcl.policies import Policy, PolicySpec


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    return untrained_policy(resolve("pong").game, "cpu")


@pytest.mark.parametrize("kind", [Multi, MultiT])
def test_starts_end_where_the_action_is_proven_and_the_result_stays(policy: Policy, kind: type[Multi | MultiT]):
    class Counted(SearchForm):
        rows = 0

        def forward(self, obs: Tensor) -> Tensor:
            self.rows += len(obs)
            return super().forward(obs)

    obs = torch.rand(3, 1, 84, 84, generator=torch.Generator().manual_seed(1))
    eps = torch.tensor([1e-6, 1e-6, 0.1])
    assert Counted(policy, "full").proves(obs, eps.view(-1, 1, 1, 1)).tolist() == [True, True, False]
    found, rows = [], []
    for leaves in (True, False):
        search = Counted(policy, "full")
        attack = kind(starts=200, leaves_settled=leaves)
        found.append(perturb(attack, search, obs, eps, torch.Generator().manual_seed(2)))
        rows.append(search.rows)
    assert torch.equal(*found)
    assert rows[0] <= 3 + 2 * (3 + 199)  # one start of each, and all of the last
    assert rows[1] == 3 + 2 * 200 * 3


def test_nothing_is_proven_of_a_layer_without_bounds():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 2))
    policy = Policy(PolicySpec("custom", (4,), 2, (0.0,), (1.0,)), network)
    search = SearchForm(policy, "full")
    for _ in range(4):  # on a GPU the third call would be captured
        assert search.proves(torch.rand(3, 4), 0.0).tolist() == [False] * 3


def test_budgets_may_be_one_for_all_or_one_each(policy: Policy):
    obs = torch.rand(1, 1, 84, 84)
    search = SearchForm(policy, "full")
    proven = [search.proves(obs, eps).tolist() for eps in (1e-6, torch.tensor(1e-6), torch.tensor([[[[1e-6]]]]))]
    assert proven == [[True]] * 3
