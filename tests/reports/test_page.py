"""The page: what it says, and how it looks in a real browser."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bcl.attacks import suite
from bcl.games import OBSERVATION_NAMES
from bcl.reports.collect import Collected, collect
from bcl.reports.frames import Frame, Frames
from bcl.reports.page import page
from bcl.reports.style import DARK, LIGHT

sys.path.insert(0, str(Path(__file__).parents[2]))
from bcl.attacks import RIFGSM, Multi, MultiT
from tests.reports.browser import Tab, browser, find_chromium

PHONE, DESK, PAPER = 390, 1280, 690
# Of every text that can be seen: how far it stands from what is behind it, as WCAG counts it.
CONTRASTS = r"""(() => {
  const numbers = c => c.match(/[\d.]+/g).map(Number), scale = c => c.startsWith("color(") ? 1 : 255;
  const light = c => {
    const [r, g, b] = numbers(c).slice(0, 3).map(x => x / scale(c)).map(
      x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const clear = c => /rgba\(.*, 0\)/.test(c);
  const behind = e => { while (e && clear(getComputedStyle(e).backgroundColor)) e = e.parentElement;
                        return e ? getComputedStyle(e).backgroundColor : "rgb(255, 255, 255)"; };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.tagName === "STYLE" || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), ink = e.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(e.closest("svg")?.parentElement || e))].sort((x, y) => x - y);
    found.push([(b + .05) / (a + .05), e.textContent.trim().slice(0, 40)]);
  }
  return found; })()"""
OUTSIDE = r"""[...document.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => e.tagName + " " + e.textContent.trim().slice(0, 40))"""
# Short words of what stands out that go on in the next line, such as RI-FGSM after its hyphen.
BROKEN = r"""[...document.querySelectorAll("h1, h2, th, .flags li")].flatMap(e => {
  const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[\w.\u2011-]{2,20}/g)) {
    const range = document.createRange();
    range.setStart(texts.currentNode, word.index);
    range.setEnd(texts.currentNode, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) found.push(word[0]);
  }
  return found; })"""
# Titles of panels that run into the next one's.
COLLIDING = r"""[...document.querySelectorAll("#curves svg")].flatMap(drawing => {
  const words = [...drawing.querySelectorAll("text")].filter(t => t.textContent.startsWith("phase"));
  const boxes = words.map(t => t.getBoundingClientRect());
  return boxes.slice(1).filter((box, i) => box.width && box.top === boxes[i].top && box.left < boxes[i].right + 2).length; })"""
# Per figure: boxes of the drawings that can be seen, marks in them, and the smallest text as it appears, in pixels.
DRAWINGS = r"""[...document.querySelectorAll("figure")].map(f => {
  const seen = [...f.querySelectorAll("svg, img")].filter(d => d.getClientRects().length);
  return seen.map(d => {
    const box = d.getBoundingClientRect(), zoom = d.tagName === "svg" ? box.width / d.viewBox.baseVal.width : 1;
    const sizes = [...d.querySelectorAll("text")].map(t => parseFloat(getComputedStyle(t).fontSize) * zoom);
    return [box.width, box.height, d.querySelectorAll("path, use").length || d.naturalWidth, Math.min(99, ...sizes)];
  }); })"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium to open the page in: apt-get install chromium")
    with browser(executable) as tab:
        yield tab


def vector_frames() -> Frames:
    clean = np.float32([0.5, -0.25, 0.1, 0.0])
    moment = Frame(3, clean, clean + np.float32([0.1, -0.1, 0.1, 0.1]), "push left", "push right", None)
    screen = np.full((40, 60, 3), 200, dtype=np.uint8)
    return Frames(
        "RIFGSM(objective=CrossEntropy())",
        0,
        0.1,
        50,
        2,
        OBSERVATION_NAMES["CartPole-v1"],
        (moment, replace(moment, step=9, screen=screen)),
    )


def two_attacks(collected: Collected) -> Collected:
    """With long numbers, and certificates at one budget."""
    evaluation = collected.evaluations[0]
    kept = [s for s in evaluation.scores if s.eps == 0 or s.attack in evaluation.attacks[:2]]
    scores = tuple(replace(s, returns=tuple(1234.5 * r for r in s.returns)) for s in kept)
    return replace(collected, evaluations=(replace(evaluation, scores=scores),), proofs=collected.proofs[:1])


def strong(collected: Collected) -> Collected:
    """With every attack of the largest suite, and as many phases as the paper's longest curricula have."""
    evaluation, history = collected.evaluations[0], collected.timeline
    assert history is not None
    attacks = suite("strong")
    scores = [evaluation.scores[0]]
    for eps in evaluation.budgets[1:]:
        scores += [replace(evaluation.scores[1], eps=eps, attack=a, returns=(-1234.5, -1000.0, -1e4)) for a in attacks]
    panels = [replace(history.panels[2], title=f"phase {i}: {i - 1} to {i}/255") for i in range(1, 26)]
    return replace(
        collected,
        evaluations=(replace(evaluation, scores=tuple(scores)),),
        timeline=replace(history, panels=tuple(panels)),
    )


@pytest.fixture(scope="module")
def pages(
    tmp_path_factory: pytest.TempPathFactory, make_pong_run: Callable[..., Path], pong_frames: Frames
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    run = make_pong_run(folder / "pong-run")
    collected = {
        "finished": replace(collect(run), frames=pong_frames),
        "vector": replace(collect(run), frames=vector_frames()),
        "strong": strong(collect(run)),
        "two": two_attacks(collect(run)),
        "unfinished": collect(make_pong_run(folder / "cut", finished=False)),
    }
    for kind, data in collected.items():
        (folder / f"{kind}.html").write_text(page(data))
    return {kind: folder / f"{kind}.html" for kind in collected}


def test_the_page_says_what_was_collected(pages: dict[str, Path]) -> None:
    text = re.sub(r'<span class="whole">(.*?)</span>', r"\1", pages["finished"].read_text())
    for words in (
        *(
            "4 under the worst of PGD-30, RI-FGSM, Multi 1000 and Multi-T 1000 within 25/255",
            "<b>flag masking</b>: made up",
            "the run&#39;s own verdict",
            "100.0 %",
        ),
        *("PGD-30 at 25/255 changed the action in 31 of the first 200 steps", "Step 7: wanted <b>left</b>"),
        *("dqn.<wbr>batch_<wbr>size", "Hollow: what the paper has", "not kept"),
        "the preset of the game under this recipe, learner, bootstrap and size",
    ):
        assert words in text, words
    assert "is not finished" not in text
    row = re.search(r'<tr><th scope="row">20/255</th>(.*?)</tr>', text, re.DOTALL)
    assert row is not None
    shown = re.findall(r">([\d.]+)[ <]", row[1])
    assert shown == ["15.00", "15", "15", "15", "15.5", "16", "15.25"]  # within, at exactly 20/255, per episode, four


def test_certificates_of_other_episodes_than_the_table_say_so(pong_run: Path) -> None:
    c = collect(pong_run)
    seed = c.evaluations[0].seed
    for own, told in ((seed, False), (seed + 1, True)):
        proofs = tuple(replace(proof, seed=own) for proof in c.proofs)
        section = page(replace(c, proofs=proofs)).split('<section id="certificates">')[1].split("</section>")[0]
        assert f", seed {own}</td>" in section
        assert (f"another seed than the first table's ({seed}) are of other episodes" in section) == told


def test_certificates_at_a_single_budget_are_a_table_alone(pong_run: Path) -> None:
    c = collect(pong_run)
    one = replace(c, proofs=tuple(proof for proof in c.proofs if proof.eps == 1 / 255))
    assert len(one.proofs) == 2  # of two methods
    for data, drawings in ((c, 2), (one, 0)):
        section = page(data).split('<section id="certificates">')[1].split("</section>")[0]
        assert section.count("<svg") == drawings  # for wide and for narrow screens
        assert section.count("<td>crown</td>") == len(data.proofs) / 2
        assert "ACR: share of visited states" in section


def test_a_single_attack_is_its_own_worst_at_each_budget(pong_run: Path) -> None:
    c = collect(pong_run)
    alone = replace(
        c.evaluations[0], scores=tuple(s for s in c.evaluations[0].scores if not isinstance(s.attack, RIFGSM))
    )
    alone = replace(alone, scores=tuple(s for s in alone.scores if not isinstance(s.attack, Multi | MultiT)))
    table = page(replace(c, evaluations=(alone,))).split('<table class="scores')[1].split("</table>")[0]
    assert re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table) == ["budget", "worst within", "PGD\u201130"]


def test_an_unfinished_run_says_so(pages: dict[str, Path]) -> None:
    text = pages["unfinished"].read_text()
    assert "This run is not finished." in text
    assert re.search(r"bcl resume \S*cut", text)
    assert "bcl certify" not in text


def test_missing_parts_name_the_command_that_adds_them(pong_run: Path) -> None:
    text = page(replace(collect(pong_run), proofs=(), state="policy", evaluations=(), timeline=None))
    assert re.search(r"bcl certify \S+pong-run --method crown", text)
    assert re.search(r"bcl attack \S+pong-run --suite paper", text)


def test_text_from_files_is_not_markup(pong_run: Path) -> None:
    text = page(replace(collect(pong_run), clauses=("<script>alert(1)</script>",), source="<img>", timeline=None))
    assert "<script" not in text
    assert "<img>" not in text


def test_the_page_needs_nothing_but_itself(pages: dict[str, Path]) -> None:
    text = pages["finished"].read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "http" not in text
    assert "@import" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids})  # a drawing must not take another one's markers
    assert {*re.findall(r'href="#([^"]+)"', text)} <= {*ids}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("kind", ["finished", "unfinished", "vector", "strong", "two"])
def test_in_a_browser(tab: Tab, pages: dict[str, Path], kind: str, width: int, dark: bool) -> None:
    tab.open(pages[kind], width, dark=dark)
    assert tab.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in tab.requests)
    assert tab.evaluate(OUTSIDE) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(BROKEN) == []
    assert not any(tab.evaluate(COLLIDING))
    drawings = tab.evaluate(DRAWINGS)
    assert len(drawings) == {"finished": 6, "unfinished": 3, "vector": 6, "strong": 4, "two": 3}[kind]
    for seen in drawings:
        assert seen
        for box_width, height, marks, smallest in seen:
            assert min(box_width, height) > 40
            assert marks > 5
            assert smallest >= 9.5
    for figure in drawings[:3]:
        assert len(figure) == 1  # the drawing made for this width, and not the other
    poor = [(contrast, text) for contrast, text in tab.evaluate(CONTRASTS) if contrast < 4.5]
    assert not poor
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == rgb((DARK if dark else LIGHT)["paper"])


@pytest.mark.parametrize("kind", ["finished", "strong"])
def test_on_paper_it_is_light_even_for_those_who_like_it_dark(tab: Tab, pages: dict[str, Path], kind: str) -> None:
    tab.open(pages[kind], PAPER, dark=True, media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.body).color") == rgb(LIGHT["ink"])
    assert tab.evaluate(OUTSIDE) == []
    assert all(smallest >= 8.5 for seen in tab.evaluate(DRAWINGS) for *_, smallest in seen)
    assert min(contrast for contrast, _ in tab.evaluate(CONTRASTS)) >= 4.5
    printed = tab.pdf()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000


def test_the_browser_would_notice(tab: Tab, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<p style='color: #ccc; background: #fff; width: 900px'>faint</p><script>nothing.here</script>"
        "<h1 style='width: 1em'>RI-FGSM</h1>"
    )
    tab.open(bad, PHONE)
    assert tab.evaluate(BROKEN) == ["RI-FGSM"]
    assert len(tab.evaluate(OUTSIDE)) == 1
    assert tab.evaluate(CONTRASTS)[0][0] == pytest.approx(1.6, abs=0.05)
    assert any("nothing is not defined" in complaint for complaint in tab.complaints)
    tab.complaints.clear()


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"
