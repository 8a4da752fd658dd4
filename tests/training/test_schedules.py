import math

import pytest

from trellis.training.schedules import Schedule
from trellis.training.settings import CompleteSettings


def schedule(updates=100, **settings):
    return Schedule(CompleteSettings(**settings), updates)


def test_the_warm_up_rises_in_equal_steps_to_the_full_rate():
    rates = [schedule(warmup=0.05).at(update) for update in range(6)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == pytest.approx(1.0)


def test_the_cosine_falls_from_one_through_the_middle_to_the_final_rate():
    cosine = schedule(schedule="cosine", warmup=0.2, final=0.1)
    assert cosine.at(20) == 1.0
    assert cosine.at(60) == pytest.approx(0.55)
    assert cosine.at(40) == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    assert cosine.at(99) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 79 / 80)) / 2)
    assert cosine.at(100) == pytest.approx(0.1)
    rates = [cosine.at(update) for update in range(20, 101)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("kind", ["cosine", "plateau", "constant"])
def test_without_a_warm_up_the_first_rate_is_the_full_one(kind):
    assert schedule(warmup=0.0, schedule=kind).at(0) == 1.0
    assert schedule(updates=1, warmup=0.05, schedule=kind).at(0) == 1.0


def test_a_warm_up_of_the_whole_run_ends_at_the_full_rate():
    assert [schedule(updates=4, warmup=1.0).at(update) for update in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_constant_stays():
    constant = schedule(schedule="constant", warmup=0.0)
    for loss in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0):
        constant.validated(loss)
    assert [constant.at(update) for update in (0, 50, 99)] == [1.0, 1.0, 1.0]


def test_the_plateau_falls_after_its_patience_and_again():
    plateau = schedule(schedule="plateau", warmup=0.0, patience=2, factor=0.25)
    levels = []
    for loss in (5.0, 4.0, 4.0, 4.5, 4.1, 3.9, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0):
        plateau.validated(loss)
        levels.append(plateau.at(50))
    # Three in a row no better than 4.0, then 3.9 starts the count anew, and twice three more.
    assert levels == [1.0] * 4 + [0.25] * 4 + [0.0625] * 3 + [0.015625]


def test_a_plateau_warms_up_too():
    plateau = schedule(schedule="plateau", warmup=0.1)
    assert plateau.at(0) == pytest.approx(0.1)


def test_what_a_checkpoint_remembers_is_all_there_is():
    first = schedule(schedule="plateau", warmup=0.0, patience=1, factor=0.5)
    losses = [3.0, 3.5, 3.5, 2.0, 2.5, 2.5, 2.5, 2.5]
    for loss in losses[:4]:
        first.validated(loss)
    second = schedule(schedule="plateau", warmup=0.0, patience=1, factor=0.5)
    second.restore(first.state())
    for loss in losses[4:]:
        first.validated(loss)
        second.validated(loss)
        assert second == first
    assert first.at(9) == 0.125
