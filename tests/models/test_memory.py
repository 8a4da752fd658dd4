"""States that remember words are a plain HMM over all pairs of a state and its words: every answer is the same."""

import itertools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError, ops
from trellis.models import HMM, HMMConfig, load_model
from trellis.models.memory import NONE

from .makers import DENSE, FLAT, RESIDUAL, VOCABULARY, gradients, random_ids, support_of
from .pairs import assert_paths_agree, labels_of_pairs, pairs_of, vector_of

WORDS, STATES = 4, 3
LENGTHS = torch.tensor([5, 1, 4, 0, 3])
BF16_KINDS = [RESIDUAL, FLAT["residual"] | {"support": "brown"}, DENSE["dense residual"]]


def model_of(memory=1, seed=0, **changes):
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3} | changes
    model = HMM(HMMConfig(WORDS, STATES, memory=memory, **parts), seed=seed).double().eval()
    with torch.no_grad():
        model.memory.words.normal_(generator=torch.Generator().manual_seed(seed)).mul_(1.5)
    model.memory.keep_frequent(np.array([3, 1, 3, 1, 3, 0]))
    return model


def stepping(model, words):
    """p(z′ | z, words), S×S, straight from the formula; the newest word first, NONE where there is none."""
    everything = torch.arange(STATES)
    logits = model.transition.log_rows(model.encoder, everything, everything)
    entering = model.encoder.vectors("entering", model.encoder.encode(everything))
    for place, word in enumerate(words):
        if word != NONE:
            logits = logits + entering @ vector_of(model, place, word)
    return logits.softmax(-1)


def pairs(model):
    """The plain HMM over (words, state), with the words themselves as emissions."""
    start, emission = model.log_start().exp(), model._log_emission().exp()
    return pairs_of(model.config.memory, start, emission, lambda context: stepping(model, context))


def texts(seed=0, batch=5, time=5):
    return torch.randint(WORDS, (batch, time), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(
    params=[(1, None), (2, None), (3, None), (1, 2), (2, 1)],
    ids=["one word", "two words", "three words", "one of two frequent words", "two, if it is the most frequent word"],
)
def both(request):
    memory, frequent = request.param
    model = model_of(memory, memory_words=frequent)
    with torch.no_grad():
        return model, pairs(model)


def test_scores_are_those_of_the_pairs_token_by_token(both):
    model, twin = both
    with torch.no_grad():
        ours, theirs = model.score(texts(), lengths_B=LENGTHS)[0], twin.score(texts(), lengths_B=LENGTHS)[0]
    assert_close(ours, theirs)


def test_text_in_pieces_scores_as_it_does_whole(both):
    model, _ = both
    whole, _ = model.score(texts(time=7))
    for cut in range(1, 8):
        first, state = model.score(texts(time=7)[:, :cut])
        second, _ = model.score(texts(time=7)[:, cut:], state)
        assert_close(torch.cat([first, second], 1), whole)


def test_rows_that_end_early_carry_their_own_words(both):
    model, twin = both
    with torch.no_grad():
        _, ours = model.score(texts(), lengths_B=LENGTHS)
        _, theirs = twin.score(texts(), lengths_B=LENGTHS)
        more = texts(seed=1)[:, :3]
        keep = LENGTHS > 0  # a row without tokens has a belief before its first word, which pairs do not have
        assert_close(model.score(more, ours)[0][keep], twin.score(more, theirs)[0][keep])


def test_posteriors_paths_and_entropy_are_those_of_the_pairs(both):
    model, twin = both
    ids, lengths = texts(), LENGTHS
    ours, theirs = model.smooth(ids, lengths_B=lengths), twin.smooth(ids, lengths_B=lengths)
    assert_close(ours.log_prob_BT, theirs.log_prob_BT)
    folded = theirs.posterior_BTS.unflatten(2, (-1, STATES)).sum(2)
    assert_close(ours.posterior_BTS, folded)
    assert_paths_agree(model, twin, ids, lengths)


def test_beliefs_after_each_token_are_those_of_the_pairs(both):
    model, twin = both
    ours, theirs = model.filter(texts(), lengths_B=LENGTHS), twin.filter(texts(), lengths_B=LENGTHS)
    assert_close(ours.belief_BTS, theirs.belief_BTS.unflatten(2, (-1, STATES)).sum(2))


def test_the_next_word_is_that_of_the_pairs(both):
    model, twin = both
    with torch.no_grad():
        (_, ours), (_, theirs) = model.score(texts()), twin.score(texts())
    assert_close(model.next_token(ours), twin.next_token(theirs))
    assert_close(model.next_token(), twin.next_token())


@pytest.mark.parametrize("learning", [False, True], ids=["in use", "with gradients"])
@pytest.mark.parametrize("encoder", ["table", "residual", "factored", "mlp", "transformer"])
def test_scores_are_those_of_the_pairs_whatever_makes_the_vectors(encoder, learning):
    model = model_of(encoder=encoder)
    with torch.no_grad():
        twin = pairs(model)
    with torch.set_grad_enabled(learning):
        assert_close(model.score(texts(), lengths_B=LENGTHS)[0], twin.score(texts(), lengths_B=LENGTHS)[0])


@pytest.mark.parametrize("begun", [False, True], ids=["from the start", "from a text"])
@pytest.mark.parametrize("memory", [1, 2])
def test_samples_have_the_words_that_the_model_expects(memory, begun):
    model = model_of(memory)
    with torch.no_grad():
        state = model.score(torch.tensor([[2, 0]]))[1] if begun else None
    everything = torch.tensor(list(itertools.product(range(WORDS), repeat=3)))
    after = [None if state is None else state.expand(rows, -1) for rows in (20_000, len(everything))]
    drawn = model.sample(20_000, 3, after[0], generator=torch.Generator().manual_seed(0)).tokens_BT
    found = torch.bincount(drawn[:, 0] * WORDS**2 + drawn[:, 1] * WORDS + drawn[:, 2], minlength=WORDS**3) / len(drawn)
    with torch.no_grad():
        wanted = model.score(everything, after[1])[0].sum(1).exp()
    assert (found - wanted).abs().sum() < 0.06  # by chance about 0.04
    assert_close(wanted.sum(), torch.tensor(1.0).double())


@pytest.mark.parametrize("begun", [False, True], ids=["from the start", "from a text"])
def test_slopes_of_every_parameter(begun):
    model = model_of(2)
    ids, state = texts(batch=3, time=4), model.score(texts(seed=2, batch=3, time=2))[1].detach() if begun else None
    names, parameters = zip(*model.named_parameters(), strict=True)

    def total(*given):
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), (ids,))

    model.forward = lambda ids: model.score(ids, state, lengths_B=torch.tensor([4, 2, 1]))[0].sum()
    assert torch.autograd.gradcheck(total, parameters)


def test_slopes_of_every_parameter_through_gaps():
    model, ids = model_of().train(), texts(batch=3, time=4)  # in use, tables are kept, and gradcheck's changes unseen
    missing = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]]).bool()
    _, state = model.score(texts(seed=1, batch=3, time=2), missing_BT=torch.tensor([[0, 1], [0, 0], [1, 1]]).bool())
    names, parameters = zip(*model.named_parameters(), strict=True)

    def total(*given):
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), (ids,))

    for before in (None, state.detach()):
        model.forward = lambda ids, before=before: model.score(ids, before, missing_BT=missing)[0].sum()
        assert torch.autograd.gradcheck(total, parameters)


def test_single_tokens_cannot_be_weighed():
    model = model_of()
    log_prob_BT, _ = model.score(texts())
    with pytest.raises(TrellisError, match="weigh rows, not single tokens"):
        (log_prob_BT * torch.rand(5, 5)).sum().backward()


def test_gaps_are_summed_over_words():
    model = model_of()
    ids = texts(batch=4, time=4)
    missing = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]]).bool()
    with torch.no_grad():
        found, state = model.score(ids, missing_BT=missing)
        for row in range(4):
            wanted = 0.0
            more = 0.0
            for words in itertools.product(range(WORDS), repeat=int(missing[row].sum())):
                filled = ids[row].clone()
                filled[missing[row]] = torch.tensor(words, dtype=torch.int64)
                wanted += float(model.score(filled[None])[0].sum().exp())
                more += float(model.score(torch.cat([filled, torch.tensor([2, 1])])[None])[0].sum().exp())
            assert float(found[row].sum().exp()) == pytest.approx(wanted, rel=1e-9)
            after, _ = model.score(torch.tensor([[2, 1]]), state[row : row + 1])
            assert float((found[row].sum() + after.sum()).exp()) == pytest.approx(more, rel=1e-9)


def test_gaps_whose_sums_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr("trellis.models.remembering.LARGEST_SUM", WORDS * STATES - 1)
    for question in (model_of().score, model_of().fill):
        with pytest.raises(TrellisError, match="which do not fit in memory: ask a model with fewer states"):
            question(texts(), missing_BT=texts() == 0)
    model_of().score(texts())


def test_the_most_frequent_words_are_remembered_and_of_equals_the_first(tmp_path):
    model = model_of(memory_words=3)
    assert model.memory.words.shape == (1, 3, 3)
    model.memory.keep_frequent(np.array([2, 3, 2, 1, 1, 0]))
    assert model.memory.kept_W.tolist() == [0, 1, 2]
    model.memory.keep_frequent(np.array([2, 3, 3, 3, 2, 0]))
    assert model.memory.kept_W.tolist() == [0, 2, 3]
    model.save_pretrained(tmp_path / "model")
    assert_close(load_model(tmp_path / "model").score(texts()), model.score(texts()), rtol=0, atol=0)
    for damaged in ([0, 2, 4], [0, 0, 2], [-1, 0, 2]):
        model.memory.kept_W.copy_(torch.tensor(damaged))
        model.save_pretrained(tmp_path / "model")
        with pytest.raises(TrellisError, match="remembered words"):
            load_model(tmp_path / "model")


@pytest.mark.parametrize(("frequent", "memory"), [(0, 1), (WORDS + 1, 1), (2, 0)])
def test_so_many_words_must_be_there_and_be_remembered(frequent, memory):
    with pytest.raises(TrellisError, match=r"model\.memory_words"):
        HMMConfig(WORDS, STATES, transition="low_rank", width=3, memory=memory, memory_words=frequent)


def test_memory_dropout_leaves_out_a_share_and_keeps_the_mean():
    model = model_of(memory_dropout=0.25).train()
    with torch.no_grad():
        model.memory.words.fill_(1.0)
        torch.manual_seed(0)
        drawn = torch.stack([model.memory.vectors(torch.tensor([[0], [1], [-1]])) for _ in range(2000)])
    assert drawn[:, :2].unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert not drawn[:, 2].any()
    assert float(drawn[:, :2].mean()) == pytest.approx(1.0, abs=0.03)
    assert_close(model.eval().memory.vectors(torch.tensor([[0]])), torch.ones(1, 3, dtype=torch.float64))


@pytest.mark.parametrize("begun", [False, True], ids=["from the start", "from a text"])
@pytest.mark.parametrize("memory", [1, 2])
def test_with_dropout_the_texts_of_a_batch_share_one_distribution(memory, begun):
    model = model_of(memory, memory_dropout=0.5).train()
    everything = torch.tensor(list(itertools.product(range(WORDS), repeat=memory + 1)))
    state = model.score(torch.tensor([[1, 3]] * len(everything)))[1].detach() if begun else None
    torch.manual_seed(0)
    found = model.score(everything, state)[0].sum(1).exp().detach()
    assert_close(found.sum(), torch.tensor(1.0).double())
    assert (found - model.eval().score(everything, state)[0].sum(1).exp()).abs().max() > 0.01


def test_while_learning_no_more_is_asked_of_beliefs_than_tokens_need():
    assert model_of().train().chain(texts()).learning
    assert not model_of().eval().chain(texts()).learning


def test_what_only_plain_states_have_is_refused():
    for question in ("tables", "plain", "dense"):
        with pytest.raises(TrellisError, match="states that remember words have no tables of their own"):
            getattr(model_of(), question)()


def test_a_saved_model_is_the_same(tmp_path):
    model = model_of(2)
    model.save_pretrained(tmp_path / "model")
    found = HMM.from_pretrained(tmp_path / "model")
    assert_close(found.score(texts())[0], model.score(texts())[0])


@torch.no_grad()
def test_labels_given_score_the_path_and_its_text():
    model = model_of()
    ids, labels = texts(batch=1, time=3), torch.tensor([[2, -1, 0]])
    found = float(model.score(ids, labels_BT=labels)[0].sum().exp())
    wanted = sum(
        float(model.score(ids, labels_BT=torch.tensor([[2, middle, 0]]))[0].sum().exp()) for middle in range(STATES)
    )
    assert found == pytest.approx(wanted)
    everything = itertools.product(range(STATES), repeat=3)
    whole = sum(float(model.score(ids, labels_BT=torch.tensor([path]))[0].sum().exp()) for path in everything)
    assert whole == pytest.approx(float(model.score(ids)[0].sum().exp()))


@pytest.mark.parametrize("given", ["all", "some"])
def test_labels_are_scored_token_by_token_as_those_of_the_pairs(both, given):
    model, twin = both
    ids = texts()
    labels = torch.randint(STATES, ids.shape, generator=torch.Generator().manual_seed(1))
    paired = labels_of_pairs(model.config.memory, WORDS, STATES, ids, labels)
    unknown = (torch.arange(25).view(5, 5) % 3 == 1) & (torch.tensor(given == "some"))
    ours = model.score(ids, lengths_B=LENGTHS, labels_BT=labels.masked_fill(unknown, -1))[0]
    theirs = twin.score(ids, None, LENGTHS, labels_BT=paired.masked_fill(unknown, -1))[0]
    assert_close(ours, theirs)


def test_tokens_of_given_states_may_be_weighed_one_by_one():
    model = model_of()
    ids = texts(batch=2, time=3)
    labels = torch.randint(STATES, ids.shape, generator=torch.Generator().manual_seed(1))
    weight = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    names, parameters = zip(*model.named_parameters(), strict=True)
    model.forward = lambda: (model.score(ids, labels_BT=labels)[0] * weight).sum()

    def total(*given):
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), ())

    assert torch.autograd.gradcheck(total, parameters)


def test_float32_and_native_code_agree_with_float64():
    model = model_of()
    ids = texts(batch=6, time=9)
    ours, theirs = model.score(ids)[0], model.float().score(ids)[0]
    assert_close(theirs.double(), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", [*ops.levels(), None])
@pytest.mark.parametrize("kind", BF16_KINDS, ids=lambda kind: f"{kind['support']} {kind['transition']}")
def test_products_in_bf16_stay_near(kind, level):
    model = HMM(HMMConfig(VOCABULARY, 96, blocks=2, width=40, memory=2, **kind), 0, support_of(kind["support"], 96, 2))
    with torch.no_grad():
        model.memory.words.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.3)

    def scored():
        ids, lengths = random_ids(5, 9, VOCABULARY), torch.tensor([9, 1, 5, 0, 8])
        first, state = model.score(ids, None, lengths)
        log_prob = torch.cat([first, model.score(ids, state.detach(), lengths)[0]])
        return log_prob.detach(), gradients(model, log_prob.sum())

    with torch.autocast("cpu", torch.bfloat16), ops.using(level):
        near, found = scored()
    model.double()
    exact, want = scored()
    assert near.dtype == torch.float32
    assert 1e-5 < (near - exact).abs().max() < 5e-3  # farther than float32 would be
    for names in (list(want), ["memory.words"]):
        error = torch.cat([(found[name] - want[name]).flatten() for name in names])
        assert error.norm() < 1e-2 * torch.cat([want[name].flatten() for name in names]).norm()


def test_without_a_word_of_memory_it_is_the_plain_model():
    model = model_of()
    with torch.no_grad():
        model.memory.words.zero_()
    plain = HMM(HMMConfig(WORDS, STATES, start="low_rank", transition="low_rank", emission="low_rank", width=3), seed=0)
    assert_close(model.score(texts())[0], plain.double().score(texts())[0])


def test_bad_settings_and_states_are_refused():
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
    with pytest.raises(TrellisError, match="between 0 and 3 words"):
        HMMConfig(WORDS, STATES, memory=4, **parts)
    with pytest.raises(TrellisError, match=r"needs model\.transition=low_rank or hierarchical"):
        HMMConfig(WORDS, STATES, memory=1)
    with pytest.raises(TrellisError, match="memory_dropout needs a memory"):
        HMMConfig(WORDS, STATES, memory_dropout=0.3, **parts)
    with pytest.raises(TrellisError, match=r"leave model\.dropout out"):
        HMMConfig(WORDS, STATES, memory=1, dropout=0.3, **parts)
    plain = HMM(HMMConfig(WORDS, STATES, **parts), seed=0).double()
    with pytest.raises(TrellisError, match="does not belong to 5 rows of this model"):
        model_of().score(texts(), plain.score(texts())[1])
    with pytest.raises(TrellisError, match="does not belong to 5 rows of this model"):
        plain.score(texts(), model_of().score(texts())[1])
    larger = HMM(HMMConfig(WORDS, STATES + 1, **parts), seed=0).double()  # whose last belief is in the word's place
    with pytest.raises(TrellisError, match="a state with words outside of this model's 4 is none"):
        model_of().score(texts(), larger.score(texts())[1])


def test_the_states_alone_are_a_markov_chain():
    """Each is drawn given the last state and its word: summed over words, the pairs' own chain of states."""
    model = model_of()
    emission, everything = model.log_emission().exp(), torch.arange(STATES)
    want = sum(emission[word, :, None] * stepping(model, [word]) for word in range(WORDS))
    assert_close(model.all_pairs(), want)
    assert_close(model.rows(everything[1:])[0], want[1:])
    assert_close(model.all_pairs().sum(1), torch.ones(STATES, dtype=torch.float64))
    with pytest.raises(TrellisError, match="several words have no table of pairs"):
        model_of(memory=2).all_pairs()
