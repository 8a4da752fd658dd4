"""Batches come in order, whatever the order they are done in, and those that nobody wants end."""

import threading
import time

import pytest
import torch

from trellis.distillation.workers import in_order
from trellis.progress import Progress


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def bar():
    return Progress("testing", quiet=True)


@pytest.mark.usefixtures("three_threads")
def test_batches_are_made_together_and_given_in_order():
    together = threading.Barrier(3)  # which three at a time pass, or none

    def make(number, advance):
        if number < 9:
            together.wait(timeout=20)
        advance(1)
        return number, torch.get_num_threads()

    told = bar()
    batches = in_order(make, 3, told)
    assert [next(batches) for _ in range(6)] == [(number, 1) for number in range(3, 9)]
    batches.close()
    assert told.done >= 6
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_batches_that_nobody_wants_end():
    ended = []

    def make(number, advance):
        try:
            while number:
                advance(1)
                time.sleep(0.001)
        finally:
            ended.append(number)
        return number

    batches = in_order(make, 0, bar())
    assert next(batches) == 0
    batches.close()  # which waits for them
    assert sorted(ended)[0] == 0
    assert threading.active_count() == 1 or not any("ThreadPool" in one.name for one in threading.enumerate())


@pytest.mark.usefixtures("three_threads")
def test_what_fails_in_a_batch_is_raised_where_its_turn_comes():
    def make(number, advance):
        if number == 2:
            raise ValueError("batch 2")
        return number

    batches = in_order(make, 0, bar())
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(ValueError, match="batch 2"):
        next(batches)
    assert torch.get_num_threads() == 3
