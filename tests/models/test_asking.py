"""What people hand to a model: accepted where the meaning is plain, else refused in a sentence that says what to do."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.errors import InputError
from trellis.models import HMM, Bigram, HMMConfig, Unigram
from trellis.models.asking import Asked, batch_of_ids
from trellis.models.feed_forward import FeedForward, FeedForwardConfig
from trellis.models.hmm_rnn import HMMRNN, HMMRNNConfig
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import AWDLSTM, LSTM, AWDLSTMConfig, LSTMConfig
from trellis.models.transformer import TransformerLM, TransformerLMConfig

from .makers import LOW_RANK, VOCABULARY, make_kind, random_ids

V = VOCABULARY
TEXT = random_ids(1, 200, V, seed=4)[0].numpy()


def remembering(memory):
    model = HMM(HMMConfig(V, 6, width=3, memory=memory, **LOW_RANK), seed=0)
    with torch.no_grad():
        model.memory.words.normal_(generator=torch.Generator().manual_seed(1))
    return model


HMMS = {
    "dense": lambda: make_kind(torch.float32, support="dense", transition="low_rank"),
    "blocks": lambda: make_kind(torch.float32),
    "uniform": lambda: make_kind(torch.float32, support="uniform", transition="low_rank"),
    "memory": lambda: remembering(1),
    "memory of two": lambda: remembering(2),
}
OTHERS = {
    "lstm": lambda: LSTM(LSTMConfig(V, width=5), seed=0),
    "awd_lstm": lambda: AWDLSTM(AWDLSTMConfig(V, width=5, hidden=6), seed=0),
    "hmm_rnn": lambda: HMMRNN(HMMRNNConfig(V, states=4, width=5), seed=0),
    "feed_forward": lambda: FeedForward(FeedForwardConfig(V, width=5, order=3), seed=0),
    "transformer": lambda: TransformerLM(TransformerLMConfig(V, width=8, layers=1, heads=2, context=6), seed=0),
    "kneser_ney": lambda: KneserNey.fit(KneserNeyConfig(V, order=3), TEXT, end=0, quiet=True),
    "kneser_ney of running text": lambda: KneserNey.fit(KneserNeyConfig(V, order=3), TEXT, quiet=True),
    "unigram": lambda: Unigram.fit(TEXT, V),
    "bigram": lambda: Bigram.fit(TEXT, V),
}
MODELS = HMMS | OTHERS
every_model = pytest.mark.parametrize("name", MODELS)
# The ways to ask an HMM about texts, each of them given ids.
QUESTIONS = {
    "score": lambda model, ids: model.score(ids),
    "filter": lambda model, ids: model.filter(ids),
    "smooth": lambda model, ids: model.smooth(ids),
    "viterbi": lambda model, ids: model.viterbi(ids),
    "k_best": lambda model, ids: model.k_best(ids, 2),
    "sample_posterior": lambda model, ids: model.sample_posterior(ids, 2, generator=torch.Generator().manual_seed(0)),
    "entropy": lambda model, ids: model.entropy(ids),
    "fill": lambda model, ids: model.fill(ids, torch.eye(2, 4, dtype=torch.bool)),
    "chain": lambda model, ids: model.chain(ids).log_columns_NS,
}
IDS = random_ids(2, 4, V)
SAME = {
    "int32": IDS.int(),
    "uint8": IDS.to(torch.uint8),
    "NumPy": IDS.numpy(),
    "NumPy's int32": IDS.numpy().astype(np.int32),
    "NumPy's uint16": IDS.numpy().astype(np.uint16),
    "NumPy, not writeable": np.broadcast_to(IDS.numpy()[:1], (1, 4)).repeat(2, 0) * 0 + IDS.numpy(),
    "turned": np.asfortranarray(IDS.numpy()),
    "lists": IDS.tolist(),
    "tuples": tuple(map(tuple, IDS.tolist())),
}
REFUSED = {
    "one text": (IDS[0], r"ids of shape \(4,\) are one text: give a batch of texts, ids\[None\]\."),
    "one NumPy text": (IDS[0].numpy(), r"one text: give a batch of texts, ids\[None\]"),
    "a list of ids": (IDS[0].tolist(), r"one text: give a batch of texts, \[ids\]"),
    "no ids": ([], r"one text: give a batch of texts, \[ids\]"),
    "one id": (3, r"ids of shape \(\) are no batch of texts: give rows of tokens, B×T"),
    "three dimensions": (IDS[None], r"ids of shape \(1, 2, 4\) are no batch of texts: give rows of tokens, B×T"),
    "floats": (IDS.float(), r"ids of float32 are no whole numbers: use those of the model's tokenizer"),
    "NumPy's floats": (IDS.numpy().astype(float), "ids of float64 are no whole numbers"),
    "booleans": (IDS > 3, "ids of bool are no whole numbers"),
    "complex": (IDS.to(torch.complex64), "ids of complex64 are no whole numbers"),
    "text": ("the cat", r"ids are numbers, not text: encode text by the model's tokenizer, tokenizer\.encode\(text\)"),
    "texts": (["the cat", "sat"], "ids are numbers, not text"),
    "ragged lists": ([[1, 2], [3]], "ids are rows of different lengths: pad them, and give lengths_B"),
    "nothing": (None, "ids cannot be of type NoneType: give a tensor or array of numbers"),
    "a dictionary": ({"ids": IDS}, "ids cannot be of type dict"),
    "negative": (IDS - 20, "is outside the model's vocabulary of 11: use the tokenizer saved with the model"),
    "too large": (IDS + 11, "is outside the model's vocabulary of 11"),
    "NumPy, too large": (IDS.numpy().astype(np.uint64) + 2**63, "is outside the model's vocabulary of 11"),
}


def make(name):
    model = MODELS[name]()
    return model.eval() if isinstance(model, torch.nn.Module) else model


@every_model
def test_arrays_and_lists_score_as_the_tensor_does(name):
    model = make(name)
    want, state = model.score(IDS)
    for kind, ids in SAME.items():
        found, after = model.score(ids)
        assert torch.equal(found, want), kind
        assert torch.equal(after, state), kind
    lengths = np.array([4, 2])
    assert torch.equal(model.score(IDS, None, lengths)[0], model.score(IDS, None, torch.tensor([4, 2]))[0])
    assert torch.equal(model.score(IDS.tolist(), None, [4, 2])[0], model.score(IDS, None, torch.tensor([4, 2]))[0])


@every_model
@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused_in_a_sentence(name, what):
    ids, said = REFUSED[what]
    with pytest.raises(TrellisError, match=said) as refused:
        make(name).score(ids)
    assert isinstance(refused.value, ValueError)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("name", HMMS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_takes_arrays_and_refuses_what_cannot_be_meant(name, question):
    model, ask = make(name), QUESTIONS[question]
    assert_close(ask(model, IDS.numpy()), ask(model, IDS), rtol=0, atol=0)
    for what, (ids, said) in REFUSED.items():
        if question == "fill" and what in ("negative", "too large", "NumPy, too large"):
            continue  # its first gap may hold any id
        with pytest.raises(TrellisError, match=said):
            ask(model, ids)


def test_counts_take_arrays_and_refuse_what_cannot_be_meant():
    model = HMM(HMMConfig(V, 3), seed=0)
    assert_close(model.expected_counts(IDS.numpy()), model.expected_counts(IDS), rtol=0, atol=0)
    for ids, said in REFUSED.values():
        with pytest.raises(TrellisError, match=said):
            model.expected_counts(ids)


NO_LENGTHS = {
    "two of one row": ([1, 2], "do not fit 1 rows: give one a row"),
    "a number": (4, r"lengths of \(\) do not fit 1 rows: give one a row"),
    "floats": ([4.0], "lengths_B of float64 are no whole numbers: give how many tokens each row has"),
    "longer than the row": ([9], "a length of 9 is more than the 4 tokens"),
    "below zero": ([-1], "a length of -1 is no length"),
}


@every_model
@pytest.mark.parametrize("what", NO_LENGTHS)
def test_lengths_that_are_none_are_refused(name, what):
    lengths, said = NO_LENGTHS[what]
    with pytest.raises(TrellisError, match=said):
        make(name).score(IDS[:1], None, lengths)


@every_model
def test_a_state_of_another_batch_is_refused(name):
    model = make(name)
    answer = model.score(IDS)
    for state, said in (
        (answer[1][:1], r"a state of shape .* does not belong to 2 rows of this model: give the one"),
        (answer[1][:, :-1], "does not belong to 2 rows"),
        (answer, r"a state cannot be of type tuple: .* as in log_probs, state = model\.score\(ids\)"),
        (answer[1].detach().numpy(), "a state cannot be of type ndarray"),
    ):
        with pytest.raises(TrellisError, match=said):
            model.score(IDS, state)


@every_model
def test_a_state_of_other_numbers_is_refused(name):
    model = MODELS[name]()
    _, state = model.score(IDS)
    kinds = [torch.bool, torch.complex64, torch.int64 if state.is_floating_point() else torch.float32]
    for kind in kinds:
        with pytest.raises(TrellisError, match=r"a state of \w+ numbers is not one of this model's: give the one"):
            model.score(IDS, state.to(kind))
    with pytest.raises(TrellisError, match="is not one of this model's"):
        model.score(IDS, state.detach().to_sparse())
    with pytest.raises(TrellisError, match=r"a state on meta is not where its model is: move it by \.to\('cpu'\)"):
        model.score(IDS, state.to("meta"))


@every_model
def test_a_state_of_another_precision_is_the_same_state(name):
    model = MODELS[name]()
    if isinstance(model, torch.nn.Module):
        model.eval()
    _, state = model.score(IDS)
    other = state.double() if state.is_floating_point() else state.int()
    assert torch.equal(model.score(IDS, other)[0], model.score(IDS, state)[0])


@pytest.mark.parametrize("name", ["feed_forward", "transformer", "kneser_ney", "unigram", "bigram"])
@pytest.mark.parametrize("word", [-2, V, 10**9])
def test_a_state_of_words_that_are_none_is_refused(word, name):
    model = MODELS[name]()
    _, state = model.score(IDS)
    state[1, -1] = word
    with pytest.raises(TrellisError, match=f"a state with the word {word} is not one of this model's {V} words"):
        model.score(IDS, state)


@pytest.mark.parametrize("name", HMMS)
def test_what_comes_next_is_asked_of_a_state_that_fits(name):
    model = make(name)
    answer = model.score(IDS)
    for state, said in (
        (answer, "a state cannot be of type tuple"),
        (answer[1][:, 1:], r"give .* returned, 2×"),
        (3, "of type int"),
    ):
        for ask in (model.next_token, lambda state: model.predicted(2, state), lambda state: model.sample(2, 3, state)):
            with pytest.raises(TrellisError, match=said):
                ask(state)
    with pytest.raises(TrellisError, match="does not belong to 3 rows"):
        model.sample(3, 2, answer[1])


@pytest.mark.parametrize("missing", [np.eye(2, 4) > 0, (np.eye(2, 4) > 0).tolist()], ids=["NumPy", "lists"])
def test_missing_tokens_and_labels_are_taken_as_arrays_too(missing):
    model = make("dense")
    want = model.score(IDS, missing_BT=torch.eye(2, 4) > 0)[0]
    assert torch.equal(model.score(IDS, missing_BT=missing)[0], want)
    labels = np.full((2, 4), -1)
    labels[0, 1] = 3
    want = model.score(IDS, labels_BT=torch.from_numpy(labels))[0]
    assert torch.equal(model.score(IDS, labels_BT=labels.tolist())[0], want)


def test_missing_tokens_and_labels_of_another_kind_are_refused():
    model = make("dense")
    with pytest.raises(TrellisError, match="missing tokens of int64 are neither there nor missing: give true or false"):
        model.score(IDS, missing_BT=torch.zeros_like(IDS))
    with pytest.raises(TrellisError, match="labels of float32 are no whole numbers: give a state, or −1, for each"):
        model.score(IDS, labels_BT=torch.zeros(2, 4))


def test_a_tensor_is_not_copied():
    assert batch_of_ids(IDS, torch.device("cpu")) is IDS
    model = make("dense")
    lengths, state = torch.tensor([4, 2]), model.score(IDS)[1]
    asked = Asked.of(model, IDS, lengths, None, state)
    assert (asked.ids_BT is IDS, asked.lengths_B is lengths, asked.state is state) == (True, True, True)


@every_model
@pytest.mark.parametrize("ids", [[[]], np.empty((1, 0)), torch.empty(1, 0), torch.empty(1, 0, dtype=torch.int64)])
def test_a_text_without_tokens_and_then_one_is_that_one(name, ids):
    model, text = make(name), IDS[:1]
    nothing, state = model.score(ids)
    assert nothing.shape == (1, 0)
    found, after = model.score(text, state)
    want, last = model.score(text)
    assert_close(found, want, rtol=0, atol=0)
    assert_close(after, last, rtol=0, atol=0)
    assert_close(model.score(text, model.score(ids, state)[1])[0], want, rtol=0, atol=0)
    assert torch.equal(model.score(ids, last)[1], last)


@every_model
def test_rows_without_tokens_in_ragged_batches_begin_when_their_first_token_comes(name):
    model, before, after = make(name), random_ids(4, 3, V, seed=1), random_ids(4, 5, V, seed=2)
    first, then = torch.tensor([3, 0, 2, 0]), torch.tensor([5, 4, 0, 0])
    _, state = model.score(before, None, first)
    found, state = model.score(after, state, then)
    last, _ = model.score(before, state)
    for row in range(4):
        text = torch.cat([before[row, : first[row]], after[row, : then[row]], before[row]])[None]
        whole = model.score(text)[0][0]
        place = int(first[row] + then[row])
        assert_close(found[row, : then[row]], whole[first[row] : place])
        assert_close(last[row], whole[place:])
        assert not found[row, then[row] :].any()


@pytest.mark.parametrize("wrong", [-1, 1.5, None, "two", 2**63])
def test_numbers_of_things_are_whole_and_not_negative(wrong):
    model = HMM(HMMConfig(5, states=3), seed=0)
    ids = torch.zeros(1, 2, dtype=torch.int64)
    for ask in (
        lambda: model.k_best(ids, wrong),
        lambda: model.sample_posterior(ids, wrong),
        lambda: model.sample(wrong, 3),
        lambda: model.sample(2, wrong),
    ):
        with pytest.raises(InputError, match="cannot be"):
            ask()
    with pytest.raises(InputError, match="give 1 or more"):
        model.k_best(ids, 0)
    assert model.sample(0, 3).tokens_BT.shape[0] == 0
    if wrong is not None:
        with pytest.raises(InputError, match="the token that ends a text cannot be"):
            model.sample(1, 2, end=wrong)


@pytest.mark.parametrize("name", ["dense", "lstm", "hmm_rnn"])
def test_a_state_of_endless_numbers_is_refused(name):
    model, ids = MODELS[name](), torch.zeros(1, 2, dtype=torch.int64)
    state = model.score(ids)[1].detach()
    for number in (3e38, -3e38, torch.inf, torch.nan):
        state[0, 0] = number
        for ask in (model.next_token, lambda state: model.score(ids, state)):
            with pytest.raises(TrellisError, match="a state of NaN, infinity or the like is none"):
                ask(state)
