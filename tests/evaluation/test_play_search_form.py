"""The network that attacks look at: compiled, in parts of few sizes, it is the same function."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from bcl.api.measuring import untrained_policy
from bcl.attacks import APGD, PGD, Attack, MinBest, Multi, MultiT, Square, WorstAction, perturb
from bcl.config import resolve
from bcl.device import MOST_COMPILED, compiling
from bcl.evaluation import play
from bcl.evaluation.play import SearchForm
from bcl.policies import Policy, PolicySpec

SIZES = (3, 8, 64)
ATTACKS = [
    PGD(steps=3, step=0.4),
    PGD(steps=2, step=0.4, random_start=True, restarts=2, objective=MinBest()),
    Multi(starts=70),
    MultiT(starts=70),
    WorstAction(steps=2),
    APGD(steps=6),
    Square(queries=5),
]

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # as `bcl.device.compiling` has it


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    with compiling(True):
        yield


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    return untrained_policy(resolve("pong").game, "cpu")


@pytest.fixture(scope="module")
def impala() -> Policy:
    torch.manual_seed(0)
    return untrained_policy(resolve("fruitbot").game, "cpu")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is compiled for batches as small as these tests have."""
    monkeypatch.setattr(play, "SIZES", SIZES)


def compiled_form(impala: Policy, monkeypatch: pytest.MonkeyPatch, backend: str) -> SearchForm:
    """As on a GPU, but without code for it: that takes half a minute."""
    made = {}

    def compiled(function):
        if function not in made:
            made[function] = torch.compile(function, dynamic=False, backend=backend)
        return made[function]

    torch._dynamo.reset()
    monkeypatch.setattr(play, "compiled", compiled)
    form = SearchForm(impala, "full", "full")
    form(torch.rand(SIZES[0], 3, 64, 64, requires_grad=True))
    assert form._compiles
    return form


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_attacks_find_the_same_when_it_is_compiled(impala: Policy, monkeypatch: pytest.MonkeyPatch, attack: Attack):
    form = compiled_form(impala, monkeypatch, "eager")
    obs = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    eps = torch.tensor([1 / 255, 3 / 255, 0.1])
    found, expected = (
        perturb(attack, search, obs, eps, torch.Generator().manual_seed(2))
        for search in (form, SearchForm(impala, "full"))
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rows", [SIZES[0] - 1, SIZES[0], SIZES[0] + 1, SIZES[-1] + 1])
def test_scores_and_gradients_of_any_number_of_rows(impala: Policy, monkeypatch: pytest.MonkeyPatch, rows: int):
    monkeypatch.setattr(play, "compiled", lambda function: function)
    form, plain = SearchForm(impala, "full", "full"), SearchForm(impala, "full")
    obs = torch.rand(rows, 3, 64, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    scores, expected = form(obs), plain(obs)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad(scores.square().sum(), obs)
    (wanted,) = torch.autograd.grad(expected.square().sum(), obs)
    torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=0)


def test_what_cannot_be_compiled_runs_in_eager_code(impala: Policy, monkeypatch: pytest.MonkeyPatch):
    def compiled(function):
        raise RuntimeError("no compiler\nand much more")

    monkeypatch.setattr(play, "compiled", compiled)
    form = SearchForm(impala, "full", "full")
    obs = torch.rand(3, 3, 64, 64, requires_grad=True)
    with pytest.warns(UserWarning, match="uncompiled, which is slower: no compiler$"):
        assert torch.equal(form(obs), SearchForm(impala, "full")(obs))
    assert torch.equal(form(obs), SearchForm(impala, "full")(obs))


def test_settings_of_the_compiler_and_of_warnings_are_put_back():
    settings = torch._dynamo.config
    with settings.patch(recompile_limit=5, suppress_errors=False):
        before = [*warnings.filters]
        with compiling(True):
            assert settings.recompile_limit == MOST_COMPILED
            settings.suppress_errors = True
        assert (settings.recompile_limit, settings.suppress_errors) == (5, False)
        assert warnings.filters == before


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
    assert rows[0] <= 3 + 2 * (64 * 3 + 136)
    assert rows[1] == 3 + 2 * 200 * 3


def test_nothing_is_proven_of_a_layer_without_bounds():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 2))
    policy = Policy(PolicySpec("custom", (4,), 2, (0.0,), (1.0,)), network)
    assert SearchForm(policy, "full").proves(torch.rand(3, 4), 0.0).tolist() == [False] * 3
