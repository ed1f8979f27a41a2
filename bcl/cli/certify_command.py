"""bcl certify."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from bcl.errors import counted
from bcl.settings import format_eps, parse_eps


@dataclass(frozen=True)
class Command:
    """Prove what no attack can change: certified actions (ACR) and the greedy worst case (GWC) per budget."""

    takes_settings: ClassVar[bool] = False

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE|zoo:NAME")]
    """A run directory, a policy file or an agent of `bcl zoo`."""
    eps: tuple[str, ...] = ()
    """Budgets, such as 1/255; by default those of the run, or of the game's preset."""
    method: Literal["auto", "ibp", "crown-ibp", "crown"] = "auto"
    """Interval bounds, CROWN on intervals, or CROWN throughout: each tighter and slower than the one before. auto: the
    tightest that the network leaves affordable."""
    episodes: int | None = None
    """Episodes, all played at once; by default as the run or the game's preset says."""
    seed: int = 0
    """Seed of the games."""
    env_set: Literal["train", "eval"] | None = None
    """Procgen: the training levels, or the unlimited set."""
    device: str = "auto"
    """auto, cpu or cuda."""
    parallel: int = 1
    """Processes that share the work; worth it on a CPU with several cores."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self, _: list[str]) -> None:
        """Prove what is not yet proven, print everything."""
        for eps in self.eps:
            parse_eps(eps, "--eps")  # a mistake is told before anything heavy is imported

        from rich.table import Table

        from bcl.api.evaluating import certify
        from bcl.cli import console
        from bcl.cli.attack_command import kept_scores

        with kept_scores(), console.progress(quiet=self.json) as bar:
            found = certify(
                self.policy,
                eps=self.eps or None,
                method=self.method,
                episodes=self.episodes,
                seed=self.seed,
                env_set=self.env_set,
                device=self.device,
                parallel=self.parallel,
                onlooker=bar,
            )
        if self.json:
            print(json.dumps([proof.to_dict() for proof in found.certificates]))
            return
        proofs = found.certificates
        title = f"{found.title}, {counted(proofs[0].episodes, 'episode')}, seed {self.seed}"
        table = Table(
            "eps", "actions proven (ACR)", "greedy worst case (GWC)", "nominal", title=title, title_justify="left"
        )
        for proof in proofs:
            table.add_row(format_eps(proof.eps), f"{proof.acr:.1%}", f"{proof.gwc:.4g}", f"{proof.nominal:.4g}")
        console.out.print(table)
        print(f"results: {found.folder}")
        if found.method == "crown":
            print(f"next: bcl report {self.policy}")
        else:
            budgets = " ".join(format_eps(proof.eps) for proof in proofs)
            print(f"next: bcl certify {self.policy} --eps {budgets} --method crown")
