"""The zoo: every agent that is shipped is what it says; mistakes and damage are told; agents can be published."""

import dataclasses
import importlib
import shlex
import shutil
import sys
import tarfile
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bcl
from bcl import zoo
from bcl.api import playing
from bcl.attacks import FGSM, PGD, Attack, Learned, attack_label, attack_to_dict, attacks_named
from bcl.cli.main import functions_of
from bcl.cli.options import parse
from bcl.config import EvaluationConfig, config_from_dict, config_from_toml, resolve
from bcl.envs import make_env
from bcl.errors import StoreError, WeightsError
from bcl.evaluation import Breaking, Evaluation, Score, read_certificates, read_evaluations, watch
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint
from bcl.runs import store
from bcl.runs.directory import CONFIG, POLICY, RunDirectory
from bcl.settings import difference, parse_eps, parse_settings, to_toml

Cli = Callable[..., tuple[int, str, str]]
# The scores of two actions, from a unit that is 0 and one that is not; the second action is the better one in each.
RECORDS = Path(__file__).parents[1] / "benchmarks" / "results"
HEADS = {
    "int8": [[0.0, 1.0], [0.0, 2.0]],  # exact in 8 bits
    "float16": [[0.3, 1.0], [0.3, 2.0]],
    "int16": [[0.3, 1.0], [0.3, 1.00001]],  # equal as float16
    "float32": [[1.0, 0.0], [1.0, 1e-9]],  # equal in 16 bits
}


@pytest.fixture
def publishing(monkeypatch: pytest.MonkeyPatch):
    """benchmarks/publish.py; `python benchmarks/publish.py` finds its neighbours in the same way."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module("publish")


def save_with_head(head: list[list[float]], path: Path) -> Policy:
    game = resolve("cartpole").game
    env = make_env(game, 1)
    policy = Policy(PolicySpec("plain-mlp", (4,), 2, env.low, env.high, (2,), game=game)).eval()
    values = [torch.zeros(2, 4), torch.tensor([0.0, 1.0]), torch.tensor(head), torch.zeros(2)]
    policy.network.load_state_dict(dict(zip(policy.network.state_dict(), values, strict=True)))
    bcl.save(policy, path)
    return policy


@pytest.fixture
def publish(publishing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Policy]:
    """Judge an agent of CartPole with this head and publish it as zoo:mine, in a zoo of its own."""
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    monkeypatch.setattr(publishing, "SMALL", 0)  # this one is, but most tests are of large ones

    def call(head: list[list[float]], *more: str) -> Policy:
        policy = save_with_head(head, tmp_path / "p.safetensors")
        bcl.evaluate(tmp_path / "p.safetensors", suite="quick", eps=[0.1], episodes=2)
        (tmp_path / "config.toml").write_text(to_toml(resolve("cartpole", settings={"seed": 3})))
        words = (
            f"mine {tmp_path / 'p.safetensors'} --results {tmp_path / 'p.results'} --config {tmp_path / 'config.toml'}"
        )
        told = [
            "--command",
            'bcl train cartpole --note "x"',
            "--commit",
            "abc",
            "--machine",
            "H200",
            "--minutes",
            "0.5",
            "--suite",
            "quick",
            *more,
        ]
        monkeypatch.setattr(sys, "argv", ["publish.py", *words.split(), *told])
        publishing.main()
        return policy

    return call


def test_other_paths_are_not_of_the_zoo() -> None:
    assert zoo.find(Path("policy.safetensors")) is None
    assert zoo.find(Path("runs/zoo:x")) is None


@pytest.mark.parametrize("name", zoo.names())
def test_a_shipped_agent_is_what_it_says(name: str, publishing) -> None:
    agent = zoo.named(name)
    for field, kind in typing.get_type_hints(zoo.ZooAgent).items():
        assert isinstance(getattr(agent, field), typing.get_origin(kind) or kind), field
    assert agent.file.stat().st_size <= publishing.MAX_BYTES
    policy = bcl.load(f"zoo:{name}")
    assert policy.spec.game
    assert (fingerprint(policy), policy.spec.game.id) == (agent.policy, agent.game)
    config = config_from_dict(tomllib.loads((agent.folder / CONFIG).read_text()))
    assert (config.recipe, config.seed, config.game.id) == (agent.recipe, agent.seed, agent.game)
    found = read_evaluations(agent.results.scores, agent.judged)
    [judged] = [one for one in found if one.starts == "game" and one.levels != "eval"]
    assert (publishing.means(judged, agent.suite), judged.episodes) == (agent.returns, agent.episodes)
    unlimited = [publishing.means(one, agent.suite) for one in found if one.levels == "eval"]
    assert unlimited == ([agent.unlimited] if agent.unlimited else [])
    varied = [publishing.means(one, agent.suite) for one in found if one.starts == "varied"]
    assert varied == ([agent.varied] if agent.varied else [])
    assert agent.attacks == {
        one.starts: ", ".join(map(attack_label, publishing.attacks_of(one, agent.suite)))
        for one in found
        if one.starts == "varied" and publishing.attacks_of(one, agent.suite) != attacks_named(agent.suite)
    }


LATER_DEFAULTS = ("curriculum.expected_return", "curriculum.judged_steps", "dqn.accelerate", "ppo.accelerate")


@pytest.mark.parametrize("name", zoo.names())
def test_the_command_of_a_shipped_agent_makes_one_like_it_from_scratch(name: str) -> None:
    agent, made = zoo.named(name), {None, *(Path(zoo.PREFIX + other) for other in zoo.names() if other != name)}
    for line in agent.command.split(" && "):
        assert line.startswith("bcl train ")
        [given, *_], settings = parse("train", functions_of("train"), shlex.split(line)[2:])
        assert given.get("init") in made  # by a command before it, or by that of another agent
        made.add(given.get("out"))
        flags = parse_settings([*settings, f"--seed={given.get('seed', 0)}"])
        config = resolve(given["game"], recipe=given.get("recipe"), settings=flags)
    trained = config_from_toml((agent.folder / CONFIG).read_text())
    # The verdict's suite, where the zoo has its own; defaults that came later and change nothing about the method.
    assert {*difference(config, trained)} <= {"evaluation.suite", *LATER_DEFAULTS}


@pytest.mark.parametrize("name", zoo.names())
def test_a_shipped_agent_plays(name: str) -> None:
    policy = bcl.load(f"zoo:{name}")
    assert policy.spec.game
    pytest.importorskip({"atari": "ale_py", "procgen": "procgen"}.get(policy.spec.game.engine, "gymnasium"))
    env = make_env(policy.spec.game, 1)
    moments = [moment for seed in range(3) for moment in watch(policy, env, None, 0.0, seed=seed, steps=60)]
    assert len({moment.taken for moment in moments}) > 1


def test_the_command_line_takes_a_shipped_agent(
    in_folder: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setattr(playing, "evaluation_defaults", lambda game: EvaluationConfig(max_steps=20, eps=(1 / 255,)))
    before = sorted(zoo.FOLDER.rglob("*"))
    code, out, _ = in_folder("attack", "zoo:pong-radial", "--attack", "noise", "--episodes", "1")
    assert code == 0
    assert "results: runs/zoo-pong-radial.results/evals" in out
    assert "next: bcl attack zoo:pong-radial --suite strong --episodes 1\n" in out
    rows = store.read_metrics(tmp_path / "runs" / "zoo-pong-radial.results" / "evals" / "scores.jsonl")
    published = [float(parse_eps(eps)) for eps in zoo.named("pong-radial").returns]
    assert sorted(row["eps"] for row in rows) == published  # of noise too, so that what was published is repeated
    assert sorted(zoo.FOLDER.rglob("*")) == before


def test_shipped_pong_agents_were_judged_whole_and_compare(publishing) -> None:
    names = ("pong-vanilla", "pong-radial", "pong-bcl-fast-at")
    for name in names:
        found = read_evaluations(zoo.named(name).results.scores, zoo.named(name).judged)
        [judged] = [one for one in found if one.starts == "game"]
        assert [*publishing.means(judged, "paper")] == ["0", *(f"{level}/255" for level in (1, 3, 5, 10, 15, 20, 25))]
        assert len(publishing.means(judged, "strong")) == 1 + 2
        [(_, proof)] = read_certificates(zoo.named(name).results.certificates, zoo.named(name).judged)
        assert (proof.method, proof.eps) == ("ibp", 1 / 255)
    block = bcl.compare(*(f"zoo:{name}" for name in names)).blocks[0]
    assert all(row.score is not None for row in block.rows)
    assert "zoo:pong-radial has -8.8 at 3/255 under APGD-100 margin, which not all faced" in block.notes


def test_the_list_shows_every_agent_and_one_in_full(in_folder: Cli) -> None:
    code, out, _ = in_folder("zoo")
    assert code == 0
    assert all(f"  {name} " in out for name in zoo.names())
    assert max(map(len, out.splitlines())) <= 80
    assert not any(line.endswith(":") for line in out.splitlines()[2:])  # budgets and their returns stay together
    words = " ".join(out.split())
    assert "0: 21, 1/255: 21, 3/255: 21, 5/255: -18.05, 10/255: -21" in words
    assert "15/255: 12.4, 20/255: 12.4, 25/255: 12.4 (paper)" in words  # 20.6 and 20.7 at exactly these budgets
    agent = zoo.named("pong-radial")
    assert in_folder("zoo", "pong-radial")[1] == (agent.folder / zoo.ABOUT).read_text()


def test_an_unknown_agent_is_refused_with_the_closest(in_folder: Cli) -> None:
    for command in ("attack", "certify", "video", "report", "compare", "zoo"):
        code, _, err = in_folder(command, "zoo:pong-radail")
        assert (code, err) == (2, "bcl: the zoo has no agent 'pong-radail'; did you mean 'pong-radial'?\n")
    assert "'bcl zoo' lists them" in in_folder("train", "cartpole", "--init", "zoo:xyz")[2]
    assert "'bcl zoo' lists them" in in_folder("attack", "zoo:../zoo")[2]


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (POLICY, None, "cannot read '{}': No such file or directory"),
        (POLICY, b"\0" * 64, "'{}' is damaged: its checksum is not the published one"),
        (zoo.ABOUT, b"game = ", "'{}' is damaged (Invalid value"),
        (zoo.ABOUT, b"game = 'pong'", "'{}' is damaged (ZooAgent.__init__() missing"),
    ],
)
def test_damage_is_told_with_the_way_out(
    file: str, content: bytes | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(zoo.FOLDER / "pong-radial", tmp_path / "mine")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    bcl.load("zoo:mine")
    damaged = tmp_path / "mine" / file
    damaged.unlink() if content is None else damaged.write_bytes(content)
    with pytest.raises(WeightsError) as caught:
        bcl.load("zoo:mine")
    assert str(caught.value).startswith(sentence.format(damaged))
    assert str(caught.value).endswith("; " + zoo.RESTORE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", HEADS)
def test_weights_are_rounded_where_nothing_or_no_action_changes(publish, form: str) -> None:
    policy = publish(HEADS[form])
    agent, loaded = zoo.named("mine"), bcl.load("zoo:mine")
    assert agent.weights == form
    assert (agent.policy, agent.judged) == (fingerprint(loaded), fingerprint(policy))
    assert (agent.recipe, agent.seed, agent.minutes) == ("vanilla", 3, 0.5)
    assert agent.command == 'bcl train cartpole --note "x"'
    assert agent.returns.keys() == {"0", "0.1"}
    assert int(loaded(torch.zeros(1, 4)).argmax()) == 1


def test_small_weights_are_stored_as_they_are(publish, publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SMALL", 10_000)
    policy = publish(HEADS["float16"])
    agent = zoo.named("mine")
    assert (agent.weights, agent.policy, agent.judged) == ("float32", fingerprint(policy), fingerprint(policy))


def test_an_agent_that_fits_in_no_form_is_not_published(
    publish, publishing, in_folder: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = save_with_head(HEADS["int16"], tmp_path / "p.safetensors")
    half, whole = len(publishing.to_bytes(policy, "float16")), len(publishing.to_bytes(policy))
    monkeypatch.setattr(publishing, "MAX_BYTES", half)
    assert half < whole
    with pytest.raises(SystemExit, match="no form of these weights"):
        publish(HEADS["int16"])
    assert zoo.names() == []
    assert "the zoo of this installation is empty" in in_folder("zoo")[2]


def test_an_agent_that_was_not_evaluated_is_not_published(
    publish, publishing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "fingerprint", lambda policy: "somebody else")
    with pytest.raises(SystemExit, match="evaluate it with 'bcl attack' first"):
        publish(HEADS["float16"])


def test_published_results_are_read_beside_those_made_here(publish, in_folder: Cli) -> None:
    publish(HEADS["int16"])
    assert bcl.compare("zoo:mine").blocks[0].budgets == [0.0, 0.1]
    bcl.evaluate("zoo:mine", suite="quick", eps=[0.1, 0.2], episodes=2)
    assert bcl.compare("zoo:mine").blocks[0].budgets == [0.0, 0.1, 0.2]
    code, out, _ = in_folder("report", "zoo:mine", "--no-frames")
    assert code == 0
    page = Path("runs/zoo-mine.results/report.html")
    assert f"report: {page}" in out
    assert "next: bcl video zoo:mine" in out
    assert "abc" in page.read_text()  # the commit


def test_scores_from_varied_starts_are_a_column_of_their_own(
    publish, in_folder: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(HEADS["int8"])
    adding = importlib.import_module("add_results")
    with pytest.raises(StoreError, match="has nothing new of zoo:mine"):
        adding.add_results("mine", tmp_path / "p.results")
    assert "varied starts" not in in_folder("zoo")[1]
    before = zoo.named("mine").returns
    found = bcl.evaluate("zoo:mine", suite="quick", eps=[0.1], episodes=2, starts="varied")
    monkeypatch.setattr(sys, "argv", ["add_results.py", "mine"])
    adding.main()
    assert zoo.named("mine").returns == before
    assert zoo.named("mine").varied == {"0": found.nominal.mean, "0.1": found.worst[0.1].mean}
    lines = in_folder("zoo")[1].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and "(quick)" in line] == ["mine", "varied"]
    assert [row["starts"] for row in bcl.zoo_agents().rows] == ["game", "varied"]
    added = zoo.named("mine").varied
    bcl.evaluate(tmp_path / "p.safetensors", suite="quick", eps=[0.1], episodes=2, starts="varied")
    publish(HEADS["int8"])  # with both kinds at once
    assert (zoo.named("mine").returns, zoo.named("mine").varied) == (before, added)


def test_attacks_other_than_the_suite_are_named_beside_returns_from_varied_starts(
    publish, in_folder: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(HEADS["int8"])
    bcl.evaluate("zoo:mine", attacks=["pgd-30", "ri-fgsm"], eps=[0.1], episodes=2, starts="varied")
    found = bcl.evaluate("zoo:mine", attacks=["pgd-30"], eps=[0.1, 0.2], episodes=2, starts="varied")
    importlib.import_module("add_results").add_results("mine", None)
    assert zoo.named("mine").varied == {
        "0": found.nominal.mean,
        "0.1": found.worst[0.1].mean,
        "0.2": found.worst[0.2].mean,
    }
    assert zoo.named("mine").attacks == {"varied": "PGD-30"}  # the other was not played at every budget
    lines = in_folder("zoo")[1].splitlines()
    assert [line.partition("(")[2] for line in lines if line.startswith("  ") and line.endswith(")")] == [
        "quick)",
        "PGD-30)",
    ]
    assert [row["suite"] for row in bcl.zoo_agents().rows] == ["quick", "PGD-30"]


def test_an_agent_says_at_which_budget_it_breaks(publish, in_folder: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(HEADS["int8"])
    adding = importlib.import_module("add_results")
    assert "breaks at" not in in_folder("zoo")[1]
    assert bcl.zoo_agents().rows[0]["breaks at"] is None
    monkeypatch.setattr("bcl.evaluation.breaking.ROUNDS", 0)
    nominal = {
        starts: bcl.evaluate("zoo:mine", suite="quick", find_eps=True, episodes=2, starts=starts).breaking.nominal
        for starts in ("game", "varied")
    }
    bcl.evaluate("zoo:mine", suite="quick", find_eps=True, threshold=8.0, episodes=2)  # it is not half
    assert adding.add_results("mine", None) == "zoo:mine: 1 score, 0 certificates, 3 searches more"
    expected = {"returns": {"below": nominal["game"] / 2}, "varied": {"below": nominal["varied"] / 2}}
    assert zoo.named("mine").breaks == expected
    assert f"    breaks at          no budget (below {nominal['game'] / 2:.4g})" in in_folder("zoo")[1]
    shutil.rmtree("runs")  # the report has what was published
    page = in_folder("report", "zoo:mine", "--no-frames")
    assert page[0] == 0
    assert Path("runs/zoo-mine.results/report.html").read_text().count("Search for a breaking budget") == 3


def score_of(attack: Attack | None, eps: float, mean: float) -> Score:
    return Score(attack, eps, (mean,), (9,), 0.0, eps, 0.0, 0, "fixed")


def test_the_smallest_budget_that_was_found_is_published(publishing) -> None:
    pgd = PGD(steps=30, step=0.1)
    search = Breaking(250.0, 500.0, 20, 0, (pgd, FGSM()), True, (0.25, 0.125))
    weaker = dataclasses.replace(search, attacks=(FGSM(),), budgets=(0.5,))
    never = dataclasses.replace(search, budgets=(None, None))
    nominal = score_of(None, 0.0, 500.0)
    holds = Evaluation(resolve("cartpole").game, [nominal, score_of(pgd, 0.1, 250.0)], "")
    learned = Evaluation(holds.game, [nominal, score_of(Learned(), 0.1, 249.0), score_of(Learned(), 0.2, 0.0)], "")
    for searches, evaluation, expected in (
        ([], holds, {}),
        ([never], holds, {"below": 250.0}),
        ([search, weaker, never], holds, {"below": 250.0, "eps": "31.9/255", "attack": "FGSM"}),
        ([search], learned, {"below": 250.0, "eps": "25.5/255", "attack": "Learned"}),
    ):
        assert tomllib.loads("\n".join(publishing.breaking_budget(searches, evaluation))) == expected


def test_attacks_are_held_against_the_certificates_an_agent_was_published_with(
    publish, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    save_with_head(HEADS["int16"], tmp_path / "p.safetensors")
    bcl.certify(tmp_path / "p.safetensors", eps=[0.2], method="ibp", episodes=1)
    publish(HEADS["int16"])
    looks = list[str]()
    module = sys.modules["bcl.evaluation.play"]
    monkeypatch.setattr(module, "_refuse_broken_certificate", lambda *facts: looks.append(facts[-1]))
    found = bcl.evaluate("zoo:mine", attacks="fgsm", eps=[0.1, 0.3], episodes=2, device="cpu")
    assert looks.count("ibp") == max(found.scores[1].lengths)  # at 0.1, which 0.2 covers
    looks.clear()
    bcl.evaluate("zoo:mine", attacks="fgsm", episodes=2, device="cpu", find_eps=True)
    assert "ibp" in looks


def test_a_lower_score_that_an_agent_was_published_with_is_named(
    publish, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(HEADS["int16"])
    scores = zoo.named("mine").results.scores
    *_, (_, row) = scores.read("")
    scores.append(row | {"returns": [1.0, 1.0], "adversary": attack_to_dict(FGSM())})
    assert bcl.evaluate("zoo:mine", attacks="noise", eps=[0.1], episodes=2, device="cpu").lower == [
        "1 under FGSM at 0.1"
    ]


def test_a_budget_without_the_whole_suite_has_no_worst_case(publish, tmp_path: Path) -> None:
    save_with_head(HEADS["int16"], tmp_path / "p.safetensors")
    bcl.evaluate(tmp_path / "p.safetensors", attacks=["noise", "corner-noise"], eps=[0.1, 0.2], episodes=2)
    publish(HEADS["int16"])
    assert zoo.named("mine").returns.keys() == {"0", "0.1"}
    rows = store.read_metrics(zoo.FOLDER / "mine" / "evals" / "scores.jsonl")
    assert [row["eps"] for row in rows].count(0.2) == 2


def test_a_command_that_starts_from_the_agent_itself_is_refused(publish) -> None:
    with pytest.raises(SystemExit, match="--command starts from zoo:mine itself"):
        publish(HEADS["int16"], "--command", "bcl train cartpole --init zoo:mine")
    assert not zoo.FOLDER.exists()


def test_an_agent_takes_the_place_of_its_namesake(publish, tmp_path: Path) -> None:
    publish(HEADS["int16"])
    scores = zoo.FOLDER / "mine" / "evals" / "scores.jsonl"
    first = {row["agent"] for row in store.read_metrics(scores)}
    publish(HEADS["float16"])
    assert not first & {row["agent"] for row in store.read_metrics(scores)}
    assert zoo.named("mine").weights == "float16"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--config", "nowhere.toml"], "cannot read 'nowhere.toml'"),
        (["--config", "empty.toml"], "game"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(
    publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.toml").touch()
    with pytest.raises(SystemExit, match=sentence):
        publish(HEADS["int16"], *more)
    assert not zoo.FOLDER.exists()


@pytest.mark.parametrize("name", ["../evil", "", "a b", "zoo:x"])
def test_a_name_is_a_name(publishing, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    told = [
        "p",
        "--results",
        "r",
        "--config",
        "c",
        "--command",
        "x",
        "--commit",
        "c",
        "--machine",
        "g",
        "--minutes",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["publish.py", name, *told])
    with pytest.raises(SystemExit, match="is no name for an agent"):
        publishing.main()


def test_the_fast_recipe_is_what_trained_the_agent() -> None:
    recipe = resolve("pong", recipe="bcl-fast-at")
    where = {"dqn.checkpoint_minutes", "evaluation.eps", "evaluation.suite", *LATER_DEFAULTS}
    where.add("curriculum.judged_by")  # since then also by APGD-20, docs/curriculum.md
    with tarfile.open(RECORDS / "pong-bcl-mos-at.tar.xz") as records:
        settings = records.extractfile(f"pong-bcl-mos-at/{CONFIG}")
        assert settings is not None
        first = config_from_toml(settings.read().decode())
    assert {*difference(recipe, first)} == where | {"recipe", "curriculum.runs"}  # one run a phase, docs/pong.md
    further = config_from_toml((zoo.FOLDER / "pong-bcl-fast-at" / CONFIG).read_text())
    budgets = {f"curriculum.{name}" for name in ("start", "increment", "target")}
    assert {*difference(recipe, further)} == where | budgets | {"dqn.steps"}


def test_training_starts_from_an_agent_of_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setattr("bcl.experiment.finish", lambda *_: None)  # nothing is trained
    run = bcl.train("pong", recipe="radial", out=tmp_path / "run", init="zoo:pong-vanilla")
    assert RunDirectory(run.folder).about()["init"] == zoo.named("pong-vanilla").policy
