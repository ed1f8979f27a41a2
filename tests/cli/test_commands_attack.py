"""bcl attack and bcl certify as a person meets them."""

import dataclasses
import importlib
import json
import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
import torch

from bcl.api import console
from bcl.attacks import PGD, Attack, UniformNoise
from bcl.evaluation import Evaluation, Score, affordable_method
from bcl.games import GymnasiumGame
from bcl.policies import Policy, PolicySpec, default_kind
from bcl.policies.files import fingerprint, load, save
from bcl.reports.tables import print_table
from bcl.runs import store


def test_attack_prints_a_table_and_keeps_the_cells(bcl, tmp_path: Path) -> None:
    code, out, _ = bcl("attack", "p.safetensors", "--eps", "0.05", "0.2", "--episodes", "4")
    assert code == 0
    for word in (
        "no attack",
        "PGD-10",
        "0.05",
        "0.2",
        "worst at exactly",
        "worst within",
        "next: bcl attack",
    ):
        assert word in out
    file = tmp_path / "p.results" / "evals" / "scores.jsonl"
    stamp = file.stat().st_mtime_ns
    assert bcl("attack", "p.safetensors", "--eps", "0.05", "0.2", "--episodes", "4")[1] == out
    assert file.stat().st_mtime_ns == stamp  # read, not played again
    _, cell, _ = store.read_metrics(file)
    assert cell["adversary"]["kind"] == "PGD"
    assert {"returns", "changed", "max_perturbation", "seed", "attack", "eps", "game", "agent", "torch"} <= cell.keys()


def test_attack_as_json(bcl) -> None:
    code, out, err = bcl(
        "attack", "p.safetensors", "--attack", "noise", "pgd-3", "--eps", "0.1", "--episodes", "2", "--json"
    )
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert [s["attack"] for s in data["scores"]][:2] == ["none", "UniformNoise()"]
    assert data["worst"]["0.1"]["mean"] == min(score["mean"] for score in data["scores"][1:])
    assert data["worst_within"]["0.1"]["mean"] == min(score["mean"] for score in data["scores"])


def test_the_table_ends_with_the_worst_at_exactly_each_budget_and_within_it(capsys: pytest.CaptureFixture[str]) -> None:
    def score(attack: Attack | None, eps: float, *returns: float) -> Score:
        return Score(attack, eps, returns, (1,) * len(returns), 0.5, eps, 0.0, 0, "fixed")

    pgd, noise = PGD(steps=30, step=0.1), UniformNoise()
    scores = [score(None, 0.0, 500, 500), score(pgd, 0.03, 120, 128), score(pgd, 0.06, 320, 332)]
    found = Evaluation(GymnasiumGame("CartPole-v1"), [*scores, score(noise, 0.06, 310, 430)])
    print_table(found.table(), console.out)
    lines = [re.split(r"\s*[│┃]\s*", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: line[1:] for line in lines if line}
    assert [*rows][-2:] == ["worst at exactly", "worst within"]
    assert rows["worst at exactly"] == ["500", "124", "326"]  # the paper's number
    assert rows["worst within"] == ["500", "124", "124"]
    assert "worst at exactly 0.06: 326\nworst within 0.06: 124" in str(found)


def test_a_lower_score_that_is_stored_is_named_below_the_table(bcl) -> None:
    policy = load("p.safetensors")
    balancing = Policy(dataclasses.replace(policy.spec, kind="plain-mlp", hidden=()))
    with torch.no_grad():
        balancing.network.model[1].weight.copy_(torch.tensor([[0.0] * 4, [0.0, 0.0, 1.0, 1.0]]))  # where the pole leans
        balancing.network.model[1].bias.zero_()
    save(balancing, "p.safetensors")
    where = ("attack", "p.safetensors", "--eps", "0.2", "--episodes", "4")
    strong, weak = (json.loads(bcl(*where, "--attack", name, "--json")[1]) for name in ("fgsm", "noise"))
    lowest, known = (data["worst_within"]["0.2"]["mean"] for data in (strong, weak))
    assert lowest < known
    said = f"{lowest:.4g} under FGSM at 0.2"
    assert (strong["lower"], weak["lower"]) == ([], [said])
    note = f"other evaluations gave less: {said}"
    assert note in bcl(*where, "--attack", "noise")[1]
    assert note not in bcl(*where, "--attack", "noise", "fgsm")[1]
    assert f"{note} (4 episodes)" in bcl(*where[:-1], "5", "--attack", "noise")[1]
    # With other starts it is another task.
    assert "gave less" not in bcl(*where, "--attack", "noise", "--starts", "varied")[1]


def test_sanity_attacks_with_everything(bcl) -> None:
    code, out, _ = bcl("attack", "p.safetensors", "--eps", "0.1", "--episodes", "2", "--sanity")
    assert code == 0
    assert "1.0" in out


def test_the_next_command_quotes_a_path_with_a_space(bcl, tmp_path: Path) -> None:
    (tmp_path / "my agents").mkdir()
    agent = (tmp_path / "p.safetensors").rename(tmp_path / "my agents" / "p.safetensors")
    few = ("--eps", "0.1", "--episodes", "1")
    for words, following in (
        (("attack", *few), ("attack", "--suite", "strong", *few)),
        (
            ("attack", "--starts", "varied", "--num-envs", "1", "--seed", "3", *few),
            ("attack", "--suite", "strong", *few, "--seed", "3", "--starts", "varied", "--num-envs", "1"),
        ),
        (("certify", "--method", "ibp", *few), ("certify", "--eps", "0.1", "--method", "crown", "--episodes", "1")),
        (("certify", "--method", "crown", *few), ("report",)),
    ):
        code, out, _ = bcl(words[0], str(agent), *words[1:])
        assert code == 0
        assert out.splitlines()[-1].startswith("next: bcl ")
        assert shlex.split(out.splitlines()[-1])[2:] == [following[0], str(agent), *following[1:]]


def test_a_run_directory_stands_for_its_best_policy(bcl, tmp_path: Path) -> None:
    code, _, err = bcl("attack", str(tmp_path), "--eps", "0.1")
    assert code == 2
    assert (
        f"is not a run directory: it has no config.toml; give what is in it, such as {tmp_path / 'p.safetensors'}"
        in err
    )
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "repeats.json").write_text('{"runs": ["seed0", "seed1", "seed2"]}')
    assert "'three' holds 3 repeats; give one of them, such as three/seed0" in bcl("attack", "three")[2]
    (tmp_path / "run" / "best").mkdir(parents=True)
    (tmp_path / "p.safetensors").rename(tmp_path / "run" / "best" / "policy.safetensors")
    assert bcl("attack", "run", "--eps", "0.1", "--episodes", "2")[0] == 0
    assert (tmp_path / "run" / "evals").is_dir()


@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_certify_prints_a_table(bcl, tmp_path: Path, method: str) -> None:
    code, out, _ = bcl("certify", "p.safetensors", "--eps", "0.01", "--method", method, "--episodes", "2")
    assert code == 0
    assert "ACR" in out
    [kept] = (tmp_path / "p.results" / "certs").iterdir()
    about = json.loads(kept.read_text())
    assert (about["agent"], about["device"]) == (fingerprint(load(tmp_path / "p.safetensors")), "cpu")
    assert about["game"]["id"] == "CartPole-v1"
    code, out, _ = bcl("certify", "p.safetensors", "--eps", "0.01", "--method", method, "--episodes", "2", "--json")
    assert json.loads(out)["certificates"][0]["method"] == method


def test_certify_names_a_layer_that_has_no_bounds(bcl, tmp_path: Path) -> None:
    spec = load(tmp_path / "p.safetensors").spec
    elu = dataclasses.replace(spec, kind="plain-mlp", activation="elu")
    save(Policy(elu), tmp_path / "elu.safetensors")
    code, _, err = bcl("certify", "elu.safetensors", "--eps", "0.01", "--episodes", "1")
    assert code == 2
    assert err.startswith("bcl: cannot bound layer ELU(alpha=1.0); only Linear, ")
    assert err.endswith(" have bounds; attacks need none\n")
    assert bcl("attack", "elu.safetensors", "--attack", "fgsm", "--eps", "0.01", "--episodes", "1")[0] == 0


def test_the_tightest_method_that_is_affordable_is_the_default(bcl) -> None:
    code, out, _ = bcl("certify", "p.safetensors", "--eps", "0.01", "--episodes", "2")
    assert code == 0
    assert "certificates by crown (the tightest, affordable on a small network)" in " ".join(out.split())
    asked = json.loads(bcl("certify", "p.safetensors", "--eps=0.01", "--method=crown", "--episodes=2", "--json")[1])
    assert json.loads(bcl("certify", "p.safetensors", "--eps=0.01", "--episodes=2", "--json")[1]) == asked


@pytest.mark.parametrize(("game", "method"), [("pong", "crown-ibp"), ("fruitbot", "ibp"), ("cartpole", "crown")])
def test_large_networks_get_a_cheaper_method(game: str, method: str) -> None:
    shape = {"pong": (1, 84, 84), "fruitbot": (3, 64, 64), "cartpole": (4,)}[game]
    kind = default_kind(shape, "ppo" if game == "fruitbot" else "dqn")
    policy = Policy(PolicySpec(kind, shape, 2, (0.0,), (1.0,), (64,)))
    assert affordable_method(policy)[0] == method
    if game == "cartpole":
        assert affordable_method(Policy(PolicySpec(kind, shape, 2, (0.0,), (1.0,), (8192,))))[0] == "crown-ibp"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["attack", "p.safetensors", "--eps", "3"], "3/255"),
        (["attack", "p.safetensors", "--suite", "papr"], "did you mean 'paper'"),
        (["attack", "p.safetensors", "--attack", "pgd", "--suite", "quick"], "give one of the two"),
        (["attack", "p.safetensors", "--attack", "pdg"], "did you mean 'pgd'"),
        (["attack", "p.safetensors", "--env-set", "eval"], "no sets of levels"),
        (["attack", "p.safetensors", "--env-set", "both"], "no sets of levels; --env-set is for Procgen games"),
        (["attack", "p.safetensors", "--env-set", "both", "--find-eps"], "no sets of levels; --env-set is for"),
        (
            ["attack", "zoo:jumper-distilled", "--env-set", "both", "--find-eps"],
            "--find-eps searches on one set of levels",
        ),
        (["certify", "p.safetensors", "--env-set", "both"], "--env-set"),
        (["attack", "p.safetensors", "--episodes", "0"], "at least 1"),
        (["attack", "p.safetensors", "--device", "tpu"], "auto, cpu or cuda"),
        (["attack", "p.safetensors", "--nonsense"], "--nonsense"),
        (["attack", "none.safetensors"], "does not exist"),
        (["certify", "p.safetensors", "--eps", "2"], "2/255"),
        (["certify", "p.safetensors", "--method", "magic"], "method"),
        (["certify", "p.safetensors", "--episodes", "0"], "at least 1"),
        (["certify"], "RUN|FILE"),
    ],
)
def test_mistakes_are_one_sentence(bcl, words: list[str], expected: str) -> None:
    code, out, err = bcl(*words)
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err


@pytest.mark.parametrize("command", ["attack", "certify"])
def test_results_that_cannot_be_written_are_refused_before_the_work(bcl, tmp_path: Path, command: str) -> None:
    (tmp_path / "p.results").touch()  # in the way, as permissions would be
    code, _, err = bcl(command, "p.safetensors", "--eps", "0.1", "--episodes", "2")
    assert (code, err.count("\n")) == (2, 1)
    assert "copy it to a folder that you may write to" in err
    assert "--out" not in err


@pytest.mark.parametrize("command", ["attack", "certify"])
def test_ctrl_c_says_that_results_are_kept(bcl, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("api.playing.run_suite", "evaluation.run_certificates"):
        monkeypatch.setattr(f"bcl.{name}", interrupt)
    code, _, err = bcl(command, "p.safetensors", "--eps", "0.1", "--episodes", "2")
    assert (code, err) == (130, "bcl: interrupted; what is finished is kept, the same command goes on from there\n")


OWN_ATTACKS = """
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class Up:
    share: float = 1.0
    def __call__(self, policy, obs, eps, generator):
        return obs + self.share * eps

class Nameless:
    def __call__(self, policy, obs, eps, generator):
        return obs

half = Up(0.5)
"""


def test_an_attack_of_ones_own_by_its_module(bcl, tmp_path: Path) -> None:
    (tmp_path / "own_attacks.py").write_text(OWN_ATTACKS)
    words = ["attack", "p.safetensors", "--eps", "0.1", "--episodes", "2", "--attack"]
    code, out, _ = bcl(*words, "own_attacks:Up", "own_attacks:half", "--json")
    assert code == 0
    assert [score["attack"] for score in json.loads(out)["scores"][1:]] == ["Up(share=1.0)", "Up(share=0.5)"]
    assert "make it a frozen dataclass" in bcl(*words, "own_attacks:Nameless")[2]
    for name in ("own_attacks:Down", "nowhere:Up"):
        code, _, err = bcl(*words, name)
        assert (code, err.count("\n")) == (2, 1)
        assert f"cannot take the attack '{name}'" in err


def test_a_foreign_agent_gets_a_verdict(bcl, tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0).learn(64).save(tmp_path / "agent.zip")
    assert bcl("import", "agent.zip", "--format", "sb3", "--game", "cartpole", "--out", "mine.safetensors")[0] == 0
    assert "PGD" in bcl("attack", "mine.safetensors", "--eps", "0.1", "--episodes", "2")[1]
    assert "ACR" in bcl("certify", "mine.safetensors", "--eps", "0.01", "--episodes", "2", "--method", "crown")[1]


OWN = """from dataclasses import dataclass

@dataclass(frozen=True)
class A:
    def __call__(self, policy, obs, eps, generator):
        return obs + eps
"""


def test_an_edited_attack_is_played_anew_and_one_of_another_module_has_a_row_of_its_own(
    bcl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit within a second would not be seen
    scores = tmp_path / "p.results" / "evals" / "scores.jsonl"

    def play(*attacks: str) -> tuple[int, str]:
        for module in ("one", "other"):
            sys.modules.pop(module, None)
        importlib.invalidate_caches()
        code, out, err = bcl("attack", "p.safetensors", "--attack", *attacks, "--eps", "0.1", "--episodes", "1")
        assert code == 0, err
        return len(scores.read_text().splitlines()), out

    Path("one.py").write_text(OWN)
    Path("other.py").write_text(OWN)
    assert play("one:A")[0] == play("one:A")[0] == 2
    Path("one.py").write_text(OWN.replace("obs + eps", "obs - eps"))
    assert play("one:A")[0] == 3
    rows, out = play("one:A", "other:A")
    assert rows == 4
    assert "one:A" in out
    assert "other:A" in out


UNREADABLE = """typed_in = {"__name__": "typed_in"}
exec('class A:\\n __repr__ = lambda self: "A()"\\n def __call__(self, policy, obs, eps, g): return obs', typed_in)
A = typed_in["A"]
"""


@pytest.mark.filterwarnings("default:the source of")
def test_a_warning_is_one_plain_line(bcl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("unreadable.py").write_text(UNREADABLE)
    before = warnings.showwarning
    code, _, err = bcl("attack", "p.safetensors", "--attack", "unreadable:A", "--eps", "0.1", "--episodes", "1")
    assert code == 0, err
    said = "the source of A() cannot be read, so it is played again each time; put it into a file of its own"
    assert err.splitlines()[0] == f"warning: {said}"
    assert "UserWarning" not in err
    assert warnings.showwarning is before


@pytest.mark.parametrize("attack", ["math:sqrt", "torch:sqrt", "shlex:quote"])
def test_a_bare_function_is_no_attack(bcl, attack: str) -> None:
    code, out, err = bcl("attack", "p.safetensors", "--attack", attack, "--eps", "0.1", "--episodes", "1")
    hint = "make it a frozen dataclass with __call__"
    assert (code, out, err) == (2, "", f"bcl: the attack '{attack}' has no name of its own; {hint}\n")
    assert not Path("p.results").exists()
