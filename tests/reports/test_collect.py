"""The numbers of a report, against files written by hand."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import bcl
from bcl import experiment
from bcl.attacks import FGSM, PGD, Attack, UniformNoise, attack_to_dict, suite
from bcl.config import resolve, resolve_stages
from bcl.envs import make_env
from bcl.errors import StoreError
from bcl.experiment import Verdict
from bcl.experiment.status import work_of
from bcl.games import game_to_dict
from bcl.policies import Policy, PolicySpec
from bcl.reports import figures
from bcl.reports.collect import agent_file, collect, report_file, shown_run
from bcl.reports.page import page
from bcl.reports.published import result_for
from bcl.runs import store
from bcl.runs.directory import Piece, Repeats, RunDirectory
from bcl.runs.results import Flag
from tests.reports.conftest import START, played, rewritten


def levels(*whole: int) -> list[float]:
    return [level / 255 for level in whole]


def test_the_verdict_and_its_table(pong_run: Path) -> None:
    c = collect(pong_run)
    assert c.state == "finished"
    assert c.verdict == (
        "bcl-mos-at on pong: return 20.67 without attack; 4 under the worst of PGD-30, RI-FGSM, Multi 1000 and Multi-T 1000 "
        "within 25/255; it is the agent of phase 4, trained up to 7/255; the curriculum stopped: target reached; "
        "3 episodes instead of 20"
    )
    first, second = c.evaluations
    assert [type(a).__name__ for a in first.attacks] == ["PGD", "RIFGSM", "Multi", "MultiT"]
    assert first.budgets == [0.0, *levels(10, 20, 25)]
    assert [(w.mean, w.attack) for w in first.worst.values()] == [(mean, PAPER[0]) for mean in (20.0, 15.0, 4.0)]
    assert first.worst[25 / 255].sem == pytest.approx((2 / 3) ** 0.5 / 3**0.5)
    assert first.worst_within[25 / 255].episode_minimum == 4.0
    assert first.cells[first.attacks[2], 20 / 255].returns == (15.0, 16.0, 17.0)
    assert first.nominal.returns == (20.0, 21.0, 21.0)  # type: ignore[union-attr]
    assert first.flags == (Flag("masking", "made up"),)
    # Other episodes are another table.
    assert (second.note, second.attacks, second.scores[0].seed) == ("evaluated afterwards", [], 0)


def replayed(run: Path, returns: Mapping[tuple[int, str], float]) -> None:
    """The verdict again, with these returns by gray level and kind of attack."""
    result = store.read_json(run / "result.json")
    for score in result["scores"]:
        value = returns.get((round(255 * score["eps"]), score["attack"].partition("(")[0]))
        score["returns"] = score["returns"] if value is None else [value] * 3
    store.write_json(run / "result.json", result)
    shutil.rmtree(run / "evals")


def test_the_verdict_names_the_lowest_return_within_the_budget(pong_run: Path) -> None:
    replayed(pong_run, {(10, "MultiT"): 3.0, (25, "PGD"): 7.0, (25, "Multi"): 6.0})
    c = collect(pong_run)
    four = "the worst of PGD-30, RI-FGSM, Multi 1000 and Multi-T 1000"
    assert f"; 3 under {four} within 25/255 (Multi-T 1000 at 10/255); " in c.verdict
    [axes] = figures.return_against_budget(c.evaluations[0], c.published, 860).axes
    [bold] = [line for line in axes.get_lines() if line.get_label() == "worst within"]
    assert list(bold.get_ydata()) == pytest.approx([62 / 3, 3, 3, 3])
    row = re.search(r'<tr><th scope="row">25/255</th>(.*?)</tr>', page(c), re.DOTALL)
    assert row is not None
    assert re.findall(r">([\d.]+)[ <]", row[1]) == ["3.00", "4.25", "3", "7", "4.5", "6", "4.25"]
    # within, at exactly 25/255, per episode, four attacks
    verdict = Verdict.read(RunDirectory(pong_run))
    assert verdict is not None
    only = [score for score in verdict.evaluation.scores if score.attack in (None, PAPER[3])]
    told = replace(verdict, evaluation=replace(verdict.evaluation, scores=only))
    assert "; 3 under Multi-T 1000 within 25/255 (at 10/255)" in told.sentence(RunDirectory(pong_run).config)


def test_where_no_attack_leaves_less_the_verdict_says_so(pong_run: Path) -> None:
    replayed(pong_run, {(level, kind): 21.0 for level in (10, 20, 25) for kind in ("PGD", "RIFGSM", "Multi", "MultiT")})
    assert "return 20.67 without attack; no less under the worst of PGD-30, " in collect(pong_run).verdict


def later(run: Path, attacks: Sequence[Attack], budgets: Sequence[int], seed: int, episodes: int = 3) -> None:
    """An evaluation of the same agent on other episodes, all returns 1."""
    config = RunDirectory(run).config
    played(run / "evals", config, None, 0.0, (1.0,) * episodes, seed)
    for attack, level in product(attacks, budgets):
        played(run / "evals", config, attack, level / 255, (1.0,) * episodes, seed)


PAPER, WEAK = [*suite("paper")], [PGD(steps=steps, step=1.0) for steps in range(1, 9)]


@pytest.mark.parametrize(
    ("attacks", "budgets", "episodes"),
    [
        (PAPER, (5, 10, 20, 25), 3),  # the same
        ([*PAPER, FGSM(), UniformNoise()], (5, 8, 10, 20), 3),  # more, but not at 25/255
        (WEAK, (10, 20, 25), 3),  # more, but not the verdict's
        ([*PAPER, FGSM()], (10, 20, 25), 2),  # more, on fewer episodes
    ],
)
def test_a_weaker_evaluation_afterwards_does_not_replace_the_verdict(
    pong_run: Path, attacks: list[Attack], budgets: tuple[int, ...], episodes: int
) -> None:
    before = collect(pong_run)
    later(pong_run, attacks, budgets, 5, episodes)
    after = collect(pong_run)
    assert (after.verdict, after.evaluations[0]) == (before.verdict, before.evaluations[0])
    assert 5 in {e.scores[0].seed for e in after.evaluations[1:]}


def test_a_stronger_evaluation_afterwards_replaces_the_verdict(pong_run: Path) -> None:
    later(pong_run, [*PAPER, FGSM()], (10, 20, 25), seed=7)
    c = collect(pong_run)
    assert (c.evaluations[0].note, c.evaluations[0].scores[0].seed) == ("evaluated afterwards", 7)
    assert "return 1 without attack; 1 under the worst of 5 attacks within 25/255" in c.verdict
    later(pong_run, suite("strong"), (10, 20, 25), seed=8, episodes=20)
    c = collect(pong_run)
    assert c.evaluations[0].scores[0].seed == 8
    assert "instead of" not in c.verdict  # as many episodes as the preset's


def test_of_other_evaluations_those_with_as_many_episodes_as_usual_come_first(pong_run: Path) -> None:
    later(pong_run, PAPER[:3], (10, 20, 25), seed=5, episodes=19)
    later(pong_run, PAPER[:1], (10, 20, 25), seed=6, episodes=20)  # as many as the preset's, under fewer attacks
    later(pong_run, PAPER[:2], (10, 20, 25), seed=7, episodes=20)
    assert [e.seed for e in collect(pong_run).evaluations] == [1, 7, 6, 5, 0]  # the verdict's own first


def test_a_stronger_suite_need_not_hold_the_attack_of_the_verdict(pong_run: Path) -> None:
    result = store.read_json(pong_run / "result.json")
    shutil.rmtree(pong_run / "evals")
    [quick] = suite("quick")
    scores = [
        s | {"adversary": attack_to_dict(quick)}
        for s in result["scores"]
        if s["eps"] > 0 and s["attack"] == repr(PAPER[0])
    ]
    store.write_json(
        pong_run / "result.json", result | {"scores": [s for s in result["scores"] if s["eps"] == 0] + scores}
    )
    later(pong_run, PAPER[:3], (10, 20, 25), seed=5)
    assert collect(pong_run).evaluations[0].attacks == [quick]
    later(pong_run, PAPER[3:], (10, 20, 25), seed=5)
    assert collect(pong_run).evaluations[0].attacks == PAPER


def test_a_lower_return_in_another_evaluation_is_named_beside_the_table(pong_run: Path) -> None:
    later(pong_run, [FGSM()], (10, 25), seed=5)  # 1, the verdict's worst are 20, 15 and 4
    config = RunDirectory(pong_run).config
    played(pong_run / "evals", config, UniformNoise(), 20 / 255, (0.5,), seed=6)
    played(pong_run / "evals", config, UniformNoise(), 10 / 255, (20.5,), seed=6)  # not lower
    c = collect(pong_run)
    assert c.evaluations[0].note == "the run's own verdict"
    said = re.sub(r"<.*?>", "", page(c))
    assert (
        "Other evaluations gave less: 1 under FGSM at 10/255 (other episodes), 0.5 under Noise at 20/255 (1 episode), "
        "see below." in said
    )  # within 25/255 it is 0.5 still, not the 1 at 25/255
    assert "3 episodes, evaluation seed 5: evaluated afterwards." in said


def test_returns_of_episodes_that_were_cut_off_earlier_are_not_called_lower(pong_run: Path) -> None:
    later(pong_run, [FGSM()], (10, 25), seed=5)
    whole, *others = collect(pong_run).evaluations
    assert whole.lower_elsewhere(others)
    cut = [dataclasses.replace(other, game=dataclasses.replace(other.game, max_steps=4_000)) for other in others]
    assert whole.lower_elsewhere(cut) == []


def test_returns_from_other_starts_are_not_called_lower(pong_run: Path) -> None:
    later(pong_run, [FGSM()], (10, 25), seed=5)
    whole, *others = collect(pong_run).evaluations
    varied = [dataclasses.replace(s, prefixes=(30,) * len(s.returns)) for other in others for s in other.scores]
    assert whole.lower_elsewhere([dataclasses.replace(others[0], scores=varied)]) == []


def test_without_a_lower_return_elsewhere_nothing_is_said(pong_run: Path) -> None:
    assert collect(pong_run).lower_elsewhere == []
    assert "Other evaluations gave less" not in page(collect(pong_run))


def test_a_budget_at_which_an_attack_is_missing_is_named(pong_run: Path) -> None:
    assert collect(pong_run).evaluations[0].partial == []
    at20 = lambda row: "Multi(" in row["attack"] and row["eps"] == 20 / 255  # noqa: E731
    rewritten(pong_run / "evals", lambda row: None if at20(row) else row)
    assert collect(pong_run).evaluations[0].partial == []  # the verdict holds its scores
    result = store.read_json(pong_run / "result.json")
    missing = [s for s in result["scores"] if not at20(s)]
    store.write_json(pong_run / "result.json", result | {"scores": missing})
    c = collect(pong_run)
    assert c.evaluations[0].partial == levels(20)
    assert "Not every attack was played at 20/255: the worst there is over fewer." in page(c)


def test_without_files_of_scores_those_of_the_verdict_are_shown(pong_run: Path) -> None:
    before = collect(pong_run)
    shutil.rmtree(pong_run / "evals")
    [after] = (c := collect(pong_run)).evaluations
    assert (c.verdict, after.worst, after.flags) == (
        before.verdict,
        before.evaluations[0].worst,
        (Flag("masking", "made up"),),
    )


def test_the_paper_s_row_is_that_of_the_recipe(pong_run: Path) -> None:
    row = collect(pong_run).published
    assert row is not None
    assert (row.method, row.eps, row.mean) == ("BCL-MOS-AT-DQN", (0.0, *levels(10, 20, 25)), (21.0, 21.0, 20.9, 20.9))
    assert row.sem == (0.0,) * 4


def test_on_procgen_the_row_is_that_of_the_levels_played() -> None:
    config = resolve("fruitbot", recipe="bcl-mos-at")
    radial = resolve("fruitbot", recipe="bcl-mos-at", settings={"bootstrap": "radial"})
    expected = [(config, "train", 29.98, 0.24), (config, "eval", 27.61, 0.31), (radial, "train", 30.8, 0.21)]
    for asked, played_on, mean, sem in expected:
        row = result_for(asked, played_on)
        assert row is not None
        assert (row.eps[1], row.mean[1], row.sem[1]) == (10 / 255, mean, sem)
    assert result_for(resolve("pong", recipe="bcl-mos-at", settings={"bootstrap": "vanilla"}), "") is None
    assert result_for(resolve("cartpole", recipe="bcl-mos-at"), "") is None


def test_a_game_without_a_preset_is_compared_with_the_defaults(tmp_path: Path) -> None:
    flags = {"curriculum": {"target": "0.1"}, "dqn": {"gamma": "0.9"}}
    stages = resolve_stages("MountainCar-v0", recipe="ncl-at", settings=flags)
    experiment.create(tmp_path / "run", stages, "cpu", None)
    assert [setting[:3] for setting in collect(tmp_path / "run").settings] == [
        *(("1-vanilla", "dqn.gamma", "0.9"), ("2-at", "dqn.gamma", "0.9"))
    ]


def test_certificates(pong_run: Path) -> None:
    found = [(p.method, p.eps, p.acr, p.gwc) for p in collect(pong_run).proofs]
    assert found == [
        *(("crown", 1 / 255, 1.0, 20.0), ("crown", 3 / 255, 0.75, 15.0)),
        *(("ibp", 1 / 255, 0.9, 18.0), ("ibp", 3 / 255, 0.2, 4.0)),
    ]
    proof = store.read_json(pong_run / "certs/ibp-1.json")
    store.write_json(pong_run / "certs/other.json", proof | {"policy": "somebody else on cpu"})
    assert len(collect(pong_run).proofs) == 4
    del proof["method"]
    store.write_json(pong_run / "certs/broken.json", proof)
    with pytest.raises(StoreError, match=r"broken.json' does not fit \(it has no 'method'\)"):
        collect(pong_run)


def test_certificates_on_other_levels_stand_apart(pong_run: Path) -> None:
    proof = store.read_json(pong_run / "certs/ibp-1.json")
    for count in (200, 0):
        game = game_to_dict(replace(resolve("fruitbot").game, num_levels=count))
        store.write_json(pong_run / f"certs/ibp-1-{count}.json", proof | {"game": game, "acr": 0.5})
    proofs = [p for p in collect(pong_run).proofs if p.levels]
    assert [p.levels for p in proofs] == ["eval", "train"]
    upper, _ = figures.certificates(proofs, 760).axes
    assert [line.get_label() for line in upper.get_lines()] == [
        "ibp, on unlimited levels",
        "ibp, on the training levels",
    ]


def test_settings_are_those_that_differ_from_the_preset(pong_run: Path) -> None:
    c = collect(pong_run)
    assert c.settings == (
        ("1-vanilla", "dqn.batch_size", "256", "512"),
        ("2-radial", "dqn.batch_size", "256", "128"),
        ("3-at", "dqn.batch_size", "256", "128"),
    )
    assert dict(c.about) == {
        "recipe": "bcl-mos-at", "game": "pong", "learner": "dqn", "bootstrap": "auto", "seed": "0", "size": "full",
    }  # fmt: skip
    assert {"command", "version", "started", "platform", "torch", "policy"} <= {name for name, _ in c.provenance}


def test_scores_of_another_agent_are_left_out(pong_run: Path) -> None:
    others = {"agent": "somebody else", "returns": [-21.0] * 3}
    rewritten(pong_run / "evals", lambda row: row | others if "PGD" in row["attack"] else row)
    assert collect(pong_run).evaluations[0].worst[10 / 255].mean == 20.0  # the verdict's


def test_an_unfinished_run_shows_what_there_is(tmp_path: Path, make_pong_run: Callable[..., Path]) -> None:
    run = make_pong_run(tmp_path / "cut", finished=False)
    c = collect(run)
    assert (c.state, agent_file(run)) == ("stopped", None)
    assert c.verdict == "bcl-mos-at on pong is not finished; best so far: nominal 20.5"
    assert [line.split(";")[0] for line in c.progress[:2]] == ["vanilla: trained", "radial: trained"]
    [so_far] = c.evaluations  # of phase 3, run 2
    assert so_far.worst[6 / 255].mean == 19.5
    assert "chosen by" in so_far.note
    assert "cut off" not in so_far.note
    assert c.timeline is not None
    assert [(bar.phase, bar.state) for bar in c.timeline.bars][-1] == (4, "unfinished")
    assert (c.timeline.bars[-1].start, c.timeline.bars[-1].end) == (140.0, 170.0)
    assert c.proofs == ()


def test_an_unfinished_run_says_where_episodes_that_choose_are_cut_off(
    tmp_path: Path, make_pong_run: Callable[..., Path]
) -> None:
    run = make_pong_run(tmp_path / "cut", finished=False)
    evals = run / "stages/3-at/phases/003/run2/evals"
    for limit, said in ((4_000, True), (10_000, False)):  # the second is that of reported episodes
        rewritten(evals, lambda row, limit=limit: row | {"game": row["game"] | {"max_steps": limit}})
        assert collect(run).evaluations[0].note.endswith("cut off at 4,000 agent steps") == said


def test_a_run_that_has_only_been_made(tmp_path: Path, make_pong_run: Callable[..., Path]) -> None:
    run = make_pong_run(tmp_path / "new", finished=False)
    for path in sorted((run / "stages").rglob("*"), reverse=True):
        if path.is_file() and path.name != "config.toml":
            path.unlink()
    c = collect(run)
    assert (c.timeline, c.evaluations, c.progress) == (None, (), ())


def test_the_agent_of_a_phase_that_kept_the_old_one(pong_run: Path) -> None:
    at = RunDirectory(pong_run).stages()[2]
    assert at.kept_by(4).path == at.path / "phases/004/run1"
    path = at.path / "phases/004/decision.json"
    stored = json.loads(path.read_text())
    store.write_json(path, stored | {"decision": stored["decision"] | {"kept": "incumbent"}})
    assert at.kept_by(4).path == at.path / "phases/003/run2"
    assert at.kept_by(2) == at


def test_the_start_on_the_same_episodes_is_a_line_as_wide_as_the_agents(pong_run: Path) -> None:
    config, evals = RunDirectory(pong_run).config, pong_run / "stages/2-radial/evals"
    store.write_json(pong_run / "stages/2-radial/result.json", {"policy": START})
    played(evals, config, None, 0.0, (21.0,) * 3, agent=START)
    cells = [(attack, level) for attack in suite("paper") for level in (10, 20, 25)]
    for attack, level in cells[1:]:
        played(evals, config, attack, level / 255, (-21.0,) * 3, agent=START)
    played(evals, config, *cells[0][:1], 10 / 255, (9.0,) * 3, seed=2, agent=START)  # on other episodes
    c = collect(pong_run)
    assert c.evaluations[0].start is None  # one cell is missing
    assert "its start" not in c.verdict
    played(evals, config, cells[0][0], 10 / 255, (-20.0,) * 3, agent=START)
    c = collect(pong_run)
    assert "; its start (radial) has 21 without attack and -21 within 25/255; " in c.verdict
    [axes] = figures.return_against_budget(c.evaluations[0], c.published, 860).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    start = lines["start (radial), worst within"]
    assert list(start.get_ydata()) == [21.0, -21.0, -21.0, -21.0]
    assert start.get_linewidth() == lines["worst within"].get_linewidth()
    assert axes.get_ylim()[0] < -21
    row = re.search(r'<tr><th scope="row">25/255</th>(.*?)</tr>', page(c), re.DOTALL)
    assert row is not None
    assert "\N{MINUS SIGN}21" in row[1]


def test_a_later_evaluation_that_comes_first_names_the_start_where_it_was_judged_too(pong_run: Path) -> None:
    config, evals = RunDirectory(pong_run).config, pong_run / "stages/2-radial/evals"
    store.write_json(pong_run / "stages/2-radial/result.json", {"policy": START})
    strong = suite("strong")
    later(pong_run, strong, (10, 20, 25), seed=8)  # all returns 1
    played(evals, config, None, 0.0, (20.0,) * 3, seed=8, agent=START)
    for attack, level in product(strong, (10, 20, 25)):
        played(evals, config, attack, level / 255, (5.0 if level == 10 else -3.0,) * 3, seed=8, agent=START)
    c = collect(pong_run)
    assert c.evaluations[0].scores[0].seed == 8
    assert "its start (radial) has 20 without attack and -3 within 25/255" in c.verdict
    better = "it has 1 without attack instead of 20, 1 within 10/255 instead of 5; there the agent it started from"
    assert f"{better} is the better choice: {pong_run / 'stages/2-radial/policy.safetensors'}" in c.verdict


def test_flags_of_a_larger_evaluation_stand_on_top_too(pong_run: Path) -> None:
    config, evals = RunDirectory(pong_run).config, pong_run / "stages/2-radial/evals"
    store.write_json(pong_run / "stages/2-radial/result.json", {"policy": START})
    later(pong_run, PAPER, (10, 20, 25), seed=8, episodes=9)  # the attacks of the verdict, all returns 1
    played(evals, config, None, 0.0, (20.0,) * 9, seed=8, agent=START)
    for attack, level in product(PAPER, (10, 20, 25)):
        played(evals, config, attack, level / 255, (-3.0,) * 9, seed=8, agent=START)
    c = collect(pong_run)
    assert c.evaluations[0].note == "the run's own verdict"
    told = "it has 1 without attack instead of 20; there the agent it started from is the better choice"
    assert told in c.verdict
    assert c.verdict.count("(9 episodes, evaluation seed 8)") == 1
    first = re.sub(r"<.*?>", "", page(c)).split("Other evaluations of the same agent")[0]
    assert "flag worse-than-start" in first
    assert "No flags were raised" not in first


def test_a_page_of_another_version_says_so(pong_run: Path) -> None:
    assert collect(pong_run).started_with == ""
    about = store.read_json(pong_run / "run.json") | {"version": "0.0.9", "commit": "abc"}
    store.write_json(pong_run / "run.json", about)
    assert "the run was started with bcl 0.0.9, commit abc." in page(collect(pong_run))


def test_what_is_missing_is_named(pong_run: Path) -> None:
    with pytest.raises(StoreError, match=r"missing.safetensors' does not exist"):
        collect(pong_run / "missing.safetensors")
    (pong_run / "run.json").unlink()
    with pytest.raises(StoreError, match=r"has no run.json"):
        collect(pong_run)


def test_repeats_show_the_median_and_name_the_others(tmp_path: Path, make_pong_run: Callable[..., Path]) -> None:
    group = tmp_path / "group"
    for seed, final in ((0, 30.0), (1, 10.0), (2, 20.0)):
        run = make_pong_run(group / f"seed{seed}")
        store.write_json(run / "result.json", json.loads((run / "result.json").read_text()) | {"final_score": final})
    Repeats(group).write(["seed0", "seed1", "seed2"])
    assert shown_run(group) == group / "seed0"  # nobody has summed them up
    store.write_json(group / "result.json", {"median": "seed2"})
    c = collect(group)
    assert c.repeats == (("seed0", 30.0, False), ("seed1", 10.0, False), ("seed2", 20.0, True))
    assert (c.source, report_file(group)) == (str(group), group / "report.html")
    (group / "result.json").unlink()
    (group / "seed1" / "result.json").unlink()
    c = collect(group)
    assert c.state == "stopped"
    assert c.repeats == (("seed0", 30.0, False), ("seed1", None, True), ("seed2", 20.0, False))


def test_a_bare_policy_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    game = resolve("cartpole").game
    env = make_env(game, 1)
    file = tmp_path / "mine.safetensors"
    bcl.save(Policy(PolicySpec("dueling-mlp", (4,), 2, env.low, env.high, (8,), game=game)), file)
    c = collect(file)
    assert (c.state, c.evaluations, c.timeline) == ("policy", (), None)
    assert c.verdict == "mine.safetensors on CartPole-v1 has not been evaluated yet"
    assert agent_file(file) == file
    for episodes in (1, 3, 2):
        bcl.evaluate(file, attacks="noise", eps=0.1, episodes=episodes)
    assert [one.episodes for one in collect(file).evaluations] == [3, 2, 1]
    (tmp_path / "run/best").mkdir(parents=True)
    store.write_json(tmp_path / "run/result.json", {})
    (best := tmp_path / "run/best/policy.safetensors").write_bytes(file.read_bytes())
    assert f"'bcl report {tmp_path / 'run'}' tells how it was evaluated" in collect(best).verdict
    assert report_file(file) == tmp_path / "mine.results" / "report.html"


def test_how_much_training_there_can_still_be(tmp_path: Path, make_pong_run: Callable[..., Path]) -> None:
    run = make_pong_run(tmp_path / "cut", finished=False)
    vanilla, radial, at = (stage.config.dqn.steps for stage in RunDirectory(run).stages())
    piece = Piece("phase 4 run 1", "training", 300, at, {})
    # Two runs of phase 3 are done; phases 4 to 22 (7/255 to 25/255) can have three runs each.
    work = work_of(run, [piece])
    assert (work.steps, work.most_steps) == (vanilla + radial + 2 * at + 300, vanilla + radial + (2 + 19 * 3) * at)
    whole = work_of(make_pong_run(tmp_path / "whole"), [])
    assert whole.steps == whole.most_steps


def test_the_greedy_worst_case_never_lies_above_no_attack(pong_run: Path) -> None:
    path = pong_run / "certs/crown-1.json"
    store.write_json(path, store.read_json(path) | {"gwc": 20.9, "nominal": 20.5})
    assert [p.gwc for p in collect(pong_run).proofs if (p.method, p.eps) == ("crown", 1 / 255)] == [20.5]
