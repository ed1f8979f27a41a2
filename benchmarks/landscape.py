"""Whether attacks find their way on an agent: states of its nominal play, searched by gradients in steps of several
sizes.

    python benchmarks/landscape.py zoo:pong-radial --eps 3/255 [--states 192] [--out
    benchmarks/results/landscape-NAME.json]

Where large steps change far more actions than small ones, gradients mislead PGD; where a state has no gradient at all,
nothing that climbs can start. Actions are counted, not returns: an action changed where it does not matter counts too.
"""

import argparse
import contextlib
import sys
from pathlib import Path

import torch
from provenance import provenance
from torch import Generator, Tensor

import bcl
from bcl.attacks import APGD, PGD, Attack, Margin, Square, attack_label, perturb
from bcl.config import EvaluationConfig
from bcl.envs import make_env
from bcl.errors import BclError, ConfigError, WeightsError, counted
from bcl.evaluation import game_for_evaluation
from bcl.evaluation.play import SearchForm, without_gradient
from bcl.policies import Policy, as_float
from bcl.runs import store
from bcl.settings import format_eps, parse_eps

COPIES = 16
APART = 50  # agent steps between two states of a copy
LONGEST = 20_000  # agent steps in which a game may be slow to show different states
ATTACKS: tuple[Attack, ...] = (
    PGD(steps=30, step=0.1),
    *(PGD(steps=50, step=step, random_start=True, objective=Margin()) for step in (0.02, 0.1, 0.3, 1.0)),
    APGD(objective=Margin()),
    Square(queries=500),
)


def states(policy: Policy, count: int) -> Tensor:
    """(count, *obs_shape) different observations along nominal episodes of a few copies, or as many as there are."""
    if count < 1:
        raise ConfigError(f"{count} states cannot be looked at", "ask for at least 1")
    if policy.spec.game is None:
        raise WeightsError("this policy does not say which game it plays", "save it with a game in its spec")
    found: dict[bytes, Tensor] = {}
    with contextlib.closing(
        make_env(game_for_evaluation(policy.spec.game, None, EvaluationConfig().max_steps), COPIES)
    ) as env:
        obs, step = as_float(env.reset(0)), 0
        while len(found) < count and step < LONGEST:
            with torch.no_grad():
                env.send(policy(obs).argmax(dim=1))
            obs, step = as_float(env.recv().obs), step + 1
            if step % APART == 0:
                found |= {one.numpy().tobytes(): one.clone() for one in obs}
    return torch.stack([*found.values()][:count])


def look(agent: str, eps: float, count: int) -> dict[str, object]:
    """How many states have no gradient, and how many actions each attack changes, of all and of these."""
    policy = bcl.load(agent)
    searched, obs = SearchForm(policy, "full"), states(policy, count)
    blind = without_gradient(searched, obs)
    with torch.no_grad():
        clean = policy(obs).argmax(dim=1)
    print(f"{agent} at {format_eps(eps)}: {counted(len(obs), 'state')}, {int(blind.sum())} without gradient")
    rows = []
    for attack in ATTACKS:
        seen = perturb(attack, searched, obs, eps, Generator().manual_seed(0))
        with torch.no_grad():
            changed = policy(seen).argmax(dim=1) != clean
        row = {"attack": repr(attack), "changed": int(changed.sum()), "without_gradient": int((changed & blind).sum())}
        size = f", steps of {attack.step:g} eps" if isinstance(attack, PGD) else ""
        name = attack_label(attack) + size
        print(f"{name:<34}{row['changed']:>5} actions changed, {row['without_gradient']} without gradient", flush=True)
        rows.append(row)
    return {"agent": agent, "eps": eps, "states": len(obs), "without_gradient": int(blind.sum()), "rows": rows}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", help="a policy file, a run, or zoo:NAME")
    parser.add_argument("--eps", required=True)
    parser.add_argument("--states", type=int, default=192)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        if options.out:
            store.try_to_write(options.out)
        found = look(options.agent, parse_eps(options.eps), options.states)
        if options.out:
            store.write_json(options.out, {**provenance("cpu"), **found})
    except BclError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
