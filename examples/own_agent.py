"""How robust is an agent of your own? Any PyTorch module that gives one score per action will do.

    python examples/own_agent.py

Here it is a small network that imitates a rule for CartPole: push to the side to which the pole is falling. Yours comes
from your own training; nothing below asks how.
"""

import torch
from torch import nn

import bcl


def rule(obs: torch.Tensor) -> torch.Tensor:
    """Push right (1) where the pole leans and falls to the right, and the cart is not far gone already."""
    return (obs @ torch.tensor([0.2, 0.5, 1.0, 1.0]) > 0).long()


def trained_network(seed: int = 0) -> nn.Sequential:
    """Stands for the agent that you have."""
    draws = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(300):
        obs = 2 * torch.rand(256, 4, generator=draws) - 1
        loss = nn.functional.cross_entropy(network(obs), rule(obs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


if __name__ == "__main__":
    # The game says what the network sees: CartPole's four numbers, divided by (2.4, 3, 0.21, 3). Budgets are in those
    # units.
    policy = bcl.wrap(trained_network(), "CartPole-v1")

    found = bcl.evaluate(policy, attacks=["pgd-30", "ri-fgsm"], eps=[0.1], episodes=5)
    print(found)
    lowest = found.worst[0.1]
    print(f"at 0.1 the worst attack leaves {lowest.mean:.4g} of {found.nominal.mean:.4g}")

    # A Sequential of layers that have bounds can be certified, too: what no attack at all can change.
    print(bcl.certify(policy, eps=[0.01], method="crown-ibp", episodes=5))
