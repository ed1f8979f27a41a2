"""The whole method on a laptop: a vanilla agent that breaks under attack, and one from the curriculum that holds.

    python examples/demo.py [--seed 0] [--out runs/demo] [--parallel 2] [--quick]

Acrobot: swing a two-link arm up; -1 a step, so -80 is good and -500 is failure. Vanilla DQN first, then `bcl-mos-at`
from it: adversarial training in phases of rising budget, best of up to 3 runs each, budgets already held skipped. Then
both agents are attacked at every budget, on episodes that chose nothing, also with an attack that no decision saw:
Multi-T, here from 100 starts instead of the paper's 1000 to save time. Certificates say what no attack can do, on the
same episodes. Killed, it continues where it was.
"""

import argparse
import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
from rich.table import Table

import bcl
from bcl.api import console
from bcl.attacks import PGD, RIFGSM, MultiT, suite
from bcl.errors import counted
from bcl.evaluation import Score, worst_within
from bcl.experiment import Verdict
from bcl.reports.style import LIGHT, RC
from bcl.runs.directory import RunDirectory

matplotlib.use("Agg")
from matplotlib import pyplot

# With that of the run's own verdict, so that in its report these scores stand for it.
ATTACKS = (*suite("quick"), PGD(steps=30, step=0.1), RIFGSM(), MultiT(starts=100))
BUDGETS = (0.01, 0.02, 0.03, 0.04, 0.05)  # scaled units
CERTIFIED = (0.002, 0.005, 0.01)  # scaled units
QUICK_ATTACKS, QUICK_BUDGETS, QUICK_CERTIFIED = (*suite("quick"), RIFGSM()), (0.05,), (0.002,)
QUICK = [
    "--size=small",
    "--dqn.steps=400",
    "--dqn.replay_initial=64",
    "--dqn.ramp_steps=100",
    "--curriculum.max_runs=1",
    "--curriculum.increment=0.05",
    "--curriculum.judged_by=quick",
    "--evaluation.episodes=1",
    "--evaluation.eps=0.05",
]
Curve = dict[float, float]


def train(out: Path, options: argparse.Namespace) -> None:
    """`bcl train`, or `bcl resume` where it was begun."""
    words = ["resume", str(out)]
    if not RunDirectory(out).exists:
        words = ["train", "acrobot", "--recipe", "bcl-mos-at", "--bootstrap", "vanilla", "--out", str(out)]
        words += ["--seed", str(options.seed), *(QUICK if options.quick else [])]
    words += ["--device", "cpu", "--parallel", str(options.parallel)]
    print("bcl", *words, flush=True)
    if code := subprocess.run([sys.executable, "-m", "bcl", *words]).returncode:
        sys.exit(code)


def curve(scores: list[Score]) -> Curve:
    """The worst return within each budget."""
    return {0.0: scores[0].mean} | {eps: lowest.mean for eps, lowest in worst_within(scores).items()}


def kept(returns: Curve, eps: float, floor: float) -> float:
    """Share of the nominal return that is left, counted from the game's worst; NaN for an agent that has nothing to
    lose."""
    return (returns[eps] - floor) / (returns[0.0] - floor) if returns[0.0] > floor else math.nan


def cell(returns: Curve, eps: float, floor: float) -> str:
    """The return at a budget and, in brackets, the share kept."""
    share = kept(returns, eps, floor)
    return f"{returns[eps]:.0f}" + ("" if math.isnan(share) else f"  ({share:.0%})")


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Return against budget, in the look of reports."""
    with matplotlib.rc_context(RC):
        figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
        for (name, returns), (colour, style) in zip(
            curves.items(), (("vermilion", "o--"), ("blue", "s-")), strict=True
        ):
            axes.plot(list(returns), list(returns.values()), style, color=LIGHT[colour], label=name)
        axes.set(
            xlabel="attack budget (scaled observations)", ylabel="worst return within the budget", ylim=(-520, -50)
        )
        axes.set_title("Acrobot under PGD-10, PGD-30, RI-FGSM and Multi-T")
        axes.legend()
        figure.savefig(path, dpi=150)


def main() -> None:
    """Train, attack, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--parallel", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="a run too short to show anything, for tests")
    options = parser.parse_args()

    out = options.out
    attacks, budgets = (QUICK_ATTACKS, [*QUICK_BUDGETS]) if options.quick else (ATTACKS, [*BUDGETS])
    train(out, options)
    verdict = Verdict.read(RunDirectory(out))
    assert verdict, "training ended with one"
    budgets = sorted({*budgets, verdict.reached} - {0.0})
    with console.progress() as bar:  # both agents, on the same episodes
        found = bcl.evaluate(out, attacks=attacks, eps=budgets, device="cpu", parallel=options.parallel, listener=bar)
    scores = {"vanilla": (found.start or found).scores, "bcl-mos-at": found.scores}
    curves, floor = {name: curve(played) for name, played in scores.items()}, RunDirectory(out).config.curriculum.floor
    episodes = found.episodes
    table = Table("eps", *curves, title=f"worst return within each budget, {counted(episodes, 'episode')}")
    for eps in (0.0, *budgets):
        table.add_row(f"{eps}", *(cell(returns, eps, floor) for returns in curves.values()))
    console.out.print(table)
    figure = out / "demo" / "return-against-budget.png"
    figure.parent.mkdir(exist_ok=True)
    draw(curves, figure)
    broken = [eps for eps in budgets if kept(curves["vanilla"], eps, floor) <= 0.5]
    held = [eps for eps in broken if kept(curves["bcl-mos-at"], eps, floor) >= 0.7]
    if held:
        vanilla, robust = (kept(curves[name], held[-1], floor) for name in curves)
        print(f"at {held[-1]} the vanilla agent keeps {vanilla:.0%} of its return, the curriculum's {robust:.0%}")
    else:
        print("this seed does not show the effect; try another --seed and --out")
    print(f"figure: {figure}")
    small = QUICK_CERTIFIED if options.quick else CERTIFIED
    # On the same episodes as the table; of both, so that the report can show both.
    how = {"eps": small, "method": "crown-ibp", "episodes": episodes, "seed": found.seed, "device": "cpu"}
    print("certificates of the curriculum's agent:")
    with console.progress() as bar:
        proofs = bcl.certify(out, **how, listener=bar).certificates
    if found.start:
        print("certificates of the vanilla agent:")
        with console.progress() as bar:
            bcl.certify(found.start.file, **how, listener=bar)
    shares = ", ".join(f"{proof.acr:.0%} at {proof.eps}" for proof in proofs)
    print(f"actions proven, whatever the attack: {shares}")
    print(f"next: bcl attack {out} --suite paper")
    report = bcl.report(out, device="cpu")
    print(f"report: {report.file}")


if __name__ == "__main__":
    main()
