"""bcl.evaluate and bcl.certify."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bcl.api import Attack, Budgets, Policy, Where, check
from bcl.errors import ConfigError, counted
from bcl.result import Result, Table
from bcl.settings import Count, Natural, format_eps, format_return

if TYPE_CHECKING:
    from bcl.bounds import Method
    from bcl.evaluation import Certificate, Evaluation, Score
    from bcl.games import Game


class ProgressListener:
    """Receives the progress of an evaluation; this one ignores it."""

    def start(self, units: int) -> None:
        """`units` scores or certificates will be made."""

    def begin(self, label: str) -> Callable[[int, int], None]:
        """One begins; what is returned is told the work done and the work in all."""
        return lambda done, of: None

    def prepare(self, label: str) -> Callable[[int, int], None]:
        """What one needs first begins, such as a training; what is returned is told of that work alone."""
        return self.begin(label)

    def finished(self, line: str) -> None:
        """One is done; `line` describes its result."""


NO_LISTENER = ProgressListener()


@dataclass(frozen=True, repr=False)
class Certification(Result):
    """What was proven about an agent at every budget."""

    agent: str
    game: "Game"
    certificates: "list[Certificate]"
    folder: Path | None
    """Where they lie, so that nothing is proven twice; none for an agent in memory."""
    method: "Method"
    why: str
    """Why this method, where none was asked for."""
    note: str = ""
    """Whether its episodes are those of an evaluation of the agent."""

    @property
    def title(self) -> str:
        """Of a table of the certificates: the method, and why it was taken."""
        from bcl.evaluation.plan import name_of

        return f"{name_of(self.game)}: certificates by {self.method}" + (f" ({self.why})" if self.why else "")

    def table(self) -> Table:
        """A row per budget."""
        first = self.certificates[0]
        title = f"{self.title}, {counted(first.episodes, 'episode')}, seed {first.seed}"
        header = ("eps", "actions proven (ACR)", "greedy worst case (GWC)", "nominal")
        rows = [
            (format_eps(c.eps), f"{c.acr:.1%}", format_return(c.at_worst), format_return(c.nominal))
            for c in self.certificates
        ]
        return Table(title, header, tuple(rows), (self.note,) if self.note else ())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `bcl certify --json` prints it."""
        from bcl.games import game_to_dict

        about = {"policy": self.agent, "game": game_to_dict(self.game), "method": self.method}
        return {**about, "certificates": [proof.to_dict() | _for_people(proof) for proof in self.certificates]}

    def _rows(self) -> Iterator[dict[str, Any]]:
        """One per budget."""
        for proof in self.certificates:
            yield {name: getattr(proof, name) for name in ("method", "eps", "acr", "nominal")} | _for_people(proof)

    def __repr__(self) -> str:
        return f"Certification({self.agent} on {self.game.id}, {counted(len(self.certificates), 'budget')})"

    def _tables(self) -> list[Table]:
        return [self.table()]

    def __str__(self) -> str:
        """The method, then a line per budget."""
        return "\n".join([self.title, *map(str, self.certificates), *((self.note,) if self.note else ())])


def _for_people(proof: "Certificate") -> dict[str, float]:
    """The greedy worst case as tables have it, and as it was played."""
    return {"gwc": proof.at_worst, "gwc_played": proof.gwc}


def evaluate(
    agent: Policy | Where,
    *,
    suite: str | None = None,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    eps: Budgets | None = None,
    episodes: int | None = None,
    seed: Natural = 0,
    env_set: Literal["train", "eval", "both"] | None = None,
    protocol: Literal["fixed", "first"] = "fixed",
    precision: Literal["fast", "full"] = "fast",
    num_envs: Natural = 0,
    starts: Literal["game", "varied"] | None = None,
    device: str = "auto",
    sanity: bool = False,
    parallel: Count = 1,
    find_eps: bool = False,
    threshold: float | None = None,
    listener: ProgressListener = NO_LISTENER,
) -> "Evaluation":
    """Evaluate an agent under attack: mean return for every attack and budget, the worst case, and flags, which are
    reasons to distrust the numbers.

    The agent is a run, a policy file or a policy. Attacks may be given by name or as they are. Of a run, the agents
    that its training began from are evaluated too; of a policy file, that file alone. With `find_eps` only budgets that
    are given are played, beside those of the search.

    Args:
        agent: A run directory, a policy file or an agent of `bcl zoo` (foreign agents: `bcl import` first).
        suite: quick (PGD-10; the default), paper (the paper's four attacks), strong, or learned (strong and an
            adversary that is trained against the agent).
        attacks: Single attacks instead of a suite: apgd, apgd-N (N steps), apgd-margin, corner-noise, fgsm, learned,
            learned-N (a training of N steps), mad, multi, multi-t, noise, pgd, pgd-N (N steps), ri-fgsm, square,
            worst-action, or module:Attack.
        eps: Budgets, such as 1/255 3/255; by default those of the run and the one that its verdict reached, or those of
            the game's preset.
        episodes: Episodes per score; by default as the run or the game's preset says.
        seed: Seed of games and attacks.
        env_set: Procgen: the training levels, the unlimited set, or both side by side, with a table and flags each.
        protocol: fixed: episodes per copy set beforehand; first: the first finished of 64 copies, as the reference on
            Procgen.
        precision: How attacks search on a GPU: fast is half precision for images; actions are always decided in full
            precision.
        num_envs: Copies of the game played at once; 0: chosen by the number of episodes.
        starts: game: as the game has them, on Atari with the paper's no-ops; varied: then a few random actions, so that
            no two episodes are the same; by default as evaluation.starts says, which is game.
        device: auto, cpu or cuda.
        sanity: Also attack with a budget of 1, which must bring the return to the floor.
        parallel: Processes that share the work; worth it on a CPU with several cores.
        find_eps: Also find the smallest budget of each attack at which the return falls below --threshold.
        threshold: With --find-eps: a return; by default half of that without attack, counted from the game's lowest.
    """
    from bcl.api import playing
    from bcl.attacks import LowestScored, attack_by_name
    from bcl.evaluation import Cell, Plan, cells, find_breaking, on_each, run_suite
    from bcl.evaluation.breaking import refuse_learned

    check(evaluate, locals())
    budgets = playing.budgets(eps)
    chosen = playing.chosen_attacks(suite, attacks)
    if threshold is not None and not find_eps:
        raise ConfigError("a threshold was given but no search for a budget", "add --find-eps")
    if find_eps:
        refuse_learned(chosen)
    with playing.evaluated(agent, device) as target:
        count = target.defaults.episodes if episodes is None else int(episodes)
        starts = target.defaults.starts if starts is None else starts
        games = target.games_to_play(env_set, seed, count, num_envs, starts)
        if find_eps and env_set == "both":
            raise ConfigError("--find-eps searches on one set of levels", "give --env-set train or --env-set eval")
        plan = Plan(games[0], count, int(seed), protocol, precision, int(num_envs), starts)
        compared = cells(chosen, budgets or (() if find_eps else target.defaults.eps))
        wanted = [*compared, Cell(attack_by_name("pgd-30"), 1.0)] if sanity else compared
        listener.start(len(games) * (len(wanted) + len(compared) * len(target.began_from)))
        folder = target.results.scores
        folder.check_writable()
        evaluator = playing.Evaluator(plan, listener, parallel, agents=1 + len(target.began_from))
        scores = evaluator.scores(target.policy, on_each(games, wanted), folder, published=target.published_proofs)
        began_from = evaluator.starts(target, on_each(games, compared))
        floors: list[Score] = []
        if sanity:
            progress = listener.begin("the lowest-scored action")
            lowest = on_each(games, [Cell(LowestScored(), 0.0)])
            floors = [*run_suite(target.policy, plan, lowest, folder, lambda label: progress)]
        breaking = None
        if find_eps:
            least = None if threshold is None else float(threshold)
            proofs = target.published_proofs
            breaking = find_breaking(target.policy, plan, chosen, target.results, least, listener.begin, proofs)
    return playing.with_flags(target, games, scores, floors, began_from, breaking)


def certify(
    agent: Policy | Where,
    *,
    eps: Budgets | None = None,
    method: Literal["ibp", "crown-ibp", "crown", "auto"] = "auto",
    episodes: int | None = None,
    seed: Natural | None = None,
    env_set: Literal["train", "eval"] | None = None,
    device: str = "auto",
    parallel: Count = 1,
    listener: ProgressListener = NO_LISTENER,
) -> Certification:
    """Prove what no attack can change: certified actions (ACR) and the greedy worst case (GWC) per budget.

    Args:
        agent: A run directory, a policy file or an agent of `bcl zoo`.
        eps: Budgets, such as 1/255; by default those of the run and the one that its verdict reached, or those of the
            game's preset.
        method: Interval bounds, CROWN on intervals, or CROWN throughout: each tighter and slower than the one before.
            auto: the tightest that this network can be certified with in reasonable time.
        episodes: Episodes, all played at once; by default as the run or the game's preset says.
        seed: Seed of the games; by default that of the agent's last evaluation, such as a run's verdict, so that table
            and certificates are of the same episodes, else 0.
        env_set: Procgen: the training levels, or the unlimited set.
        device: auto, cpu or cuda.
        parallel: Processes that share the work; worth it on a CPU with several cores.
    """
    from bcl.api import playing
    from bcl.evaluation import affordable_method, run_certificates

    check(certify, locals())
    given_budgets = playing.budgets(eps)
    with playing.evaluated(agent, device) as target:
        count = target.defaults.episodes if episodes is None else int(episodes)
        plan, note = playing.certified_episodes(target, env_set, count, None if seed is None else int(seed))
        budgets = given_budgets or list(target.defaults.eps)
        chosen, why = affordable_method(target.policy) if method == "auto" else (method, "")
        listener.start(len(budgets))
        folder = target.results.certificates
        folder.check_writable()
        playing.Evaluator(plan, listener, parallel).prove_in_processes(target.policy, budgets, chosen, folder)
        proofs = []
        for proof in run_certificates(target.policy, plan, budgets, chosen, folder, listener.begin):
            proofs.append(proof)
            listener.finished(str(proof))
    kept = folder.path if target.kept else None
    return Certification(target.name, plan.game, proofs, kept, chosen, why, note)
