"""The forward pass that transformers calls: caches, padding, the mark of a beginning, and what is refused."""

import pytest
import torch
from torch.testing import assert_close

from trellis.errors import InputError, TrellisError
from trellis.hf import TrellisConfig, TrellisForCausalLM

from ..models.makers import random_ids
from .models import EOS, MAKERS, dense, obvious, wrapped

every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@every_maker
def test_logits_are_log_probabilities_of_the_next_token(make):
    model = make()
    ids_BT = random_ids(2, 4, model.config.vocab_size)
    logits_BTV = wrapped(model)(ids_BT).logits
    assert_close(logits_BTV.exp().sum(-1), torch.ones(2, 4, dtype=torch.float64))
    for t in range(4):
        assert_close(logits_BTV[1, t], obvious(model, ids_BT[1, : t + 1].tolist()), atol=1e-7, rtol=0)


@every_maker
@pytest.mark.parametrize("cut", [1, 3])
def test_a_cache_stands_for_all_that_came_before(make, cut):
    model = wrapped(make())
    ids_BT = random_ids(3, 5, model.config.vocab_size)
    mask_BT = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
    whole = model(ids_BT, mask_BT)
    first = model(ids_BT[:, :cut], mask_BT[:, :cut], use_cache=True)
    second = model(ids_BT[:, cut:], mask_BT, past_key_values=first.past_key_values)
    assert_close(torch.cat([first.logits, second.logits], 1), whole.logits)
    assert_close(second.past_key_values.state, whole.past_key_values.state, check_dtype=False)
    assert second.past_key_values.get_seq_length() == 5
    again = model(ids_BT[:, cut:], mask_BT, past_key_values=first.past_key_values)  # a step leaves its cache as it was
    assert_close(again.logits, second.logits)


def test_without_a_cache_nothing_is_carried():
    model = wrapped(dense())
    ids_BT = random_ids(1, 3, 5)
    assert model(ids_BT, use_cache=False).past_key_values is None
    assert model(ids_BT).past_key_values is not None


@every_maker
def test_padding_at_the_left_touches_nothing(make):
    model = wrapped(make())
    ids_BT = random_ids(1, 3, model.config.vocab_size)
    padded_BT = torch.cat([torch.full((1, 2), model.config.vocab_size + 7), ids_BT], 1)
    mask_BT = torch.tensor([[0, 0, 1, 1, 1]])
    assert_close(model(padded_BT, mask_BT).logits[:, 2:], model(ids_BT).logits)


@pytest.mark.parametrize(("asked", "places"), [(1, [4]), (2, [3, 4]), (0, [0, 1, 2, 3, 4]), ([1, 3], [1, 3])])
def test_only_the_logits_that_are_asked_for_are_made(asked, places):
    model = wrapped(MAKERS["brown blocks"]())
    ids_BT, mask_BT = random_ids(2, 5, model.config.vocab_size), torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    asked = torch.tensor(asked) if isinstance(asked, list) else asked
    assert_close(model(ids_BT, mask_BT, logits_to_keep=asked).logits, model(ids_BT, mask_BT).logits[:, places])


# How texts begin.


@every_maker
def test_a_leading_mark_is_read_as_eos_or_as_nothing(make):
    model = make()
    text = random_ids(1, 3, model.config.vocab_size)
    marked = torch.cat([torch.tensor([[EOS]]), text], 1)
    after_eos = wrapped(model, "eos", EOS)(marked).logits
    at_the_start = wrapped(model, "start", EOS)(marked).logits
    for t in range(4):
        tokens = text[0, :t].tolist()
        assert_close(after_eos[0, t], obvious(model, tokens, begins=[EOS]), atol=1e-7, rtol=0)
        assert_close(at_the_start[0, t], obvious(model, tokens), atol=1e-7, rtol=0)


def test_a_mark_that_the_model_knows_no_text_of_is_read_as_eos():
    model, mark = dense(), 4
    whole = wrapped(model, "eos", EOS)
    whole.config.bos_token_id = mark
    assert_close(whole(torch.tensor([[mark, 2, 0]])).logits, whole(torch.tensor([[EOS, 2, 0]])).logits)
    assert_close(whole(torch.tensor([[2, mark, 0]])).logits[0, 2], obvious(model, [2, mark, 0]))  # elsewhere it is text


def test_the_mark_is_the_first_token_behind_padding_and_once_alone():
    model = dense()
    whole = wrapped(model, "start", EOS)
    logits = whole(torch.tensor([[EOS, EOS, 3], [EOS, EOS, EOS]]), torch.tensor([[0, 1, 1], [1, 1, 1]])).logits
    assert_close(logits[0, 2], obvious(model, [3]))
    assert_close(logits[1, 2], obvious(model, [EOS, EOS]))


def test_a_mark_in_the_middle_of_a_cached_text_is_text():
    model = dense()
    whole = wrapped(model, "start", EOS)
    first = whole(torch.tensor([[EOS]]))
    second = whole(torch.tensor([[EOS]]), past_key_values=first.past_key_values)
    assert_close(second.logits[0, 0], obvious(model, [EOS]))


# What is refused, in a sentence.


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"input_ids": None}, "reads tokens and no embeddings"),
        ({"input_ids": torch.tensor([[0]]), "inputs_embeds": torch.zeros(1, 1, 4)}, "no embeddings"),
        ({"input_ids": torch.tensor([0, 1])}, "rows of tokens"),
        ({"input_ids": [[0, 1]]}, "rows of tokens"),
        ({"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.ones(1, 1)}, "does not fit tokens"),
        ({"input_ids": torch.tensor([[0, 1]]), "attention_mask": torch.ones(1, 1, 2, 2)}, "does not fit tokens"),
        ({"input_ids": torch.tensor([[0, 9]])}, "outside the model's vocabulary of 5"),
        ({"input_ids": torch.tensor([[0, -1]])}, "outside the model's vocabulary of 5"),
    ],
)
def test_what_does_not_fit_is_refused(given, sentence):
    with pytest.raises(TrellisError, match=sentence):
        wrapped(dense())(**given)


def test_a_tuple_is_given_to_those_who_ask_for_one():
    model, ids_BT = wrapped(dense()), random_ids(1, 3, 5)
    logits, carried = model(ids_BT, return_dict=False)
    assert_close(logits, model(ids_BT).logits)
    assert carried.seen == 3


def test_what_an_hmm_has_not_is_refused():
    model = wrapped(dense())
    assert model.get_output_embeddings() is None
    model.resize_token_embeddings(5)
    with pytest.raises(TrellisError, match="vocabulary of a Trellis model is fixed"):
        model.resize_token_embeddings(6)
    with pytest.raises(NotImplementedError, match="no input embeddings"):
        model.get_input_embeddings()


def test_a_configuration_without_a_model_is_refused():
    with pytest.raises(TrellisError, match="describes no Trellis model"):
        TrellisForCausalLM(TrellisConfig())


def test_a_configuration_makes_a_fresh_model_of_its_shape():
    torch.manual_seed(3)
    config = TrellisConfig(trellis={"model_type": "trellis_hmm", "format": 2, "vocab_size": 7, "states": 5})
    first, second = TrellisForCausalLM(config), TrellisForCausalLM(config)
    assert first.model.config.states == 5
    assert not torch.equal(*(model.model.start.table for model in (first, second)))


# The loss.


def theirs(model, ids_BT, mask_BT, labels_BT):
    """What transformers makes of the logits."""
    logits_BTV = model(ids_BT, mask_BT).logits
    return model.loss_function(logits_BTV, labels_BT, vocab_size=model.config.vocab_size)


@every_maker
def test_the_loss_is_what_transformers_makes_of_the_logits(make):
    model = wrapped(make())
    ids_BT = random_ids(3, 5, model.config.vocab_size)
    mask_BT = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels_BT = ids_BT.masked_fill(mask_BT == 0, -100)
    labels_BT[0, 2] = -100
    with torch.no_grad():
        found = model(ids_BT, mask_BT, labels=labels_BT).loss
    assert_close(found, theirs(model, ids_BT, mask_BT, labels_BT), check_dtype=False, atol=1e-6, rtol=0)
    summed = model(ids_BT, mask_BT, labels=labels_BT, num_items_in_batch=4).loss
    assert_close(summed, found * 8 / 4)


def test_the_loss_has_the_gradient_of_the_score():
    model = wrapped(dense())
    ids_BT = random_ids(2, 4, 5)
    model.train()
    output = model(ids_BT, labels=ids_BT)
    assert output.logits is None  # which learning does without
    output.loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    (-model.model.score(ids_BT)[0][:, 1:].mean()).backward()
    for name, parameter in model.named_parameters():
        assert found[name].abs().max() > 0
        assert_close(found[name], parameter.grad)


def test_labels_that_are_not_the_text_are_refused():
    model, ids_BT = wrapped(dense()), torch.tensor([[0, 1, 2]])
    with pytest.raises(InputError, match="labels other than the tokens"):
        model(ids_BT, labels=torch.tensor([[0, 1, 3]]))
    with pytest.raises(InputError, match="do not fit"):
        model(ids_BT, labels=torch.tensor([[0, 1]]))
    assert torch.isfinite(model(ids_BT, labels=torch.tensor([[4, 1, 2]])).loss)  # the first has no prediction


def test_the_mark_of_a_beginning_is_no_label():
    model = wrapped(dense(), "start", EOS)
    ids_BT, mask_BT = torch.tensor([[0, EOS, 3, 2]]), torch.tensor([[0, 1, 1, 1]])
    found = model(ids_BT, mask_BT, labels=ids_BT.masked_fill(mask_BT == 0, -100)).loss
    assert_close(found, -model.model.score(torch.tensor([[3, 2]]))[0].mean())


def test_states_that_remember_words_say_that_they_learn_from_whole_rows():
    model = wrapped(MAKERS["memory"]())
    ids_BT = random_ids(2, 4, 6)
    with pytest.raises(TrellisError, match="learn from whole rows"):
        model(ids_BT, labels=ids_BT).loss.backward()
