"""Random actions that are held for a while."""

from itertools import groupby

import torch

from bcl.learners.player import Player


def test_random_actions_are_held(chain):
    env = chain(200)
    env.num_actions = 10**6  # so that every new action differs
    policy, sent = torch.nn.Linear(5, 2), []
    env.send = lambda actions: sent.append(actions.clone())
    player = Player(policy, env, torch.Generator().manual_seed(0), longest=4, graphed=False, bf16=False)
    obs = player.reset(0)
    for _ in range(300):
        player.play(obs, 1.0)
    lengths = torch.tensor([len(list(run)) for copy in torch.stack(sent[:-3]).T.tolist() for _, run in groupby(copy)])
    # n or more with probability 1/n: 1/2, 1/6, 1/12 and what is left.
    shares = torch.bincount(lengths, minlength=5)[1:] / len(lengths)
    torch.testing.assert_close(shares, torch.tensor([1 / 2, 1 / 6, 1 / 12, 1 / 4]), rtol=0, atol=0.01)
    held = player.play(obs, 0.0)
    assert 0 < (held > 1).sum() < 200  # those that are still held; the others are greedy
    player.reset(0)
    assert torch.equal(player.play(obs, 0.0), policy(obs).argmax(dim=1))  # a restart lets go
