"""bcl attack."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from bcl.games import game_to_dict
from bcl.quantities import format_eps, parse_eps
from bcl.runs import store

if TYPE_CHECKING:
    from bcl.evaluation import Flag, Score


@dataclass(frozen=True)
class Command:
    """Judge an agent under attack: mean return for every attack and budget, the worst case, and reasons for doubt."""

    takes_settings: ClassVar[bool] = False

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")]
    """A run directory or a policy file (foreign agents: `bcl import` first)."""
    suite: str = "quick"
    """quick (PGD-10), paper (the paper's four attacks) or strong."""
    attack: tuple[str, ...] = ()
    """Single attacks by name instead of a suite, such as pgd-30 or square."""
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
    device: str = "auto"
    """auto, cpu or cuda."""
    sanity: bool = False
    """Also attack with a budget of 1, which must bring the return to the floor."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self, _: list[str]) -> None:
        """Play what is missing, print everything."""
        budgets = [parse_eps(eps, "--eps") for eps in self.eps]

        from bcl.attacks import attack_by_name, suite
        from bcl.cli import console
        from bcl.cli.target import find_target, paper_starts
        from bcl.evaluation import Cell, Plan, cells, flags, game_for_evaluation, run_floor, run_suite, worst

        attacks = [attack_by_name(name) for name in self.attack] or list(suite(self.suite))
        target = find_target(self.policy, self.device)
        episodes = target.defaults.episodes if self.episodes is None else self.episodes
        starts = paper_starts(self.seed, episodes, self.num_envs)
        game = game_for_evaluation(target.game, self.env_set, target.defaults.max_steps, starts)
        plan = Plan(game, episodes, self.seed, self.protocol, self.precision, self.num_envs)
        wanted = cells(attacks, budgets or target.defaults.eps)
        if self.sanity:
            wanted.append(Cell(attack_by_name("pgd-30"), 1.0))
        folder = target.results / "evals"
        scores = []
        with console.progress(len(wanted), quiet=self.json) as bar:
            for score in run_suite(target.policy, plan, wanted, folder, lambda cell: bar(cell.label)):
                scores.append(score)
                bar.finished(f"{score.attack} at {format_eps(score.eps)}: {mean_and_error(score)}")
            floor = run_floor(target.policy, plan, folder, bar("the lowest-scored action")) if self.sanity else None
        doubts = flags(scores, floor)
        verdict = {
            "game": game_to_dict(game),
            "policy": str(self.policy),
            "scores": [s.to_dict() for s in scores],
            "worst": {format_eps(eps): asdict(w) for eps, w in worst(scores).items()},
            "floor": floor and floor.to_dict(),
            "flags": [asdict(f) for f in doubts],
        }
        store.write_json(folder / "verdict.json", verdict)  # of the latest call; cells have files of their own
        if self.json:
            print(json.dumps(verdict))
            return
        print_table(
            scores, doubts, f"{game.id}: mean return ± standard error, {plan.episodes} episodes, seed {plan.seed}"
        )
        print(f"results: {folder}")
        if self.suite != "strong":
            print(f"next: bcl attack {self.policy} --suite strong")


def mean_and_error(score: "Score") -> str:
    """The mean, with its standard error where there are enough episodes for one."""
    from bcl.stats import MIN_FOR_INTERVAL

    return f"{score.mean:.4g} ± {score.sem:.2g}" if len(score.returns) >= MIN_FOR_INTERVAL else f"{score.mean:.4g}"


def print_table(scores: Sequence["Score"], doubts: Sequence["Flag"], title: str) -> None:
    """Attacks down, budgets across, the worst case below, doubts under the table."""
    from rich.table import Table
    from rich.text import Text

    from bcl.cli.console import out
    from bcl.evaluation import worst
    from bcl.report import look

    budgets = sorted({s.eps for s in scores})
    table = Table(title=title, title_justify="left")
    table.add_column("attack", overflow="fold")
    for eps in budgets:
        table.add_column("0" if eps == 0 else format_eps(eps), justify="right")
    by_cell = {(s.attack, s.eps): mean_and_error(s) for s in scores}
    for attack in dict.fromkeys(s.attack for s in scores):
        name = "no attack" if attack == "none" else look.attack_label(attack)
        table.add_row(name, *(by_cell.get((attack, eps), "") for eps in budgets))
    worsts = worst(scores)
    if worsts:
        table.add_section()
        lowest = {(w.attack, eps): by_cell[(w.attack, eps)] for eps, w in worsts.items()}
        means = [lowest[(worsts[eps].attack, eps)] if eps in worsts else "" for eps in budgets]
        table.add_row("worst attack", *means, style=look.TERMINAL_WORST)
        minima = [worsts[eps].episode_minimum if eps in worsts else None for eps in budgets]
        if any(m is not None for m in minima):
            table.add_row("worst per episode", *("" if m is None else f"{m:.4g}" for m in minima))
    out.print(table)
    for doubt in doubts:
        flag = Text(f"flag {doubt.name}", style=look.TERMINAL_FLAG)
        out.print(flag.append(f": {doubt.message} (docs/flags.md)", style="not bold default"))
