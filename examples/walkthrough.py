# %% [markdown]
# # The method on CartPole, step by step
#
# Cells for an editor that knows `# %%` (VS Code, PyCharm, Spyder, Jupytext), or one script: `python
# examples/walkthrough.py`. It took 25 minutes on two cores that were busy with other work, too. `--quick` makes every
# training too short to show anything, for tests.
#
# CartPole: keep a pole upright for 500 steps, +1 each. The agent sees four numbers, divided by (2.4, 3, 0.21, 3), so
# that 1 is about the largest that matters. An adversary may move each of them by at most eps before the agent looks.

# %%
import sys
from pathlib import Path
from typing import Any

import torch

import bcl
from bcl import losses
from bcl.attacks import PGD, perturb
from bcl.runs.directory import RunDirectory

OUT = Path("runs/walkthrough")
QUICK = "--quick" in sys.argv
SHORT = {"dqn": {"steps": 240, "replay_initial": 64, "ramp_steps": 100}, "evaluation": {"episodes": 1}} if QUICK else {}
EPISODES = 2 if QUICK else 20
ATTACKS = ["pgd-30", "ri-fgsm"] if QUICK else ["pgd-30", "apgd-margin", "square"]
BUDGETS = [0.03, 0.06, 0.1]

# %% [markdown]
# ## 1. A vanilla agent
#
# Double DQN, no defence. `bcl.train` is `bcl train`: the same settings, the same run directory, resumable in the same
# way.


# %%
def trained(name: str, **options: Any) -> bcl.Run:
    """Trained now; where it was begun before, continued or read."""
    return bcl.train("cartpole", out=OUT / name, say=print, **SHORT, **options)


vanilla = trained("vanilla", recipe="vanilla")
policy = bcl.load(vanilla)

# %% [markdown]
# ## 2. Attack it
#
# PGD-30: thirty small steps along the gradient, away from the action that the agent would take, never leaving the ball
# of size eps. The agent acts on what it is shown; nothing else about the game changes.

# %%
before = bcl.evaluate(vanilla, attacks=["pgd-30"], eps=BUDGETS, episodes=EPISODES)
print(before)

# %% [markdown]
# One observation by hand: what the agent sees, what it is shown, and what it thinks of both.

# %%
pgd = PGD(steps=30, step=0.1)
env = bcl.make_env(policy.spec.game, num_envs=64)
obs = env.reset(seed=0)
for _ in range(20):  # away from the start, where all is calm
    with torch.no_grad():
        env.send(policy(obs).argmax(dim=1))
    obs = env.recv().obs
shown = perturb(pgd, policy, obs, 0.06, torch.Generator().manual_seed(0))
with torch.no_grad():
    q, q_shown = policy(obs), policy(shown)
turned = q.argmax(dim=1) != q_shown.argmax(dim=1)
print("moved by", (shown - obs)[0].tolist())
print("scores", q[0].tolist(), "become", q_shown[0].tolist())
print(f"PGD-30 at 0.06 turns the action in {turned.sum()} of {len(obs)} states")

# %% [markdown]
# ## 3. What the loss does
#
# Adversarial training minimises kappa TD + (1 - kappa) (the distance of the attacked scores from where the clean ones
# are or should be). For a vanilla agent the second part grows with the budget: scores of states that differ by eps
# drift apart. Here the target is the agent's own score, so that the clean part is 0 and only the attack is left.


# %%
def robust_part(agent: bcl.Policy, eps: float) -> tuple[float, float]:
    """The loss's second part on these 64 states, and the share of them in which the attack turned the action."""
    seen = perturb(pgd, agent, obs, eps, torch.Generator().manual_seed(0))
    with torch.no_grad():
        clean, attacked = agent(obs), agent(seen)
        best = clean.argmax(dim=1)
        target = clean.gather(1, best[:, None]).squeeze(1)
        past = losses.Replayed(best, target, torch.full((len(obs),), 1 / len(obs)))
        loss, info = losses.adversarial(clean, attacked, past, kappa=0.5)
    return loss.item(), info["fooled"].item()


for eps in BUDGETS:
    loss, fooled = robust_part(policy, eps)
    print(f"eps {eps}: robust loss {loss:.4f}, turned {fooled:.0%}")

# %% [markdown]
# ## 4. One phase of adversarial training
#
# The same agent trains on, now with that loss. The budget rises from 0 to the target inside the run; each observation
# is stored together with what an adversary would have shown.

# %%
phase = trained("one-phase", recipe="at", init=policy, curriculum={"target": 0.06})
print(bcl.evaluate(phase, attacks=["pgd-30"], eps=BUDGETS, episodes=EPISODES))
for eps in BUDGETS:
    loss, fooled = robust_part(bcl.load(phase), eps)
    print(f"eps {eps}: robust loss {loss:.4f}, turned {fooled:.0%}")

# %% [markdown]
# ## 5. The curriculum decides
#
# One long climb can fail, and runs differ by chance. So the curriculum climbs in phases: up to K runs each, the best
# kept, and budgets at which the agent already holds are skipped. What counts as holding: here 0.9 of the bootstrap's
# nominal return without attack and 0.8 of it under attack, because CartPole has no published thresholds. Every decision
# is a file.
#
# The best run of a phase is kept even where the agent before it was better: that is the paper's algorithm, and small
# games show it. The recipe `bcl-ratchet-at` lets the old agent compete.

# %%
MOS = {"runs": 2, "target": 0.06} | ({"skip": 0, "max_runs": 1, "expected_return": "none"} if QUICK else {})
curriculum = trained("curriculum", recipe="bcl-mos-at", init=policy, curriculum=MOS)
for stored in RunDirectory(curriculum.folder).stages()[-1].decisions():
    decision = stored.decision
    print(f"phase {decision.phase.index} up to {decision.phase.eps:.3g}, kept {decision.kept}")
    for candidate in decision.candidates:
        print(f"  {candidate.run}: met the thresholds: {candidate.met}, returns {candidate.scores}")
    for tried in decision.tried:
        print(f"  robust at {tried.eps:.3g}? {tried.robust}, return {tried.score:.4g}")
    print(f"  next: {decision.next if decision.stop is None else decision.stop}")

# %% [markdown]
# ## 6. The verdict
#
# On episodes that chose nothing, under more than one attack: gradients can hide, and PGD follows them; Square asks for
# none. Flags say where the numbers do not fit together.

# %%
for name, run in (("vanilla", vanilla), ("one phase", phase), ("curriculum", curriculum)):
    found = bcl.evaluate(run, attacks=ATTACKS, eps=[0.06], episodes=EPISODES, seed=1)
    lowest = found.worst[0.06]
    print(f"{name}: {found.nominal.mean:.4g} without attack, {lowest.mean:.4g} under {lowest.attack} at 0.06")
    for flag in found.flags:
        print(f"  flag {flag.name}: {flag.message}")

# %% [markdown]
# ## 7. What can be proven
#
# An attack shows that an agent can be fooled; a certificate that it cannot. ACR is the share of visited states whose
# action no perturbation of size eps changes. It holds for every attack there is or will be, and is far below what
# attacks suggest.

# %%
for name, run in (("vanilla", vanilla), ("curriculum", curriculum)):
    print(name)
    print(bcl.certify(run, eps=[0.005, 0.01], method="crown", episodes=EPISODES))
