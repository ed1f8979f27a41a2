"""bcl attack."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from bcl.settings import format_eps, parse_eps

if TYPE_CHECKING:
    from bcl.evaluation import Breaking, Flag, Score, Start


@dataclass(frozen=True)
class Command:
    """Judge an agent under attack: mean return for every attack and budget, the worst case, and reasons for doubt."""

    takes_settings: ClassVar[bool] = False

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE|zoo:NAME")]
    """A run directory, a policy file or an agent of `bcl zoo` (foreign agents: `bcl import` first)."""
    suite: str | None = None
    """quick (PGD-10; the default), paper (the paper's four attacks), strong, or learned (strong and an adversary that is
    trained against the agent)."""
    attack: tuple[str, ...] = ()
    """Single attacks instead of a suite: apgd, apgd-margin, corner-noise, fgsm, learned, learned-N (a training of N steps), mad,
    multi, multi-t, noise, pgd, pgd-N (N steps), ri-fgsm, square, worst-action, or module:Attack."""
    eps: tuple[str, ...] = ()
    """Budgets, such as 1/255 3/255; by default those of the game's preset."""
    episodes: int | None = None
    """Episodes per score; by default as the game's preset says."""
    seed: int = 0
    """Seed of games and attacks."""
    env_set: Literal["train", "eval"] | None = None
    """Procgen: the training levels, or the unlimited set."""
    protocol: Literal["fixed", "first"] = "fixed"
    """fixed: episodes per copy set beforehand; first: the first finished of 64 copies, as the reference on Procgen."""
    precision: Literal["fast", "full"] = "fast"
    """How attacks search on a GPU: fast is half precision for images; actions are always decided in full precision."""
    num_envs: int = 0
    """Copies of the game at once; 0 chooses."""
    starts: Literal["game", "varied"] | None = None
    """game: as the game has them, on Atari with the paper's no-ops; varied: then a few random actions, so that no two episodes
    are the same; by default as evaluation.starts says, which is game."""
    device: str = "auto"
    """auto, cpu or cuda."""
    parallel: int = 1
    """Processes that share the work; worth it on a CPU with several cores."""
    sanity: bool = False
    """Also attack with a budget of 1, which must bring the return to the floor."""
    find_eps: bool = False
    """Also find the smallest budget of each attack at which the return falls below --threshold."""
    threshold: float | None = None
    """With --find-eps: a return; by default half of that without attack, counted from the game's lowest."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self, _: list[str]) -> None:
        """Play what is missing, print everything."""
        for eps in self.eps:
            parse_eps(eps, "--eps")  # a mistake is told before anything heavy is imported

        from bcl.api.evaluating import evaluate
        from bcl.cli import console

        with kept_scores(), console.progress(quiet=self.json) as bar:
            found = evaluate(
                self.policy,
                suite=self.suite,
                attacks=self.attack or None,
                eps=self.eps or None,
                episodes=self.episodes,
                seed=self.seed,
                env_set=self.env_set,
                protocol=self.protocol,
                precision=self.precision,
                num_envs=self.num_envs,
                starts=self.starts,
                device=self.device,
                sanity=self.sanity,
                find_eps=self.find_eps,
                threshold=self.threshold,
                parallel=self.parallel,
                onlooker=bar,
            )
        if self.json:
            print(json.dumps(found.to_dict()))
            return
        print_table(found.scores, found.flags, found.title, found.start, found.breaking)
        print(f"results: {found.folder}")
        if self.suite not in ("strong", "learned"):
            budgets = f" --eps {' '.join(self.eps)}" if self.eps else ""
            print(f"next: bcl attack {self.policy} --suite strong{budgets}")


@contextlib.contextmanager
def kept_scores() -> Iterator[None]:
    """Tells whoever stops an evaluation what becomes of what is done."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is finished is kept, the same command goes on from there") from None


def print_table(
    scores: Sequence["Score"],
    doubts: Sequence["Flag"],
    title: str,
    start: "Start | None" = None,
    breaking: "Breaking | None" = None,
) -> None:
    """Attacks down, budgets across, the worst case below and that of the start, doubts under the table."""
    from rich.table import Table
    from rich.text import Text

    from bcl.attacks import Attack, attack_label
    from bcl.cli.console import out
    from bcl.evaluation.score import lowest
    from bcl.reports import look

    budgets = sorted({s.eps for s in scores})
    table = Table(title=title, title_justify="left")
    table.add_column("attack", overflow="fold")
    for eps in budgets:
        table.add_column("0" if eps == 0 else format_eps(eps), justify="right")
    by_cell = {(s.attack, s.eps): str(s) for s in scores}
    breaks = dict[Attack | None, str]()
    if breaking:
        table.add_column("breaks at", justify="right")
        breaks = dict(zip(breaking.attacks, map(breaking.shown, breaking.budgets), strict=True))
    for attack in dict.fromkeys([*(s.attack for s in scores), *breaks]):
        row = [by_cell.get((attack, eps), "") for eps in budgets]
        table.add_row(attack_label(attack), *row, *([breaks.get(attack, "")] if breaking else []))
    if max(budgets) > 0:
        table.add_section()
        of_start = [(f"start ({start.name}), worst within", start.scores, None)] if start else []
        for name, played, style in (("worst within", scores, look.TERMINAL_WORST), *of_start):
            within = [[s for s in played if s.eps <= eps] for eps in budgets]
            table.add_row(name, *(str(lowest(some)) if some else "" for some in within), style=style)
    out.print(table)
    if breaking:
        out.print(str(breaking), highlight=False)
    for doubt in doubts:
        flag = Text(f"flag {doubt.name}", style=look.TERMINAL_FLAG)
        out.print(flag.append(f": {doubt.message} (docs/flags.md)", style="not bold default"))
