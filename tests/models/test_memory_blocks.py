"""States in blocks that remember words are a plain HMM over pairs of a state and its words: every answer is its own."""

import itertools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.memory import NONE
from trellis.models.supports import Support, TakingPart

from .pairs import assert_paths_agree, chance, every_way, labels_of_pairs, pairs_of, vector_of

BLOCK = torch.tensor([0, 1, 0, 1, 2, 0])
WORDS, STATES, SIZE = len(BLOCK), 6, 2
SUPPORT = Support(BLOCK, torch.arange(STATES).view(-1, SIZE))
SMALL = Support(torch.tensor([0, 1, 0]), torch.arange(4).view(-1, SIZE))  # whose pairs with three words are few
LENGTHS = torch.tensor([5, 1, 4, 0, 3])
KINDS = ["hierarchical", "low_rank"]


def model_of(transition, memory=1, seed=0, support=SUPPORT, **changes):
    parts = {"start": "low_rank", "emission": "low_rank", "encoder": "residual", "width": 4, "bias": True} | changes
    shape = len(support.block_V), support.states_MK.numel(), "brown", len(support.states_MK)
    config = HMMConfig(*shape, transition=transition, memory=memory, **parts)
    model = HMM(config, seed=seed, support=support).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.memory.words.normal_(generator=generator).mul_(1.5)
        if transition == "hierarchical":
            model.transition.bias.normal_(generator=generator)
    model.memory.keep_frequent(np.array([3, 3, 2, 2, 1, 0]))
    return model


def stepping(model, words, kept=None):
    """p(z′ | z, words), from all states to those kept, straight from the formula; the newest word first, NONE: none."""
    kept = torch.arange(model.config.states) if kept is None else kept
    encoded = model.encoder.encode(torch.arange(model.config.states))
    leaving = model.encoder.vectors("leaving", encoded)
    for place, word in enumerate(words):
        if word != NONE:
            leaving = leaving + vector_of(model, place, word)
    logits = leaving @ model.encoder.vectors("entering", encoded)[kept].T
    if model.config.transition == "low_rank":
        return logits.softmax(1)
    blocks = (leaving @ model.transition.blocks.T + model.transition.bias).softmax(1)
    return (logits.unflatten(1, (blocks.shape[1], -1)).softmax(2) * blocks[:, :, None]).flatten(1)


def emission_of(model):
    """p(word | state), V×S."""
    found = torch.zeros(model.config.vocab_size, model.config.states, dtype=torch.float64)
    return found.scatter(1, model.support.lists(), model._log_emission().exp())


def pairs(model):
    """The plain HMM over (words, state), with the words themselves as emissions."""
    start, emission = model.log_start().exp(), emission_of(model)
    return pairs_of(model.config.memory, start, emission, lambda context: stepping(model, context))


def texts(seed=0, batch=5, time=5, words=WORDS):
    return torch.randint(words, (batch, time), generator=torch.Generator().manual_seed(seed))


def whole(found, states_BTS, states=STATES):
    """What a question says of the states of blocks, over all states."""
    return found.new_zeros(*found.shape[:2], states).scatter_add(2, states_BTS, found)


def folded(found_BTS, states=STATES):
    """What the pairs say of the states alone."""
    return found_BTS.unflatten(2, (-1, states)).sum(2)


@pytest.fixture(
    params=[(kind, *memory) for kind in KINDS for memory in ((1, None), (2, None), (1, 2))],
    ids=lambda p: f"{p[0]}, {p[1]} words, {p[2] or 'all'} remembered",
)
def both(request):
    transition, memory, frequent = request.param
    model = model_of(transition, memory, memory_words=frequent)
    with torch.no_grad():
        return model, pairs(model)


def test_scores_are_those_of_the_pairs_token_by_token(both):
    model, twin = both
    ours, theirs = model.score(texts(), lengths_B=LENGTHS)[0], twin.score(texts(), lengths_B=LENGTHS)[0]
    assert_close(ours, theirs)


@pytest.mark.parametrize("learning", [False, True], ids=["in use", "with gradients"])
def test_text_in_pieces_scores_as_it_does_whole(both, learning):
    model, _ = both
    with torch.set_grad_enabled(learning):
        whole, _ = model.score(texts(time=7))
        for cut in range(1, 8):
            first, state = model.score(texts(time=7)[:, :cut])
            second, _ = model.score(texts(time=7)[:, cut:], state)
            assert_close(torch.cat([first, second], 1), whole)


def test_a_long_text_is_cut_so_that_its_pairs_fit(both, monkeypatch):
    model, _ = both
    with torch.no_grad():
        at_once = model.score(texts(time=7))
        monkeypatch.setattr("trellis.models.questions.PIECE", 8 * SIZE**2)
        assert_close(model.score(texts(time=7)), at_once)


def test_rows_that_end_early_carry_their_own_words(both):
    model, twin = both
    _, ours = model.score(texts(), lengths_B=LENGTHS)
    _, theirs = twin.score(texts(), lengths_B=LENGTHS)
    more, keep = texts(seed=1)[:, :3], LENGTHS > 0  # the belief of a row without tokens is before its first word
    assert_close(model.score(more, ours)[0][keep], twin.score(more, theirs)[0][keep])
    assert_close(model.score(more, ours)[0][~keep], model.score(more)[0][~keep])


def test_posteriors_paths_and_entropy_are_those_of_the_pairs(both):
    model, twin = both
    ids, lengths = texts(), LENGTHS
    ours, theirs = model.smooth(ids, lengths_B=lengths), twin.smooth(ids, lengths_B=lengths)
    assert_close(ours.log_prob_BT, theirs.log_prob_BT)
    assert_close(whole(ours.posterior_BTS, ours.states_BTS), folded(theirs.posterior_BTS))
    assert_paths_agree(model, twin, ids, lengths)


def test_beliefs_after_each_token_are_those_of_the_pairs(both):
    model, twin = both
    ours, theirs = model.filter(texts(), lengths_B=LENGTHS), twin.filter(texts(), lengths_B=LENGTHS)
    assert_close(whole(ours.belief_BTS, ours.states_BTS), folded(theirs.belief_BTS))


def test_the_next_word_is_that_of_the_pairs(both):
    model, twin = both
    (_, ours), (_, theirs) = model.score(texts()), twin.score(texts())
    assert_close(model.next_token(ours), twin.next_token(theirs))
    assert_close(model.next_token(), twin.next_token())


@pytest.fixture(params=KINDS)
def of_three(request):
    model = model_of(request.param, 3, support=SMALL)
    with torch.no_grad():
        return model, pairs(model), texts(words=3), texts(seed=1, words=3)


def test_scores_after_three_words_are_those_of_the_pairs(of_three):
    model, twin, ids, more = of_three
    (ours, our_state), (theirs, their_state) = model.score(ids, None, LENGTHS), twin.score(ids, None, LENGTHS)
    keep = LENGTHS > 0  # the belief of a row without tokens is before its first word
    assert_close(ours, theirs)
    assert_close(model.score(more, our_state)[0][keep], twin.score(more, their_state)[0][keep])


def test_posteriors_and_paths_after_three_words_are_those_of_the_pairs(of_three):
    model, twin, ids, _ = of_three
    ours, theirs = model.smooth(ids, None, LENGTHS), twin.smooth(ids, None, LENGTHS)
    assert_close(whole(ours.posterior_BTS, ours.states_BTS, 4), folded(theirs.posterior_BTS, 4))
    assert_paths_agree(model, twin, ids, LENGTHS)


@pytest.mark.parametrize("learning", [False, True], ids=["in use", "with gradients"])
@pytest.mark.parametrize("encoder", ["table", "residual", "factored", "mlp", "transformer"])
@pytest.mark.parametrize("transition", KINDS)
def test_scores_are_those_of_the_pairs_whatever_makes_the_vectors(transition, encoder, learning):
    model = model_of(transition, encoder=encoder)
    with torch.no_grad():
        twin = pairs(model)
    with torch.set_grad_enabled(learning):
        assert_close(model.score(texts(), lengths_B=LENGTHS)[0], twin.score(texts(), lengths_B=LENGTHS)[0])


def test_posterior_paths_are_drawn_as_often_as_they_are_probable():
    model = model_of("hierarchical")
    ids = texts(batch=1, time=3)
    drawn = model.sample_posterior(ids, 20_000, generator=torch.Generator().manual_seed(0))[0]
    for path in itertools.product(*(SUPPORT.lists()[word].tolist() for word in ids[0].tolist())):
        share = (drawn == torch.tensor(path)).all(1).double().mean()
        labels = torch.tensor([path])
        wanted = (model.score(ids, labels_BT=labels)[0].sum() - model.score(ids)[0].sum()).exp()
        assert_close(share, wanted.detach(), atol=0.015, rtol=0)


@pytest.mark.parametrize("begun", [False, True], ids=["from the start", "from a text"])
@pytest.mark.parametrize("memory", [1, 2])
@pytest.mark.parametrize("transition", KINDS)
def test_samples_have_the_words_that_the_model_expects(transition, memory, begun):
    model = model_of(transition, memory)
    state = model.score(torch.tensor([[1, 3]]))[1].detach() if begun else None
    everything = torch.tensor(list(itertools.product(range(WORDS), repeat=3)))
    after = [None if state is None else state.expand(rows, -1) for rows in (20_000, len(everything))]
    drawn = model.sample(20_000, 3, after[0], generator=torch.Generator().manual_seed(0)).tokens_BT
    found = torch.bincount(drawn[:, 0] * WORDS**2 + drawn[:, 1] * WORDS + drawn[:, 2], minlength=WORDS**3) / len(drawn)
    wanted = model.score(everything, after[1])[0].sum(1).exp().detach()
    assert (found - wanted).abs().sum() < 0.09  # by chance about 0.06
    assert_close(wanted.sum(), torch.tensor(1.0).double())


@pytest.mark.parametrize("transition", KINDS)
def test_slopes_of_every_parameter(transition):
    model = model_of(transition, 2, encoder="table", width=2)
    ids, state = texts(batch=3, time=4), model.score(texts(seed=2, batch=3, time=2))[1].detach()
    names, parameters = zip(*model.named_parameters(), strict=True)

    def total(*given):
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), (ids,))

    model.forward = lambda ids: model.score(ids, state, lengths_B=torch.tensor([4, 2, 1]))[0].sum()
    assert torch.autograd.gradcheck(total, parameters)


@pytest.mark.parametrize("transition", KINDS)
def test_a_batch_knows_the_states_that_dropout_left_alone(transition, monkeypatch):
    """The next state is one of those that take part; beliefs in states dropped since are left all the same."""
    model = model_of(transition, dropout=0.5).train()
    kept = torch.tensor([1, 2, 4])
    _, state = model.eval().score(texts(seed=3))
    model.train()
    monkeypatch.setattr(model, "taking_part", lambda *, labelled=False: TakingPart(kept[:, None], None, kept))
    found, _ = model.score(texts(), state.detach(), lengths_B=LENGTHS)
    emission = emission_of(model)[:, kept]
    for row, length in enumerate(LENGTHS.tolist()):
        belief, before, text = state[row, :STATES], int(state[row, STATES]), texts()[row, :length].tolist()
        for step, word in enumerate(text):
            matrix = stepping(model, [before], kept)
            belief = belief @ (matrix if step == 0 else matrix[kept]) * emission[word]
            before = word
        assert_close(found[row].sum(), belief.sum().log())


@pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["of words", "of words and states"])
@pytest.mark.parametrize("memory", [1, 2])
@pytest.mark.parametrize("transition", KINDS)
def test_with_dropout_the_texts_of_a_batch_share_one_distribution(transition, memory, dropout):
    model = model_of(transition, memory, memory_dropout=0.5, dropout=dropout).train()
    everything = torch.tensor(list(itertools.product(range(WORDS), repeat=memory + 1)))
    torch.manual_seed(0)
    found = model.score(everything)[0].sum(1).exp().detach()
    assert_close(found.sum(), torch.tensor(1.0).double())
    assert (found - model.eval().score(everything)[0].sum(1).exp()).abs().max() > 0.01


@pytest.mark.parametrize("transition", KINDS)
def test_gaps_are_summed_over_words(transition):
    model = model_of(transition)
    ids = texts(batch=4, time=4)
    missing = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]]).bool()
    found, state = model.score(ids, missing_BT=missing)
    after, _ = model.score(torch.tensor([[2, 1]] * 4), state)
    gap_after, _ = model.score(torch.tensor([[2, 1]] * 4), state, missing_BT=torch.tensor([[True, False]] * 4))
    for row in range(4):
        filled = every_way(ids[row], missing[row], WORDS)
        assert_close(found[row].sum().exp(), chance(model, filled))
        more = torch.cat([filled, torch.tensor([2, 1]).expand(len(filled), 2)], 1)
        assert_close((found[row].sum() + after[row].sum()).exp().detach(), chance(model, more))
        over = torch.cat([every_way(row, torch.arange(6) == 4, WORDS) for row in more])
        assert_close((found[row].sum() + gap_after[row].sum()).exp(), chance(model, over))


@pytest.mark.parametrize("transition", KINDS)
def test_what_may_stand_in_a_gap(transition):
    model = model_of(transition)
    ids = texts(batch=3, time=5)
    missing = torch.tensor([[0, 1, 0, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]).bool()
    filled = model.fill(ids, missing)
    for row, place, log_prob_V in zip(*filled, strict=True):
        filled = every_way(ids[row], missing[row], WORDS)
        weight = torch.stack([chance(model, filled[filled[:, place] == word]) for word in range(WORDS)])
        assert_close(log_prob_V.exp(), weight / weight.sum())


@pytest.mark.parametrize("transition", KINDS)
def test_questions_about_gaps_agree_with_the_pairs(transition):
    model = model_of(transition)
    with torch.no_grad():
        twin = pairs(model)
    ids, missing = texts(batch=3), torch.rand(3, 5, generator=torch.Generator().manual_seed(5)) < 0.4
    lengths = torch.tensor([5, 4, 2])
    ours, theirs = model.smooth(ids, None, lengths, missing), twin.smooth(ids, None, lengths, missing)
    assert_close(whole(ours.posterior_BTS, ours.states_BTS), folded(theirs.posterior_BTS))
    assert_close(ours.log_prob_BT, theirs.log_prob_BT)


@pytest.mark.parametrize("transition", KINDS)
def test_gaps_of_words_by_pieces(transition, monkeypatch):
    """However few numbers are made at once."""
    model, ids = model_of(transition), texts(batch=2, time=4)
    missing = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 1]]).bool()
    at_once, filled = model.score(ids, missing_BT=missing)[0], model.fill(ids, missing).log_prob_NV
    monkeypatch.setattr("trellis.models.block_gaps.NUMBERS_AT_ONCE", 1)
    monkeypatch.setattr("trellis.inference.transitions.NUMBERS_AT_ONCE", 8)
    monkeypatch.setattr("trellis.inference.transitions.FROM_AT_ONCE", 3)
    assert_close(model.score(ids, missing_BT=missing)[0], at_once)
    assert_close(model.fill(ids, missing).log_prob_NV, filled)


@pytest.mark.parametrize("transition", ["hierarchical", "low_rank"])
def test_sums_over_gaps_are_distributions_while_words_are_dropped(transition, monkeypatch):
    model = model_of(transition, memory_dropout=0.5).train()
    for at_once in (None, 8):
        if at_once:
            monkeypatch.setattr("trellis.inference.transitions.NUMBERS_AT_ONCE", at_once)
            monkeypatch.setattr("trellis.models.block_gaps.NUMBERS_AT_ONCE", at_once)
        assert_close(model.all_pairs().sum(1), torch.ones(model.config.states, dtype=torch.float64))
        with torch.no_grad():
            _, gap = model.score(texts()[:1, :1], missing_BT=torch.tensor([[True]]))
        assert_close(model.next_token(gap).exp().sum(), torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("transition", KINDS)
def test_the_states_alone_are_a_markov_chain(transition):
    model = model_of(transition)
    emission = emission_of(model)
    want = sum(emission[word][:, None] * stepping(model, [word]) for word in range(WORDS))
    assert_close(model.all_pairs(), want.detach())
    assert_close(model.transition_rows(torch.tensor([4, 1])), want.detach()[[4, 1]])
    assert_close(model.all_pairs().sum(1), torch.ones(STATES, dtype=torch.float64))


@pytest.mark.parametrize("transition", KINDS)
def test_labels_given_score_the_path_and_its_text(transition):
    model = model_of(transition)
    ids = texts(batch=1, time=3)
    states = [SUPPORT.lists()[word].tolist() for word in ids[0].tolist()]
    with torch.no_grad():
        paths = {
            path: model.score(ids, labels_BT=torch.tensor([path]))[0].sum().exp() for path in itertools.product(*states)
        }
        assert_close(sum(paths.values()), model.score(ids)[0].sum().exp())
        first, _, last = next(iter(paths))
        some = model.score(ids, labels_BT=torch.tensor([[first, -1, last]]))[0].sum().exp()
    assert_close(some, sum(paths[first, middle, last] for middle in states[1]))


@pytest.mark.parametrize("given", ["all", "some"])
def test_labels_are_scored_token_by_token_as_those_of_the_pairs(both, given):
    model, twin = both
    ids = texts()
    generator = torch.Generator().manual_seed(1)
    place = torch.randint(SIZE, ids.shape, generator=generator)
    labels = SUPPORT.lists()[ids].gather(2, place[..., None]).squeeze(2)
    paired = labels_of_pairs(model.config.memory, WORDS, STATES, ids, labels)
    unknown = (torch.arange(25).view(5, 5) % 3 == 1) & (torch.tensor(given == "some"))
    ours = model.score(ids, lengths_B=LENGTHS, labels_BT=labels.masked_fill(unknown, -1))[0]
    theirs = twin.score(ids, None, LENGTHS, labels_BT=paired.masked_fill(unknown, -1))[0]
    assert_close(ours, theirs)


def test_tokens_of_given_states_may_be_weighed_one_by_one():
    model = model_of("hierarchical", encoder="table", width=2)
    ids = texts(batch=2, time=3)
    generator = torch.Generator().manual_seed(1)
    place = torch.randint(SIZE, ids.shape, generator=generator)
    labels = SUPPORT.lists()[ids].gather(2, place[..., None]).squeeze(2)
    weight = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    names, parameters = zip(*model.named_parameters(), strict=True)
    model.forward = lambda: (model.score(ids, labels_BT=labels)[0] * weight).sum()

    def total(*given):
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), ())

    assert torch.autograd.gradcheck(total, parameters)


@pytest.mark.parametrize("transition", KINDS)
def test_float32_and_native_code_agree_with_float64(transition):
    model = model_of(transition)
    ids = texts(batch=6, time=9)
    ours, theirs = model.score(ids)[0], model.float().score(ids)[0]
    assert_close(theirs.double(), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transition", KINDS)
def test_without_a_word_of_memory_it_is_the_plain_model(transition):
    model = model_of(transition)
    with torch.no_grad():
        model.memory.words.zero_()
    parts = {"start": "low_rank", "emission": "low_rank", "encoder": "residual", "width": 4, "bias": True}
    plain = HMM(HMMConfig(WORDS, STATES, "brown", 3, transition=transition, **parts), seed=0, support=SUPPORT).double()
    plain.load_state_dict({name: kept for name, kept in model.state_dict().items() if name != "memory.words"})
    assert_close(model.score(texts())[0], plain.score(texts())[0])


def test_a_saved_model_is_the_same(tmp_path):
    model = model_of("hierarchical", 2)
    model.save_pretrained(tmp_path / "model")
    found = HMM.from_pretrained(tmp_path / "model")
    assert_close(found.score(texts())[0], model.score(texts())[0])


def test_bad_settings_and_states_are_refused():
    parts = {"start": "low_rank", "emission": "low_rank", "width": 3}
    with pytest.raises(TrellisError, match=r"needs model\.transition=low_rank or hierarchical"):
        HMMConfig(WORDS, STATES, "brown", 3, memory=1, transition="hierarchical_scalar", **parts)
    with pytest.raises(TrellisError, match="other than uniform"):
        HMMConfig(WORDS, STATES, "uniform", 3, memory=1, transition="low_rank", **parts)
    plain = HMM(HMMConfig(WORDS, STATES, "brown", 3, transition="hierarchical", **parts), seed=0, support=SUPPORT)
    with pytest.raises(TrellisError, match="does not belong to 5 rows of this model"):
        model_of("hierarchical").score(texts(), plain.double().score(texts())[1])
