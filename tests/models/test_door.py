"""Nothing hostile gets past the door of any kind of model, by any question: one sentence, and no kernel sees it.

What `test_asking.py` says of scores is said here of every other question, and of what questions take besides ids.
"""

import numpy as np
import pytest
import torch

from trellis import TrellisError
from trellis.mixtures import Mixture
from trellis.models import HMM, HMMConfig
from trellis.models.registry import KINDS

from .makers import random_ids
from .test_asking import HMMS, IDS, MODELS, V

EVERY = MODELS | {"mixture": lambda: Mixture([HMM(HMMConfig(V, 3), seed=seed) for seed in (0, 1)], [0.5, 0.5])}
GAPS = torch.eye(2, 4, dtype=torch.bool)
HUGE = 2**62
every_model = pytest.mark.parametrize("name", EVERY)
every_hmm = pytest.mark.parametrize("name", HMMS)

# Questions about texts: ids, and a state, lengths or gaps by name.
ABOUT_TEXTS = {
    "filter": lambda model, ids, **more: model.filter(ids, **more),
    "smooth": lambda model, ids, **more: model.smooth(ids, **more),
    "viterbi": lambda model, ids, **more: model.viterbi(ids, **more),
    "k_best": lambda model, ids, **more: model.k_best(ids, 2, **more),
    "sample_posterior": lambda model, ids, **more: model.sample_posterior(ids, 2, **more),
    "entropy": lambda model, ids, **more: model.entropy(ids, **more),
    "fill": lambda model, ids, **more: model.fill(ids, **({"missing_BT": GAPS} | more)),
    "chain": lambda model, ids, **more: model.chain(ids, **more),
}
LENGTHS = {
    "negative": [-1, 2],
    "longer than the row": [9, 2],
    "huge": [HUGE, 1],
    "too few": [1],
    "two dimensions": [[1, 2]],
    "floats": [1.0, 2.0],
    "not numbers": [float("nan"), 1],
    "booleans": [True, False],
    "text": "ab",
    "a table": {},
}
MASKS = {
    "a row too few": GAPS[:1],
    "a column too many": torch.eye(2, 5, dtype=torch.bool),
    "one dimension": GAPS[0],
    "three dimensions": GAPS[None],
    "whole numbers": GAPS.int(),
    "floats": GAPS.float(),
    "text": "x",
}
LABELS = {
    "a row too few": IDS[:1],
    "floats": IDS.float(),
    "booleans": GAPS,
    "below −1": IDS * 0 - 2,
    "no state": IDS * 0 + 999,
    "text": "x",
}
NUMBERS = {"negative": -1, "a half": 2.5, "text": "a", "nothing": None, "huge": HUGE, "true": True, "an array": [2]}
ENDS = {"negative": -1, "outside": V, "a half": 2.5, "text": "x", "true": True}


def make(name):
    model = EVERY[name]()
    return model.eval() if isinstance(model, torch.nn.Module) else model


def bad_states(state):
    """States of the wrong shape, kind or values, where `state` is a right one of two rows."""
    yield from {
        "a column too few": state[:, :-1],
        "twice as wide": torch.cat([state, state], 1),
        "one dimension": state[0],
        "three dimensions": state[None],
        "booleans": state > 0,
        "complex": state.to(torch.complex64),
        "text": "x",
        "a number": 3,
        "lists": state.tolist(),
        "a pair": (state, state),
    }.items()
    if state.is_floating_point():
        yield "not a number", state.clone().fill_(torch.nan)
        yield "one that is no number", torch.cat([state[:, :-1], state[:, -1:] * torch.nan], 1)
        yield "infinite", state.clone().fill_(torch.inf)
        yield "one that is −inf", torch.cat([state[:, :-1], torch.full_like(state[:, -1:], -torch.inf)], 1)
        yield "whole numbers", state.long()
    else:
        yield "floats", state.float()
        yield "no word", torch.full_like(state, V)
        yield "below nothing", torch.full_like(state, -2)


def refused(ask, what):
    said = "taken"
    try:
        ask()
    except TrellisError as error:
        said = str(error)
    assert said.endswith("."), what


def test_every_kind_is_at_the_door():
    assert {model().config.kind for model in MODELS.values() if hasattr(model(), "config")} >= set(KINDS)


@every_model
def test_states_that_are_none_are_refused_by_every_question(name):
    model = make(name)
    _, state = model.score(IDS)
    for what, bad in bad_states(state.detach()):
        refused(lambda bad=bad: model.score(IDS, bad), f"score: {what}")
        if hasattr(model, "next_token"):
            refused(lambda bad=bad: model.next_token(bad), f"next_token: {what}")
        if hasattr(model, "sample") and name != "mixture":
            refused(lambda bad=bad: model.sample(2, 3, bad), f"sample: {what}")
    if hasattr(model, "sample") and name != "mixture":
        refused(lambda: model.sample(3, 2, state), "sample: a row too few")


@every_hmm
@pytest.mark.parametrize("question", ABOUT_TEXTS)
def test_questions_about_texts_refuse_states_lengths_and_gaps_that_are_none(name, question):
    model, ask = make(name), ABOUT_TEXTS[question]
    _, state = model.score(IDS)
    for what, bad in (("a row too few", state[:1]), *bad_states(state.detach())):
        refused(lambda bad=bad: ask(model, IDS, state=bad), f"a state: {what}")
    for what, bad in LENGTHS.items():
        refused(lambda bad=bad: ask(model, IDS, lengths_B=bad), f"lengths: {what}")
    for what, bad in MASKS.items():
        refused(lambda bad=bad: ask(model, IDS, missing_BT=bad), f"gaps: {what}")


@every_model
def test_lengths_of_every_sort_that_are_none_are_refused(name):
    for what, bad in LENGTHS.items():
        refused(lambda bad=bad: make(name).score(IDS, None, bad), what)


@every_hmm
def test_labels_that_are_none_are_refused(name):
    model = make(name)
    for what, bad in LABELS.items():
        refused(lambda bad=bad: model.score(IDS, labels_BT=bad), what)


@every_hmm
@pytest.mark.parametrize("what", [*NUMBERS, "zero"])
def test_numbers_of_paths_that_are_none_are_refused(name, what):
    model, number = make(name), NUMBERS.get(what, 0)
    refused(lambda: model.k_best(IDS, number), "k_best")
    refused(lambda: model.sample_posterior(IDS, number), "sample_posterior")


@every_model
def test_draws_of_sizes_and_ends_that_are_none_are_refused(name):
    model = make(name)
    if not hasattr(model, "sample"):
        pytest.skip("unigrams and bigrams only score")
    for what, number in NUMBERS.items():
        refused(lambda number=number: model.sample(number, 3), f"a batch: {what}")
        refused(lambda number=number: model.sample(2, number), f"a length: {what}")
    for what, end in ENDS.items():
        refused(lambda end=end: model.sample(2, 3, end=end), f"an end: {what}")
    assert model.sample(np.int64(2), np.int32(3), end=np.int64(1)).tokens_BT.shape == (2, 3)


@pytest.mark.parametrize("name", ["memory", "memory of two"])
@pytest.mark.parametrize("word", [-3, V, 1e9])
def test_remembered_words_that_are_none_are_refused(name, word):
    model = make(name)
    _, state = model.score(IDS)
    state = state.detach().clone()
    state[1, -1] = word
    for ask in (lambda: model.score(IDS, state), lambda: model.next_token(state), lambda: model.sample(2, 2, state)):
        with pytest.raises(TrellisError, match=f"a state with words outside of this model's {V} is none"):
            ask()


@every_model
def test_a_state_that_was_returned_is_taken(name):
    """Also that of an impossible text, where there is one."""
    model = make(name)
    _, state = model.score(IDS)
    assert model.score(random_ids(2, 3, V), state)[0].shape == (2, 3)
