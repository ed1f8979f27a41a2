"""On a GPU: the captured graph gives what eager code gives, and searching in half precision is no weaker."""

import dataclasses

import pytest
import torch

from bcl.api.measuring import untrained_policy
from bcl.attacks import APGD, KL, PGD, Attack, Directed, Margin, Multi, MultiT, WorstAction, perturb
from bcl.attacks.alike import first_alike
from bcl.attacks.pgd import Together
from bcl.attacks.ri_fgsm import StartsTogether
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import evaluate
from bcl.evaluation.plan import Precision
from bcl.evaluation.play import ActionChooser, SearchForm
from bcl.games import Game
from bcl.policies import Policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GAME = dataclasses.replace(resolve("pong").game, max_steps=30)


@pytest.fixture
def policy() -> Policy:
    return untrained_policy(GAME, "cuda")


DIRECTED = Directed(lambda obs: obs.flatten(1).sum(dim=1).long() % 5 - 1)


@pytest.mark.parametrize("precision", ["fast", "full"])
@pytest.mark.parametrize(("game", "copies"), [(GAME, 4), (resolve("fruitbot").game, 32)])
@pytest.mark.parametrize("attack", [PGD(steps=5, step=0.4), MultiT(starts=100), DIRECTED], ids=repr)
def test_the_graph_repeats_what_eager_code_does(attack: Attack, game: Game, copies: int, precision: Precision) -> None:
    policy = untrained_policy(game, "cuda")
    env = make_env(game, copies, "cuda")
    obs = env.reset(0)

    def decision() -> ActionChooser:
        generator = torch.Generator("cuda").manual_seed(0)
        return ActionChooser(policy, SearchForm(policy, precision), attack, 3 / 255, generator)

    graph, eager = decision(), decision()
    for _ in range(5):
        eager._input = obs
        by_graph, by_hand = graph(obs), eager._run()
        assert torch.equal(by_graph.actions, by_hand.actions)
        assert torch.equal(by_graph.clean, by_hand.clean)
        torch.testing.assert_close(by_graph.seen, by_hand.seen)
        torch.testing.assert_close(by_graph.distance, by_hand.distance)
        env.send(by_hand.actions)
        obs = env.recv().obs


def test_leaving_what_is_settled_alone_decides_as_the_whole_graph_does(policy: Policy) -> None:
    env = make_env(GAME, 8, "cuda")
    obs = env.reset(0)
    budgets = torch.linspace(0, 0.1, 8, device="cuda")

    def chooser(leaves: bool) -> ActionChooser:
        attack = MultiT(starts=200, leaves_settled=leaves)
        generator = torch.Generator("cuda").manual_seed(0)
        return ActionChooser(policy, SearchForm(policy, "full"), attack, budgets, generator)

    leaving, graph = chooser(True), chooser(False)
    for _ in range(5):
        left, whole = leaving(obs), graph(obs)
        assert torch.equal(left.actions, whole.actions)
        # A batch of another size rounds gradients otherwise, and one near 0 may have the other sign.
        assert ((left.seen - whole.seen).abs() > 1e-5).float().mean() < 1e-3
        env.send(whole.actions)
        obs = env.recv().obs
    assert leaving._graph
    assert leaving._graph._graph is None
    assert graph._graph
    assert graph._graph._graph is not None


ALL = (
    PGD(steps=5, step=0.4, random_start=True, restarts=2, objective=Margin()),
    WorstAction(steps=5, step=0.4),
    PGD(steps=5, step=0.4, random_start=True, objective=KL()),
)


@pytest.mark.parametrize("attack", [Together(ALL), APGD(steps=5)], ids=repr)
def test_kernels_of_impala_change_as_many_actions(attack: Attack) -> None:
    torch.manual_seed(0)
    policy = untrained_policy(resolve("fruitbot").game, "cuda")
    obs = torch.rand(144, 3, 64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    eps = torch.linspace(1 / 255, 0.05, 48, device="cuda").repeat(3)
    with torch.no_grad():
        clean = policy(obs).argmax(dim=1)
    changed = []
    for precision in ("fast", "full"):
        search = SearchForm(policy, precision)
        generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(3)]
        seen = perturb(attack, search, obs, eps, generators)
        assert ((seen - obs).abs().flatten(1).amax(dim=1) <= eps + 1e-6).all()
        with torch.no_grad():
            changed.append(int((policy(seen).argmax(dim=1) != clean).sum()))
    assert abs(changed[0] - changed[1]) <= 9


@pytest.mark.parametrize("kind", [Multi, MultiT])
def test_proofs_as_a_graph_leave_what_many_starts_find(policy: Policy, kind: type[Multi | MultiT]) -> None:
    obs = torch.rand(6, 1, 84, 84, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    eps = torch.tensor([1e-6, 1e-6, 0.01, 0.03, 0.1, 0.1], device="cuda")
    search = SearchForm(policy, "fast")
    for seed in range(4):  # the graph is captured at the third
        found = [
            perturb(kind(200, leaves_settled=leaves), search, obs, eps, torch.Generator("cuda").manual_seed(seed))
            for leaves in (True, False)
        ]
        with torch.no_grad():
            first, second = (policy(seen).argmax(dim=1) for seen in found)
        assert torch.equal(first, second)


def test_images_that_copies_share_are_looked_at_once(policy: Policy) -> None:
    different = torch.rand(3, 1, 84, 84, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    obs = different[[0, 1, 0, 2]].repeat(2, 1, 1, 1)
    eps = torch.tensor([0.01, 0.03, 0.01, 0.1], device="cuda").repeat(2)
    assert first_alike(obs, eps).tolist() == [0, 1, 0, 3, 0, 1, 0, 3]
    found = []
    for leaves in (True, False):
        attack = StartsTogether((Multi(200, leaves_settled=leaves), MultiT(200, leaves_settled=leaves)))
        generators = [torch.Generator("cuda").manual_seed(0) for _ in range(2)]
        seen = perturb(attack, SearchForm(policy, "full"), obs, eps, generators)
        assert torch.equal(seen[[2, 6]], seen[[0, 4]]) or not leaves
        with torch.no_grad():
            found.append(policy(seen).argmax(dim=1).tolist())
    assert found[0] == found[1]


def test_half_precision_search_is_as_strong_as_full(policy: Policy) -> None:
    obs = torch.rand(512, 1, 84, 84, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    with torch.no_grad():
        clean = policy(obs).argmax(1)
    flipped = {}
    for half in (True, False):
        generator = torch.Generator("cuda").manual_seed(0)
        seen = perturb(PGD(steps=30, step=0.1), SearchForm(policy, "fast" if half else "full"), obs, 1 / 255, generator)
        with torch.no_grad():
            flipped[half] = (policy(seen).argmax(1) != clean).float().mean().item()
    assert flipped[False] > 0.1
    assert flipped[True] >= flipped[False] - 0.03


def test_scores_agree_between_precisions_and_devices(policy: Policy) -> None:
    fast = evaluate(policy, make_env(GAME, 4, "cuda"), PGD(steps=10, step=0.2), 3 / 255, episodes=4)
    full = evaluate(policy, make_env(GAME, 4, "cuda"), PGD(steps=10, step=0.2), 3 / 255, episodes=4, precision="full")
    cpu = evaluate(policy.cpu(), make_env(GAME, 4), PGD(steps=10, step=0.2), 3 / 255, episodes=4)
    assert fast.lengths == full.lengths == cpu.lengths
    assert abs(fast.changed - full.changed) < 0.1
    assert abs(cpu.changed - full.changed) < 0.1
