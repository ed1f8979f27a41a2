"""How bcl.evaluate and bcl.certify have scores and certificates made, in this process or in several."""

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcl.api import Budgets, misfit, several, text
from bcl.api.agents import Target
from bcl.api.evaluating import ProgressListener
from bcl.api.workers import Workers
from bcl.attacks import Attack, attack_by_name, lacks_source, suite
from bcl.attacks.suites import with_name
from bcl.bounds import Method
from bcl.errors import ConfigError, StoreError, counted
from bcl.evaluation import Cell, Plan, Score, Start, missing_cells, read_certified, run_suite
from bcl.evaluation.play import Progress
from bcl.evaluation.suite import PARTS
from bcl.experiment import worker
from bcl.experiment.learned_adversary import ready
from bcl.policies import Policy, files
from bcl.runs import store
from bcl.runs.executors import Job
from bcl.runs.results import CertificatesFolder, RowsFolder, ScoresFolder
from bcl.settings import parse_eps


@dataclass(frozen=True)
class Evaluator:
    """Makes what is missing of the scores and certificates of an evaluation, and tells a listener how far it is."""

    plan: Plan
    listener: ProgressListener
    parallel: int
    """Processes that share the work."""
    agents: int = 1
    """How many are played one after the other."""

    def scores(
        self, policy: Policy, wanted: Sequence[Cell], folder: ScoresFolder, number: int = 0, whose: str = ""
    ) -> list[Score]:
        """The scores of an agent; `number`: how many agents were played before it, `whose`: what they are called."""

        def begin(label: str) -> Progress:
            report = self.listener.begin(whose + label)
            return lambda done, of: report(number * of + done, self.agents * of)

        device = next(policy.parameters()).device.type
        missing = missing_cells(folder, self.plan.conditions(files.fingerprint(policy), device), wanted)
        if self.parallel > 1 and len(missing) > 1:
            content = files.to_bytes(policy)
            shares = [missing[i :: self.parallel] for i in range(min(self.parallel, len(missing)))]
            orders = [("attack", content, self.plan, tuple(share), device) for share in shares]
            self._in_processes(folder, worker.evaluate, orders, begin(f"{len(missing)} scores"))
        scores = []
        for score in run_suite(policy, self.plan, wanted, folder, begin, ready(policy, self.plan, folder, begin)):
            scores.append(score)
            self.listener.finished(f"{whose}{score.label}: {score}")
        return scores

    def start(self, target: Target, wanted: Sequence[Cell]) -> Start | None:
        """The agent that a run's training began from, evaluated as the one that came out."""
        if target.start is None:
            return None
        name, agent = target.start
        policy = files.load(agent.file, next(target.policy.parameters()).device)
        scores = self.scores(policy, wanted, agent.results.scores, number=1, whose=f"start ({name}): ")
        return Start(name, str(agent.file), scores)

    def prove_in_processes(
        self, policy: Policy, wanted: Sequence[float], method: Method, folder: CertificatesFolder
    ) -> None:
        """Certificates at the budgets that are missing, where several processes share the work."""
        stored = read_certified(folder, self.plan, policy, method)[1]
        missing = [eps for eps in dict.fromkeys(wanted) if eps not in stored]
        if self.parallel > 1 and len(missing) > 1:
            device = next(policy.parameters()).device.type
            content = files.to_bytes(policy)
            orders = [(content, self.plan, eps, method, device) for eps in missing]
            report = self.listener.begin(f"{method} at {counted(len(missing), 'budget')}")
            self._in_processes(folder, worker.certify, orders, report)

    def _in_processes(
        self, folder: RowsFolder, work: Callable[..., None], orders: Sequence[tuple[Any, ...]], report: Progress
    ) -> None:
        """Jobs of this machine, whose rows are then joined; how far they are is read from the files in which they tell it."""
        jobs = [Job(folder.path, work, (number, *order)) for number, order in enumerate(orders)]
        shares = dict[Path, float]()
        began = time.time()

        def tick() -> None:
            for number in range(len(jobs)):
                path = folder.progress(number)
                with contextlib.suppress(FileNotFoundError, StoreError):
                    if path.stat().st_mtime >= began:
                        told = store.read_json(path)
                        shares[path] = told["done"] / told["of"]
                    continue
                if path in shares:
                    shares[path] = 1.0  # it was there, and ended
            report(round(PARTS * sum(shares.values())), PARTS * len(jobs))

        for _ in Workers(parallel=self.parallel).make_executor().run(jobs, lambda: False, tick):
            pass
        folder.gather()


def budgets(eps: Budgets | None) -> list[float]:
    """Those that were given; empty: the game's."""
    return [] if eps is None else [parse_eps(e) for e in several("eps", eps)]


def chosen_attacks(name: str | None, attacks: str | Attack | Sequence[str | Attack] | None) -> list[Attack]:
    """Those of a suite, or single ones."""
    if attacks is None:
        return list(suite("quick" if name is None else text("suite", name, "give its name, such as 'paper'")))
    if name is not None:
        raise ConfigError("both a suite and single attacks were given", "give one of the two")
    found = [named_attack(attack) for attack in several("attacks", attacks)]
    for attack in filter(lacks_source, found):
        warnings.warn(
            f"the source of {attack} cannot be read, so it is played again each time; put it into a file of its own",
            stacklevel=3,
        )
    return found


def named_attack(attack: Any, name: str = "attacks") -> Attack:
    """An attack by name, or as it is."""
    hint = "give a name such as 'pgd-30', or an attack such as RIFGSM()"
    if isinstance(attack, type):
        raise misfit(name, attack, hint)
    if callable(attack):
        return with_name(attack, getattr(attack, "__name__", type(attack).__name__))
    return attack_by_name(text(name, attack, hint))
