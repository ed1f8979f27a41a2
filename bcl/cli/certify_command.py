"""bcl certify."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from bcl.quantities import format_eps, parse_eps


@dataclass(frozen=True)
class Command:
    """Prove what no attack can change: certified actions (ACR) and the greedy worst case (GWC) per budget."""

    takes_settings: ClassVar[bool] = False

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")]
    """A run directory or a policy file."""
    eps: tuple[str, ...] = ()
    """Budgets, such as 1/255; by default those of the run, or of the game's preset."""
    method: Literal["ibp", "crown-ibp", "crown"] = "ibp"
    """Interval bounds, CROWN on intervals, or CROWN throughout: each tighter and slower than the one before."""
    episodes: int | None = None
    """Episodes, all played at once; by default as the run or the game's preset says."""
    seed: int = 0
    """Seed of the games."""
    env_set: Literal["train", "eval"] | None = None
    """Procgen: the training levels, or the unlimited set."""
    device: str = "auto"
    """auto, cpu or cuda."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self, _: list[str]) -> None:
        """Prove what is not yet proven, print everything."""
        budgets = [parse_eps(eps, "--eps") for eps in self.eps]

        from rich.table import Table

        from bcl.cli import console
        from bcl.cli.target import find_target, paper_starts
        from bcl.evaluation import Plan, game_for_evaluation, run_certificates

        target = find_target(self.policy, self.device)
        budgets = budgets or list(target.defaults.eps)
        episodes = target.defaults.episodes if self.episodes is None else self.episodes
        starts = paper_starts(self.seed, episodes)
        game = game_for_evaluation(target.game, self.env_set, target.defaults.max_steps, starts)
        plan = Plan(game, episodes, self.seed, num_envs=episodes)
        folder = target.results / "certs"
        proofs = []
        with console.progress(len(budgets), quiet=self.json) as bar:
            for proof in run_certificates(target.policy, plan, budgets, self.method, folder, bar):
                proofs.append(proof)
                bar.finished(
                    f"{self.method} at {format_eps(proof['eps'])}: ACR {proof['acr']:.1%}, GWC {proof['gwc']:.4g}"
                )
        if self.json:
            print(json.dumps(proofs))
            return
        title = f"{game.id}: certificates by {self.method}, {episodes} episodes, seed {self.seed}"
        table = Table(
            "eps", "actions proven (ACR)", "greedy worst case (GWC)", "nominal", title=title, title_justify="left"
        )
        for proof in proofs:
            table.add_row(
                format_eps(proof["eps"]), f"{proof['acr']:.1%}", f"{proof['gwc']:.4g}", f"{proof['nominal']:.4g}"
            )
        console.out.print(table)
        print(f"results: {folder}")
        if self.method != "crown":
            print(f"next: bcl certify {self.policy} --eps {' '.join(map(format_eps, budgets))} --method crown")
