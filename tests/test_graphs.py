"""A graphed function does what the function does."""

import gc
import weakref

import pytest
import torch

from bcl.graphs import Graphed


def test_without_a_graph_it_is_the_function_itself():
    generator, made = torch.Generator().manual_seed(0), []

    def draw():
        made.append(torch.rand(3, generator=generator))
        return made[-1]

    graphed = Graphed(draw, generator, enabled=False)
    for calls in range(1, 6):
        assert graphed() is made[-1]
        assert len(made) == calls
    assert len({tuple(numbers.tolist()) for numbers in made}) == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_with_a_graph_every_call_counts_once():
    runs = []
    for enabled in (True, False):
        generator = torch.Generator("cuda").manual_seed(3)
        given, total, host = torch.zeros((), device="cuda"), torch.zeros((), device="cuda"), []

        def draw(generator=generator, given=given, total=total, host=host):
            host.append(None)
            total.add_(given)
            return torch.rand(5, generator=generator, device="cuda") + total

        graphed, results, places = Graphed(draw, generator, enabled=enabled), [], set()
        for call in range(8):
            given.fill_(call)
            result = graphed()
            results.append(result.clone())
            places.add(result.data_ptr() if call > 2 else 0)
        assert total.item() == sum(range(8))  # warming up and capturing included
        assert len(host) == (3 if enabled else 8)
        if enabled:
            assert len(places) == 2  # one fixed place from the third call on
        runs.append((torch.stack(results), generator.get_state()))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])


def test_it_dies_with_its_owner():
    class Owner:
        def __init__(self):
            self.graphed = Graphed(self.answer, torch.Generator(), enabled=False)

        def answer(self):
            return 42

    owner = Owner()
    assert owner.graphed() == 42
    gone = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert gone() is None
    finally:
        gc.enable()
