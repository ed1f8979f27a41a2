"""The Python API is the command line: same cells, same weights, same refusals."""

import ast
import base64
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import bcl
from bcl.api import console, named_game
from bcl.attacks import RIFGSM, UniformNoise, attack_label
from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import BclError, ConfigError
from bcl.policies import Policy, PolicySpec
from bcl.policies.networks import from_layers, layers_of
from bcl.runs import store
from bcl.runs.directory import Piece, RunDirectory

TINY = {
    "network": {"hidden": [16]},
    "dqn": {"steps": 160, "num_envs": 8, "batch_size": 16, "samples_per_step": 4, "replay_initial": 32},
    "evaluation": {"episodes": 2, "eps": ["0.1"]},
}
TINY_FLAGS = [
    *("--network.hidden=16", "--dqn.steps=160", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *("--dqn.replay_initial=32", "--evaluation.episodes=2", "--evaluation.eps=0.1", "--device=cpu"),
]


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(0)
    game = resolve("cartpole").game
    env = make_env(game, 1)
    return Policy(PolicySpec("plain-mlp", (4,), 2, env.low, env.high, (16, 16), game=game)).eval()


def test_the_public_names_are_there_and_come_late() -> None:
    code = "import sys, bcl; assert 'torch' not in sys.modules; [getattr(bcl, name) for name in bcl.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    [typed] = [node for node in ast.parse(Path(bcl.__file__).read_text()).body if isinstance(node, ast.If)]
    seen_by_mypy = {alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen_by_mypy | {"__version__"} == {*bcl.__all__}


def test_evaluate_is_the_attack_command(in_folder: Callable[..., tuple[int, str, str]], policy: Policy) -> None:
    bcl.save(policy, "p.safetensors")
    found = bcl.evaluate("p.safetensors", suite="quick", eps=[0.1, "1/255"], episodes=2, seed=5, sanity=True)
    cells = Path("p.results/evals/scores.jsonl").read_text()
    words = ["--suite=quick", "--eps", "0.1", "1/255", "--episodes=2", "--seed=5", "--sanity", "--json"]
    code, out, _ = in_folder("attack", "p.safetensors", *words)
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(found.to_dict()))
    assert Path("p.results/evals/scores.jsonl").read_text() == cells  # read, not played again
    assert found.nominal is found.scores[0]
    assert found.worst[0.1].mean == min(score.mean for score in found.scores if score.eps == 0.1)
    assert "no attack" in str(found)
    assert found.worst_within[0.1].mean == min(score.mean for score in found.scores if score.eps <= 0.1)
    assert f"worst within 0.1: {found.worst_within[0.1].mean:.4g}" in str(found)


def test_an_attack_whose_source_cannot_be_read_is_played_each_time(tmp_path: Path, policy: Policy) -> None:
    bcl.save(policy, tmp_path / "p.safetensors")
    code = "class Raise:\n  def __repr__(self): return 'Raise()'\n  def __call__(self, policy, obs, eps, g): return obs + eps"
    typed_in: dict[str, Any] = {"__name__": "typed_in"}
    exec(code, typed_in)
    for _ in range(2):
        with pytest.warns(
            UserWarning, match=r"the source of Raise\(\) cannot be read, so it is played again each time"
        ):
            found = bcl.evaluate(tmp_path / "p.safetensors", attacks=typed_in["Raise"](), eps=0.1, episodes=1)
    assert len(found.scores) == 2
    rows = store.read_metrics(tmp_path / "p.results" / "evals" / "scores.jsonl")
    assert [row["eps"] for row in rows] == [0.0, 0.1, 0.1]


def test_certify_is_the_certify_command(in_folder: Callable[..., tuple[int, str, str]], policy: Policy) -> None:
    bcl.save(policy, "p.safetensors")
    found = bcl.certify("p.safetensors", eps=[0.01, 0.02], method="crown-ibp", episodes=2)
    words = ["--eps", "0.01", "0.02", "--method=crown-ibp", "--episodes=2", "--json"]
    code, out, _ = in_folder("certify", "p.safetensors", *words)
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(found.to_dict()))
    first, *lines = str(found).splitlines()
    assert first == "CartPole-v1: certificates by crown-ibp"
    assert [line.split(":")[0] for line in lines] == ["crown-ibp at 0.01", "crown-ibp at 0.02"]


def test_results_show_themselves_in_notebooks(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = bcl.evaluate(policy, attacks=["noise", "pgd-3"], eps=[0.1, 0.2], episodes=2)
    proven = bcl.certify(policy, eps=[0.01], episodes=2)
    assert repr(judged) == "Evaluation(an agent in memory on CartPole-v1, 5 scores)"
    assert repr(proven) == "Certification(an agent in memory on CartPole-v1, 1 budget)"
    html = judged._repr_html_()
    assert "<tr><th>attack</th><th>0</th><th>0.1</th><th>0.2</th></tr>" in html
    assert f"<tr><td>no attack</td><td>{judged.nominal}</td><td></td><td></td></tr>" in html
    lowest = judged.worst_within[0.2].mean
    assert html.count("<tr>") == 6  # header, nominal, two attacks, worst at exactly, worst within
    assert f"<td>{lowest:.4g}</td></tr></table>" in html
    assert f"<td>{proven.certificates[0].acr:.1%}</td>" in proven._repr_html_()

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(bcl.BclError, match="a data frame needs pandas; pip install pandas"):
        judged.to_frame()
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
    [nominal, *_] = rows = judged.to_frame()
    assert len(rows) == 5
    assert (nominal["attack"], nominal["eps"], nominal["mean"]) == ("no attack", 0.0, judged.nominal.mean)
    [row] = proven.to_frame()
    assert row["acr"] == proven.certificates[0].acr
    data = json.loads(json.dumps(proven.to_dict()))
    assert (data["policy"], data["method"], data["game"]["id"]) == ("an agent in memory", proven.method, "CartPole-v1")
    assert [proof["acr"] for proof in data["certificates"]] == [row["acr"]]


def test_bars_show_how_far_a_training_is(
    in_folder: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bcl.api.console.SECONDS_PER_LOOK", 0.0)
    monkeypatch.setattr("bcl.api.console.err", Console(stderr=True, force_terminal=True))
    bcl.train("cartpole", out="run", workers=bcl.Workers(device="cpu"), **TINY)
    assert "vanilla" in capsys.readouterr().err
    bcl.train("cartpole", out="silent", workers=bcl.Workers(device="cpu"), progress=False, **TINY)
    assert capsys.readouterr().err == ""


def test_compare_is_the_compare_command(
    in_folder: Callable[..., tuple[int, str, str]], policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("p.safetensors", "q.safetensors"):
        bcl.save(policy, name)
        bcl.evaluate(name, attacks="noise", eps=0.1, episodes=2)
    code, out, _ = in_folder("compare", "p.safetensors", "q.safetensors", "--format=json")
    assert code == 0
    found = bcl.compare("p.safetensors", Path("q.safetensors"))
    assert json.loads(out) == json.loads(json.dumps(found.to_dict()))
    assert repr(found) == "Comparison(p.safetensors, q.safetensors)"
    assert "<td>q.safetensors</td>" in found._repr_html_()
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
    rows = found.to_frame()
    assert [(row["agent"], row["eps"]) for row in rows] == [
        (name, eps) for name in ("p.safetensors", "q.safetensors") for eps in (0.0, 0.1)
    ]
    [block] = found.blocks
    assert [row["mean"] for row in rows] == [cell.median.mean for row in block.rows for cell in row.cells.values()]
    assert [row["exactly"] for row in rows] == [cell.exactly.mean for row in block.rows for cell in row.cells.values()]
    assert str(found) == in_folder("compare", "p.safetensors", "q.safetensors", "--format=markdown")[1].rstrip()


def test_video_is_the_video_command(
    in_folder: Callable[..., tuple[int, str, str]], policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    bcl.save(policy, "p.safetensors")
    made = bcl.video("p.safetensors", attack="noise", eps=0.1, steps=3, seed=2)
    ours = made.mp4.read_bytes(), made.gif.read_bytes()
    made.mp4.unlink()
    code, out, _ = in_folder("video", "p.safetensors", "--attack=noise", "--eps=0.1", "--steps=3", "--seed=2")
    assert code == 0
    assert (made.mp4.read_bytes(), made.gif.read_bytes()) == ours
    assert f"return {made.total:.4g} after 3 steps, {made.changed / made.steps:.0%} of actions" in out
    facts = json.loads(json.dumps(made.to_dict()))
    assert facts == {
        "mp4": str(made.mp4),
        "gif": str(made.gif),
        "eps": 0.1,
        "steps": 3,
        "changed": made.changed,
        "return": made.total,
    }
    assert base64.b64encode(ours[1]).decode() in made._repr_html_()
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
    assert made.to_frame() == [facts]
    found = bcl.video(policy, attack=UniformNoise(), eps=0.1, steps=3, seed=2, out="mine")
    assert found.gif.read_bytes() == ours[1]


def test_a_report_without_frames_plays_nothing(policy: Policy, tmp_path: Path) -> None:
    bcl.save(policy, tmp_path / "p.safetensors")
    made = bcl.report(tmp_path / "p.safetensors", frames=False)
    assert [path.name for path in made.file.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("parallel", [1, 2])
def test_what_on_row_raises_reaches_the_caller_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int
) -> None:
    monkeypatch.setattr(console, "SECONDS_PER_LOOK", 0.0)
    monkeypatch.chdir(tmp_path)
    workers = bcl.Workers(device="cpu", parallel=parallel)
    often = {**TINY, "dqn": {**TINY["dqn"], "log_steps": 40, "checkpoint_steps": 80, "checkpoint_replay": True}}
    rows = list[dict[str, Any]]()
    mistake = ZeroDivisionError("of the caller's")

    def on_row(folder: str, row: dict[str, Any]) -> None:
        rows.append(row)
        if len(rows) == 3:
            raise mistake

    with pytest.raises(ZeroDivisionError) as caught:
        bcl.train("cartpole", out="cut", workers=workers, on_row=on_row, **often)
    assert caught.value is mistake
    [note] = mistake.__notes__
    assert note.startswith("on_row raised this; what was trained is kept, continue with: bcl resume cut")
    if parallel == 1:  # a process that was ended while it wrote leaves such a file, which nothing reads
        assert not [path for path in Path("cut").rglob(".*") if path.suffix == ".tmp"]
    assert bcl.status("cut").state == "stopped"
    bcl.resume("cut", workers=workers)
    bcl.train("cartpole", out="whole", workers=workers, **often)
    cut, whole = (Path(run, "best", "policy.safetensors").read_bytes() for run in ("cut", "whole"))
    assert cut == whole


def test_train_is_the_train_command(
    in_folder: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    workers = bcl.Workers(device="cpu")
    rows: list[tuple[str, dict]] = []
    listening = {"say": said.append, "on_row": lambda folder, row: rows.append((folder, row))}
    run = bcl.train("cartpole", recipe="at", out="ours", seed=3, workers=workers, **listening, **TINY)
    assert in_folder("train", "cartpole", "--recipe=at", "--out=theirs", "--seed=3", *TINY_FLAGS)[0] == 0
    assert Path("ours/config.toml").read_text() == Path("theirs/config.toml").read_text()
    ours, theirs = (Path(name) / "best" / "policy.safetensors" for name in ("ours", "theirs"))
    assert ours.read_bytes() == theirs.read_bytes()
    flag = "flag unknown-learning: stage vanilla: it has too few episodes or rows of metrics to tell whether it learned"
    assert [line.split(",")[0] for line in said] == ["run: ours", "stage 1: vanilla", flag, "stage 2: at"]
    written = {name: store.read_metrics(run.folder / name / "metrics.jsonl") for name, _ in rows}
    assert rows == [(name, row) for name, its in written.items() for row in its]
    assert [*written] == ["stages/1-vanilla", "stages/2-at"]
    assert repr(run) == "Run('ours')"
    facts = json.loads(json.dumps(run.to_dict()))
    assert (facts["run"], facts["verdict"], facts["final_score"]) == ("ours", run.sentence, run.verdict.final_score)
    assert [score["mean"] for score in facts["evaluation"]["scores"]] == [
        score.mean for score in run.verdict.evaluation.scores
    ]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
        frame = run.to_frame()
    assert [(row["attack"], row["eps"], row["mean"]) for row in frame] == [
        (attack_label(score.attack), score.eps, score.mean) for score in run.verdict.evaluation.scores
    ]
    html = run._repr_html_()
    assert html.startswith(f"<p>ours: {run.sentence[:20]}")
    # A kill may leave it, and nothing is under way in a run that is finished.
    Piece("verdict", "PGD-30", 1, 2).write(run.folder / "evals" / "1-progress.json")
    now = bcl.status(run)
    assert "PGD-30" not in str(now)
    assert (now.state, now.rows[0]["game"], now.to_dict()["state"]) == ("finished", "CartPole-v1", "finished")
    assert in_folder("status", "ours")[1] == f"{now}\nnext: bcl report ours\n"
    page = bcl.report(run, frames=False)
    assert Path(page) == page.file == Path("ours/report.html")
    assert in_folder("report", "ours", "--no-frames")[1] == f"{page}\nnext: bcl video ours\n"
    facts = json.loads(json.dumps(page.to_dict()))
    assert (facts["report"], facts["state"]) == ("ours/report.html", "finished")
    assert facts["verdict"].startswith(run.sentence)
    assert len([*page._rows()]) == sum(len(evaluation["scores"]) for evaluation in facts["evaluations"])
    assert f"<caption>{run.verdict.evaluation.title}</caption>" in html
    assert bcl.resume(run, workers=workers, seed=3).verdict == run.verdict
    with pytest.raises(bcl.BclError, match=r"started with other settings \(seed\)"):
        bcl.resume(run, workers=workers, seed=4)
    assert bcl.load(run).spec == bcl.load("ours/best/policy.safetensors").spec
    again = bcl.train("cartpole", recipe="at", out="again", init=bcl.load(run), workers=workers, **TINY)
    assert [path.name for path in (again.folder / "stages").iterdir()] == ["2-at"]
    assert bcl.train("cartpole", recipe="at", out="ours", seed=3, workers=workers, **TINY).verdict == run.verdict
    with pytest.raises(bcl.BclError, match=r"started with other settings \(seed\)"):
        bcl.train("cartpole", recipe="at", out="ours", seed=4, **TINY)
    with pytest.raises(bcl.BclError, match=r"started with other settings \(init\)"):
        bcl.train("cartpole", recipe="at", out="ours", seed=3, init=bcl.load(run), **TINY)
    with pytest.raises(bcl.BclError, match=r"did you mean 'steps'"):
        bcl.train("cartpole", out="other", dqn={"step": 5})
    assert not Path("other").exists()


def test_settings_of_the_game_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bcl.experiment.finish", lambda *_: None)  # nothing is trained
    run = bcl.train("cartpole", out=tmp_path / "run", game={"processes": True})
    assert RunDirectory(run.folder).config.game.processes


def test_a_wrapped_network_is_judged_as_a_policy_with_its_weights(policy: Policy) -> None:
    wrapped = bcl.wrap(policy.chain(), "CartPole-v1")
    for judge in (bcl.evaluate, bcl.certify):
        ours, theirs = (judge(agent, eps=[0.1], episodes=2) for agent in (wrapped, policy))
        assert str(ours) == str(theirs)
        assert ours.folder is None


def test_a_wrapped_network_of_plain_layers_has_a_file_like_any_agent(policy: Policy, tmp_path: Path) -> None:
    body = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ELU(alpha=0.5), nn.Linear(8, 8))
    network = nn.Sequential(nn.Flatten(), body, nn.ReLU(inplace=True), nn.Linear(8, 2))
    wrapped, file = bcl.wrap(network, "CartPole-v1"), tmp_path / "mine.safetensors"
    bcl.save(wrapped, file)
    bcl.save(policy, tmp_path / "other.safetensors")
    obs = torch.rand(5, 4)
    assert torch.equal(bcl.load(file)(obs), wrapped(obs))
    for agent in (file, tmp_path / "other.safetensors"):
        bcl.evaluate(agent, attacks="noise", eps=0.1, episodes=2)
    assert bcl.report(file, frames=False).file.exists()
    assert len(bcl.compare(file, tmp_path / "other.safetensors").entries) == 2
    with pytest.raises(bcl.BclError, match="is a network of your own"):
        bcl.train("cartpole", init=file, out=tmp_path / "run")
    images = nn.Sequential(nn.Conv2d(3, 4, (3, 2), stride=2), nn.MaxPool2d(2), nn.Flatten(), nn.Tanh(), nn.Identity())
    again = from_layers(json.loads(json.dumps(layers_of(images))))
    assert repr(again) == repr(images)
    assert layers_of(nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2))) is None


class Doubled(nn.Module):
    """A layer for which there are no bounds."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return 2 * obs


class TwoAnswers(nn.Module):
    """Scores and a value, as actor-critics have them."""

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return obs[:, :2], obs[:, 2]


class ByHand(nn.Module):
    """Pushes to the side the pole falls to; what it knows is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor([[0.0, 0.0, -0.5, -0.5], [0.0, 0.0, 0.5, 0.5]]))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs @ self.weights.T


class Rule(nn.Module):
    """The same without anything that could be trained or stored."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        falls = (obs[:, 2:].sum(dim=1, keepdim=True)) / 2
        return torch.cat([-falls, falls], dim=1)


def test_a_module_without_parameters_is_attacked_like_others() -> None:
    by_hand, rule = (bcl.evaluate(bcl.wrap(one(), "CartPole-v1"), eps=[0.3], episodes=2) for one in (ByHand, Rule))
    assert [score.returns for score in by_hand.scores] == [score.returns for score in rule.scores]
    nominal, attacked = by_hand.scores
    assert nominal.mean > attacked.mean


def test_what_cannot_be_wrapped_or_certified_is_refused(tmp_path: Path) -> None:
    odd = bcl.wrap(nn.Sequential(Doubled(), nn.Linear(4, 2)), "CartPole-v1")
    assert len(bcl.evaluate(odd, eps=[0.1], episodes=1).scores) == 2
    with pytest.raises(bcl.BclError, match="Doubled"):
        bcl.certify(odd, eps=[0.1], episodes=1)
    with pytest.raises(bcl.BclError, match="state_dict"):
        bcl.save(odd, tmp_path / "p.safetensors")
    for network, complaint in (
        (nn.Linear(4, 3), "one action score for each of 2 actions"),
        (nn.Linear(5, 2), r"observations of shape \(4,\)"),
        (Doubled(), r"gives \(2, 4\) for 2 observations"),
        (TwoAnswers(), "gives a tuple for 2 observations"),
    ):
        with pytest.raises(bcl.BclError, match=complaint):
            bcl.wrap(network, "CartPole-v1")
    with pytest.raises(bcl.BclError, match=r"bcl\.wrap"):
        Policy(odd.spec)


def test_one_budget_or_attack_needs_no_list(policy: Policy) -> None:
    one, listed = (
        bcl.evaluate(policy, attacks=attacks, eps=eps, episodes=1)
        for attacks, eps in (("fgsm", "3/255"), (["fgsm"], [3 / 255]))
    )
    assert one.scores == listed.scores
    assert bcl.evaluate(policy, attacks=RIFGSM(), eps=0.1, episodes=np.int64(1)).scores[1].eps == 0.1


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda policy: bcl.evaluate(policy, eps=3j), "eps = 3j does not fit; give one or a list"),
        (lambda policy: bcl.evaluate(policy, eps=[]), "eps is empty; give one or a list, or leave it out"),
        (lambda policy: bcl.certify(policy, eps=()), "eps is empty"),
        (lambda policy: bcl.evaluate(policy, attacks=[]), "attacks is empty"),
        (lambda policy: bcl.evaluate(policy, attacks="pgd", suite="quick"), "both a suite and single attacks"),
        (lambda policy: bcl.evaluate(policy, eps=-1), r"eps = -1 is outside \[0, 1\]; write it like 3/255"),
        (lambda policy: bcl.evaluate(policy, suite=["quick"]), r"suite = \['quick'\] does not fit"),
        (lambda policy: bcl.evaluate(policy, attacks=[3]), "attacks = 3 does not fit; give a name such as 'pgd-30'"),
        (lambda policy: bcl.evaluate(policy, episodes=1.5), "episodes = 1.5 does not fit; give a whole number"),
        (lambda policy: bcl.certify(policy, seed="0"), "seed = '0' does not fit; give a whole number"),
        (lambda policy: bcl.evaluate(nn.Linear(4, 2)), r"agent = Linear.* does not fit; .*bcl\.wrap"),
        (
            lambda policy: bcl.report(policy),
            "run = Policy.* does not fit; give a run or a policy file; an agent in memory is first written .* by bcl.save",
        ),
        (lambda policy: bcl.compare(), "there is nothing to compare; give runs or policy files"),
        (lambda policy: bcl.compare(3), "run = 3 does not fit"),
        (lambda policy: bcl.video(policy), "an agent in memory has no folder; say where the video goes"),
        (lambda policy: bcl.video("x", steps=-1), "steps = -1 is not allowed"),
        (lambda policy: bcl.video("x", fps=0), "fps = 0 is not possible"),
        (lambda policy: bcl.load(policy), "path = Policy.* does not fit"),
        (lambda policy: bcl.wrap("x", "CartPole-v1"), "network = 'x' does not fit"),
        (lambda policy: bcl.wrap(policy, 3), "game = 3 does not fit"),
        (
            lambda policy: bcl.train("cartpole", workers={"parallel": 2}),
            r"workers = .* does not fit; give a bcl\.api\.workers\.Workers",
        ),
        (lambda policy: bcl.import_policy("x", "sb3", "CartPole-v1"), "'x' is not"),
        (lambda policy: bcl.import_policy("x", "sb3", "CartPol-v1"), "CartPol-v1"),
        (lambda policy: bcl.import_policy("x", "sb3", 3), "game = 3 does not fit"),
        (lambda policy: bcl.import_policy("x", 3, "cartpole"), "format = 3 does not fit"),
        (lambda policy: bcl.import_policy(3, "sb3", "cartpole"), "path = 3 does not fit"),
        (lambda policy: bcl.train("cartpole", recipe=3), "recipe = 3 does not fit; give its name, such as 'at'"),
        (lambda policy: bcl.train("cartpole", out=3), "out = 3 does not fit; give a path"),
        (lambda policy: bcl.train("cartpole", init=nn.Linear(4, 2)), "init = Linear.* does not fit; give a policy"),
        (
            lambda policy: bcl.train("cartpole", parallel=2),
            r"'parallel' is not .*; give workers=bcl\.Workers\(parallel=",
        ),
        (lambda policy: bcl.resume("x", workers=2), "workers = 2 does not fit"),
        (lambda policy: bcl.resume("x", parallel=2), r"'parallel' is not an argument of bcl\.resume; give workers"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    call: Callable[[Policy], object], complaint: str, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(bcl.BclError, match=complaint) as raised:
        call(policy)
    assert "\n" not in str(raised.value)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_no_run_says_what_to_give(policy: Policy, tmp_path: Path) -> None:
    def refusal(folder: Path) -> str:
        with pytest.raises(bcl.BclError) as refused:
            bcl.load(folder)
        return str(refused.value)

    empty = f"'{tmp_path}' is not a run directory: it has no config.toml; "
    assert refusal(tmp_path) == empty + "give a directory that 'bcl train' made, a policy file or zoo:NAME"
    run = bcl.train("cartpole", out=tmp_path / "mine", **TINY)
    assert refusal(tmp_path) == empty + f"give what is in it, such as {tmp_path / 'mine'}"
    stage = tmp_path / "mine" / "stages" / "1-vanilla"
    assert refusal(stage) == f"'{stage}' is a part of a run; give the run's own directory"
    RunDirectory(run.folder).best.unlink()
    assert (
        refusal(run.folder)
        == f"'{run.folder}' is finished but its weights are missing; copy best/ too, or give a policy file"
    )
    bcl.save(policy, tmp_path / "a.safetensors")
    assert refusal(tmp_path) == empty + f"give what is in it, such as {tmp_path / 'a.safetensors'}"


def test_repeats_are_those_of_the_train_command(
    in_folder: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = bcl.Workers(device="cpu")
    said: list[str] = []
    folders: list[str] = []
    listening = {"say": said.append, "on_row": lambda folder, row: folders.append(folder)}
    ours = bcl.train("cartpole", out="ours", seed=3, repeats=2, workers=workers, **listening, **TINY)
    assert isinstance(ours, bcl.RepeatedRun)
    assert [*dict.fromkeys(folders)] == ["seed3/stages/1-vanilla", "seed4/stages/1-vanilla"]
    assert repr(ours) == "RepeatedRun('ours')"
    assert "final scores of 2 repeats: " in ours._repr_html_()
    code, out, _ = in_folder("train", "cartpole", "--out=theirs", "--seed=3", "--repeats=2", *TINY_FLAGS)
    assert code == 0
    assert out == f"{ours}\nnext: bcl report ours\n".replace("ours", "theirs")
    assert [line for line in said if line.startswith("run: ")] == ["run: ours/seed3", "run: ours/seed4"]
    assert [line for line in said if line.startswith("verdict: ")] == [f"verdict: {r.sentence}" for r in ours.runs]
    assert ours.median in ours.runs
    assert ours.median.folder.name == ours.summary["median"]
    assert (ours.verdict, ours.sentence) == (ours.median.verdict, ours.median.sentence)
    again = bcl.resume("ours", workers=workers)
    assert again == ours
    facts = json.loads(json.dumps(ours.to_dict()))
    assert {run["run"]: run["final_score"] for run in facts["runs"]} == {
        f"ours/{name}": score for name, score in facts["final_scores"].items()
    }
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
    assert [row["run"] for row in ours.to_frame()] == ["ours/seed3", "ours/seed4"]
    assert bcl.train("cartpole", out="ours", seed=3, repeats=2, workers=workers, **TINY) == ours
    for repeats in (1, 3):
        with pytest.raises(bcl.BclError, match="'ours' is a run already, of 2 repeats; continue them with"):
            bcl.train("cartpole", out="ours", seed=3, repeats=repeats, workers=workers, **TINY)
    with pytest.raises(bcl.BclError, match=r"'ours.seed3' was started with other settings \(seed\)"):
        bcl.train("cartpole", out="ours", seed=4, repeats=2, workers=workers, **TINY)


def test_a_network_without_finite_scores_is_told_as_that() -> None:
    network = nn.Linear(4, 2)
    nn.init.constant_(network.weight, torch.nan)
    with pytest.raises(bcl.BclError, match="the policy's action scores are not finite"):
        bcl.evaluate(bcl.wrap(network, "CartPole-v1"), attacks="noise", eps=0.1, episodes=1)
    with pytest.raises(bcl.BclError, match="the policy's action scores are not finite"):
        bcl.certify(bcl.wrap(network, "CartPole-v1"), eps=0.1, episodes=1, method="ibp")
    with pytest.raises(bcl.BclError, match="of this policy has values that are not finite"):
        bcl.save(bcl.wrap(nn.Sequential(network), "CartPole-v1"), "broken.safetensors")
    assert not Path("broken.safetensors").exists()


def test_the_greedy_worst_case_in_data_is_that_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    done = bcl.certify(bcl.wrap(nn.Linear(4, 2), "CartPole-v1"), eps=0.05, episodes=2)
    [proof] = done.certificates
    lucky = dataclasses.replace(proof, gwc=proof.nominal + 5)  # the other way round happens to last longer
    done = dataclasses.replace(done, certificates=[lucky])
    [row] = done.to_frame().to_dict("records")
    assert (row["gwc"], row["gwc_played"]) == (proof.nominal, proof.nominal + 5)
    assert done.to_dict()["certificates"][0]["gwc"] == proof.nominal


OWN_GAME = """
import gymnasium
import numpy as np

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, bool(action), False, {}
"""


def test_an_environment_may_be_a_class_or_a_function(
    in_folder: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_game_for_test.py").write_text(OWN_GAME)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("own_game_for_test")
    assert bcl.wrap(nn.Linear(2, 2), module.Corridor).spec.num_actions == 2
    said: list[str] = []
    run = bcl.train(lambda: module.Corridor(), out="here", say=said.append, **TINY)
    assert any(line.startswith("the game is known to this process alone") for line in said)
    assert run.verdict.evaluation.scores[0].mean >= 1
    with monkeypatch.context() as another_process:
        another_process.delitem(gymnasium.registry, bcl.load(run).spec.game.id)
        code, _, err = in_folder("attack", "here", "--episodes", "1")
        assert code == 2
        assert (
            "a function or class of a script or notebook is known to its own process alone, so put it into a m" in err
        )
        code, _, err = in_folder("report", "here")
        assert code == 0
        assert "no sample frames: Gymnasium cannot make 'lambda-" in err
        assert "dqn.<wbr>steps" in Path("here/report.html").read_text()
        assert in_folder("report", "here", "--no-frames")[0] == 0
    with pytest.raises(bcl.BclError, match=r"other processes cannot import 'lambda-......-v0'; put it into a module"):
        bcl.train(lambda: module.Corridor(), workers=bcl.Workers(parallel=2), **TINY)

    run = bcl.train(module.Corridor, out="module", workers=bcl.Workers(parallel=2, device="cpu"), **TINY)
    assert bcl.load(run).spec.game.id == "own_game_for_test:Corridor"
    assert in_folder("attack", "module", "--attack", "noise", "--eps", "0.1", "--episodes", "2")[0] == 0
    assert in_folder("train", "own_game_for_test:Corridor", "--out=theirs", *TINY_FLAGS)[0] == 0
    assert "cannot make 'own_game_for_test:Nowhere'" in in_folder("train", "own_game_for_test:Nowhere")[2]


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"dqn": {"steps": float("nan")}}, 'give dqn={"steps": ...} a whole number'),
        ({"dqn": 3}, 'write dqn={"KEY": ...}, in a file dqn.KEY = VALUE'),
        ({"recipe": "at", "dqn": {"bound_eps": 0.1}}, 'leave it out, or give dqn={"bound_share": ...} above 0'),
    ],
)
def test_hints_about_settings_are_python_in_python(settings, hint, tmp_path):
    with pytest.raises(ConfigError) as told:
        bcl.train("cartpole", out=tmp_path / "run", **settings)
    assert told.value.hint == hint
    with pytest.raises(ConfigError, match="--dqn"):
        bcl.train("cartpole", out=tmp_path / "run", as_command=True, **settings)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"executor": "cloud"}, "executor = 'cloud' is not a choice; give executor one of local, ray"),
        ({"judge_beside": "maybe"}, "judge_beside = 'maybe' is not a choice"),
        ({"parallel": "2"}, "parallel = '2' does not fit"),
    ],
)
def test_workers_refuse_what_they_do_not_know(wrong, sentence):
    with pytest.raises(bcl.BclError) as told:
        bcl.Workers(**wrong)
    assert sentence in str(told.value)


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (["zoo", "pong-radial"], lambda: bcl.zoo_agents("pong-radial")),
        (["zoo"], bcl.zoo_agents),
        (["presets"], bcl.presets),
        (
            ["presets", "pong", "--recipe=at", "--dqn.steps=9"],
            lambda: bcl.presets("pong", recipe="at", dqn={"steps": 9}),
        ),
    ],
)
def test_a_list_prints_as_its_command_does(
    in_folder: Callable[..., tuple[int, str, str]], command: list[str], function: Callable[[], bcl.Listing]
) -> None:
    found = function()
    code, out, _ = in_folder(*command)
    assert code == 0
    assert out.startswith(f"{found}\n")
    assert all(line.startswith("next: ") for line in filter(None, out.removeprefix(str(found)).splitlines()))
    assert json.loads(json.dumps(found.to_dict()))
    assert len([*found._rows()]) > 2
    assert found._repr_html_().count("<tr>") == len(found.rows) + 1


def test_a_configuration_is_plain_data() -> None:
    found = bcl.presets("pong", recipe="at", dqn={"steps": 9}).to_dict()
    assert (found["recipe"], found["dqn"]["steps"]) == ("at", 9)
    assert "ppo" not in found


def test_a_measurement_says_its_lines_as_they_come() -> None:
    said: list[str] = []
    found = bcl.bench("env", "cartpole", num_envs=2, seconds=0.01, say=said.append)
    assert said == str(found).splitlines()
    [row] = found.to_dict()["rows"]
    assert row["steps_per_second"] > 0
    assert f"{row['steps_per_second']:,.0f}" in said[1]


def test_a_measurement_leaves_the_random_state_alone_and_refuses_games_first() -> None:
    torch.manual_seed(123)
    bcl.bench("attack", "pong", num_envs=1, seconds=0.001)
    assert torch.initial_seed() == 123
    said: list[str] = []
    with pytest.raises(ConfigError, match="only Atari games"):
        bcl.bench("attack", "cartpole", say=said.append)
    with pytest.raises(BclError, match="nope"):
        bcl.bench("env", "cartpole", "nope", say=said.append)
    assert not said


def test_two_environments_of_one_name_are_not_taken_for_each_other() -> None:
    def short_cartpole(steps: int) -> Callable[[], gymnasium.Env]:
        return lambda: gymnasium.make("CartPole-v1", max_episode_steps=steps)

    names = [
        named_game(short_cartpole(steps)) for steps in (5, 5, 7)
    ]  # twice as where a cell of a notebook is run again
    assert names[0] == names[1] != names[2]
    assert [gymnasium.make(name).spec.max_episode_steps for name in names] == [5, 5, 7]
    many = [
        np.arange(2000),
        np.arange(2000),
        np.arange(2000) % 1999,
    ]  # arrays are not compared by ==, nor printed whole
    names = [named_game(lambda scale=scale: scale) for scale in many]
    assert names[0] == names[1] != names[2]


def test_an_edited_class_has_scores_of_its_own(in_folder: Callable[..., tuple[int, str, str]]) -> None:
    def defined(source: str) -> dict[str, Any]:
        exec(source + "make = lambda: Corridor()", cell := {"__name__": "__main__"})
        return cell

    again, edited = defined("\n" + OWN_GAME), defined(OWN_GAME.replace("1.0, bool", "2.0, bool"))
    wider = defined(OWN_GAME.replace("Discrete(2)", "Discrete(3)"))
    for name in ("Corridor", "make"):
        names = [named_game(cell[name]) for cell in (defined(OWN_GAME), again, edited, wider)]
        assert names[0] == names[1]
        assert len({*names}) == 3
    network = nn.Linear(2, 2)
    network.bias.data = torch.tensor([0.0, 1.0])  # the action that ends an episode
    scores = []
    for cell in (again, edited):
        bcl.save(bcl.wrap(network, cell["Corridor"]), "mine.safetensors")
        scores.append(bcl.evaluate("mine.safetensors", attacks="noise", eps=0.1, episodes=1).nominal.mean)
    assert scores == [1, 2]


def test_an_id_is_the_same_in_every_process() -> None:
    script = (
        OWN_GAME
        + """
from bcl.api import named_game
names = {"left", "right", "up"}
def limit(env, rng=np.random.default_rng(0)):
    return env if env.metadata in ({"a", "b", "c"}, names) else Corridor()
print(named_game(lambda: limit(Corridor())), named_game(limit), named_game(Corridor))
"""
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(said) == 1


def test_rows_of_a_list_may_lack_columns() -> None:
    html = bcl.Listing("t", [{"a": 1}, {"a": 2, "b": 3}], "", {})._repr_html_()
    assert html.count("<th>") == 2
    assert "25/255" in bcl.zoo_agents()._repr_html_()


def test_a_result_is_a_data_frame(policy: Policy) -> None:
    import pandas

    judged = bcl.evaluate(policy, attacks="noise", eps=0.1, episodes=2)
    frame = judged.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert [*frame["mean"]] == [score.mean for score in judged.scores]
    assert [*bcl.zoo_agents().to_frame()["name"]] == [row["name"] for row in bcl.zoo_agents().rows]
