"""bcl.evaluate, bcl.certify and bcl.video: their arguments and help, which the command line reads without importing PyTorch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from bcl.api import Where

if TYPE_CHECKING:
    from bcl.api.evaluating import Certification, Onlooker
    from bcl.api.filming import Video
    from bcl.attacks import Attack
    from bcl.evaluation import Evaluation
    from bcl.policies import Policy
else:
    Attack = Policy = object

Budgets = float | str | Sequence[float | str]


def evaluate(
    agent: Policy | Where,
    *,
    suite: str | None = None,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    eps: Budgets | None = None,
    episodes: int | None = None,
    seed: int = 0,
    env_set: Literal["train", "eval"] | None = None,
    protocol: Literal["fixed", "first"] = "fixed",
    precision: Literal["fast", "full"] = "fast",
    num_envs: int = 0,
    starts: Literal["game", "varied"] | None = None,
    device: str = "auto",
    sanity: bool = False,
    parallel: int = 1,
    find_eps: bool = False,
    threshold: float | None = None,
    onlooker: "Onlooker | None" = None,
) -> "Evaluation":
    """Evaluate an agent under attack: mean return for every attack and budget, the worst case, and reasons for doubt.

    The agent is a run, a policy file or a policy. Attacks may be given by name or as they are. Of a run, the agent that its
    training began from is evaluated too; of a policy file, that file alone. With `find_eps` only budgets that are given are
    played, beside those of the search.

    Args:
        agent: A run directory, a policy file or an agent of `bcl zoo` (foreign agents: `bcl import` first).
        suite: quick (PGD-10; the default), paper (the paper's four attacks), strong, or learned (strong and an adversary
            that is trained against the agent).
        attacks: Single attacks instead of a suite: apgd, apgd-N (N steps), apgd-margin, corner-noise, fgsm, learned,
            learned-N (a training of N steps), mad, multi, multi-t, noise, pgd, pgd-N (N steps), ri-fgsm, square,
            worst-action, or module:Attack.
        eps: Budgets, such as 1/255 3/255; by default those of the game's preset.
        episodes: Episodes per score; by default as the game's preset says.
        seed: Seed of games and attacks.
        env_set: Procgen: the training levels, or the unlimited set.
        protocol: fixed: episodes per copy set beforehand; first: the first finished of 64 copies, as the reference on
            Procgen.
        precision: How attacks search on a GPU: fast is half precision for images; actions are always decided in full
            precision.
        num_envs: Copies of the game at once; 0 chooses.
        starts: game: as the game has them, on Atari with the paper's no-ops; varied: then a few random actions, so that no
            two episodes are the same; by default as evaluation.starts says, which is game.
        device: auto, cpu or cuda.
        sanity: Also attack with a budget of 1, which must bring the return to the floor.
        parallel: Processes that share the work; worth it on a CPU with several cores.
        find_eps: Also find the smallest budget of each attack at which the return falls below --threshold.
        threshold: With --find-eps: a return; by default half of that without attack, counted from the game's lowest.
    """
    arguments = locals()
    from bcl.api import evaluating

    return evaluating.evaluate(**arguments | {"onlooker": evaluating.NOBODY if onlooker is None else onlooker})


def certify(
    agent: Policy | Where,
    *,
    eps: Budgets | None = None,
    method: Literal["ibp", "crown-ibp", "crown", "auto"] = "auto",
    episodes: int | None = None,
    seed: int = 0,
    env_set: Literal["train", "eval"] | None = None,
    device: str = "auto",
    parallel: int = 1,
    onlooker: "Onlooker | None" = None,
) -> "Certification":
    """Prove what no attack can change: certified actions (ACR) and the greedy worst case (GWC) per budget.

    Args:
        agent: A run directory, a policy file or an agent of `bcl zoo`.
        eps: Budgets, such as 1/255; by default those of the run, or of the game's preset.
        method: Interval bounds, CROWN on intervals, or CROWN throughout: each tighter and slower than the one before. auto:
            the tightest that the network leaves affordable.
        episodes: Episodes, all played at once; by default as the run or the game's preset says.
        seed: Seed of the games.
        env_set: Procgen: the training levels, or the unlimited set.
        device: auto, cpu or cuda.
        parallel: Processes that share the work; worth it on a CPU with several cores.
    """
    arguments = locals()
    from bcl.api import evaluating

    return evaluating.certify(**arguments | {"onlooker": evaluating.NOBODY if onlooker is None else onlooker})


def video(
    agent: Policy | Where,
    *,
    attack: str | Attack = "pgd",
    eps: float | str | None = None,
    seed: int = 0,
    steps: int = 600,
    fps: float = 15.0,
    env_set: Literal["train", "eval"] | None = None,
    out: Where | None = None,
    device: str = "auto",
    onlooker: "Onlooker | None" = None,
) -> "Video":
    """Show an agent under attack: the game, the perturbation magnified, what the agent saw. Writes an mp4 and a GIF.

    Args:
        agent: A run directory, a policy file or an agent of `bcl zoo`.
        attack: apgd, apgd-margin, corner-noise, fgsm, learned, mad, multi, multi-t, noise, pgd, pgd-N (N steps), ri-fgsm,
            square, worst-action or module:Attack.
        eps: Budget, such as 3/255; 0 is no attack; by default the first of the run, or of the game's preset.
        seed: Seed of the game and of the attack: it is the episode that `bcl attack --episodes 1` plays with that seed.
        steps: Agent steps to show; 0: the whole episode.
        fps: Agent steps per second; Atari games are played at 15.
        env_set: Procgen: the training levels, or the unlimited set.
        out: Folder; by default videos in the run, or in FILE.results beside the file.
        device: auto, cpu or cuda.
    """
    arguments = locals()
    from bcl.api import evaluating, filming

    return filming.video(**arguments | {"onlooker": evaluating.NOBODY if onlooker is None else onlooker})
