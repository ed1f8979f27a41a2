"""The module against the paper's two boxes, transcribed without it."""

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bcl.curriculum import bcl
from bcl.curriculum_rules import Phase, Rules, budgets


def pseudo_code(
    R: Any, L: int, K: int, K_min: int, V_nom: int, V_adv: int, select: float, text: bool, ratchet: bool
) -> list[tuple[int, str]]:
    """The paper's two boxes, transcribed without the module: the phases trained and what each kept."""

    def good(f: str, level: int) -> bool:
        return R(f, 0) >= V_nom and R(f, level) >= V_adv

    def ChooseNext(f: str, j: int) -> int:
        if text:
            i = max({j} | {m for m in range(j + 1, L + 1) if good(f, m)}) + 1
        else:
            i = min({L + 1} | {m for m in range(j + 1, L + 1) if not good(f, m)})
        among = list(range(j + 1, i + 1))
        return among[{0.0: 0, 0.5: (len(among) - 1) // 2, 1.0: len(among) - 1}[select]]

    f, trace = "f0", []
    i = ChooseNext(f, 0)
    while i - 1 < L:
        runs = [f] if ratchet else []
        for k in range(1, K + 1):
            runs.append(f"{f}/{i}.{k}")
            if k >= K_min and good(runs[-1], i):
                break
        pool = runs if ratchet else [g for g in runs if good(g, i)] or runs
        values = [R(g, 0) + (R(g, i) + R(g, i - 1)) / 2 for g in pool]
        f = pool[values.index(max(values))]
        trace.append((i, f))
        i = ChooseNext(f, i)
    return trace


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32), L=st.integers(1, 6), K=st.integers(1, 4), K_min=st.integers(1, 4),
    V_nom=st.integers(0, 4), V_adv=st.integers(0, 4), select=st.sampled_from([0.0, 0.5, 1.0]),
    text=st.booleans(), ratchet=st.booleans(),
)  # fmt: skip
def test_agrees_with_a_transcription_of_the_pseudo_code(
    seed: int, L: int, K: int, K_min: int, V_nom: int, V_adv: int, select: float, text: bool, ratchet: bool
) -> None:
    K_min = min(K_min, K)

    def R(f: str, level: float) -> int:  # few values, so that ties and thresholds just met are common
        return random.Random(f"{seed} {f} {int(level)}").randint(0, 6)

    trained: list[tuple[int, str]] = []

    def train(f: str, phase: Phase) -> Iterator[str]:
        assert (phase.start, phase.eps) == (phase.index - 1, phase.index)
        trained.append((phase.index, f))
        for k in range(1, K + 1):
            yield f"{f}/{phase.index}.{k}"

    rules = Rules(
        eps=budgets(0.0, float(L), 1.0), runs=K, min_runs=K_min, nominal_threshold=V_nom, attacked_threshold=V_adv, skip=select,
        robust_to="any" if text else "every", ratchet=ratchet,
    )  # fmt: skip
    result = bcl("f0", rules, train=train, score=R)
    expected = pseudo_code(R, L, K, K_min, V_nom, V_adv, select, text, ratchet)
    assert [i for i, _ in trained] == [i for i, _ in expected]
    assert [*(f for _, f in trained), result.policy] == ["f0", *(f for _, f in expected)]
