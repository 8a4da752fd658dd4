import json
import sys

import pytest
import torch

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST
from trellis.models import load_model
from trellis.models.pretrained import load_pretrained
from trellis.models.transformer import NOTHING, TransformerLM, TransformerLMConfig
from trellis.text import MemoryCorpus, SubwordTokenizer, WordTokenizer, prepare

from .makers import random_ids
from .scoring import (
    assert_it_survives_the_disk,
    assert_padding_does_not_matter,
    assert_pieces_make_the_whole,
    total_probability,
)

V = 9


def make(context=5, dtype=torch.float64, **shape):
    """A small model, sharp enough that its past matters."""
    config = TransformerLMConfig(V, **({"width": 8, "layers": 2, "heads": 2, "begin": 1} | shape), context=context)
    model = TransformerLM(config, seed=0).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(30.0)
    return model.eval()


def slow_score(model, row, place):
    """log p of one token: its window by counting from the text's first token, all of the softmax."""
    context, half = model.config.context, model.config.context - model.config.context // 2
    first = 0
    while place >= first + context:
        first += half
    read = torch.tensor([[model.config.begin or 0, *row[first:place].tolist()]])
    hidden = model.model(read).last_hidden_state[0, -1]
    return (model.model.embed_tokens.weight @ hidden).log_softmax(0)[row[place]]


@pytest.mark.parametrize("context", [1, 2, 4, 5, 8, 40])
def test_every_token_is_predicted_from_its_own_window(context):
    model, ids = make(context), random_ids(2, 21, V)
    wanted = torch.stack([torch.stack([slow_score(model, row, place) for place in range(21)]) for row in ids])
    assert (model.score(ids)[0] - wanted).abs().max() < 1e-5  # the norms inside are float32


def test_gradients_are_those_of_the_slow_way():
    model, ids = make(), random_ids(2, 12, V)
    slow = torch.stack([torch.stack([slow_score(model, row, place) for place in range(12)]) for row in ids])
    weights = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parameters = list(model.parameters())
    found, wanted = (torch.autograd.grad((out * weights).sum(), parameters) for out in (model.score(ids)[0], slow))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("context", [2, 5, 6, 64])
def test_the_state_is_all_there_is_to_know(context):
    assert_pieces_make_the_whole(make(context), V)
    assert_pieces_make_the_whole(make(context), V, cuts=(4, 5, 10))
    assert_padding_does_not_matter(make(context), V)


def test_the_state_is_the_tokens_of_the_window_so_far():
    model, ids = make(context=4), torch.arange(8)[None]
    states = [model.score(ids[:, :time])[1].tolist()[0] for time in range(8)]
    N = NOTHING
    assert states == [
        [N, N, N], [N, N, 0], [N, 0, 1], [0, 1, 2], [N, 2, 3], [2, 3, 4], [N, 4, 5], [4, 5, 6]
    ]  # fmt: skip


def test_a_text_no_longer_than_the_context_is_one_window_a_row():
    """What training costs: the network runs once, on as many positions as there are tokens."""
    model, shapes = make(context=6), []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["inputs_embeds"].shape)), with_kwargs=True
    )
    model.score(random_ids(4, 6, V))
    model.score(random_ids(4, 3, V), lengths_B=torch.tensor([3, 0, 1, 2]))
    assert shapes == [(4, 6, 8), (3, 3, 8)]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_score(shape):
    model = make()
    before = model.score(random_ids(shape[0], 3, V))[1]
    for state in (None, before):
        scores, after = model.score(torch.zeros(shape, dtype=torch.long), state)
        assert scores.shape == shape
        assert after.shape == (shape[0], 4)
        assert state is None or torch.equal(after, state)
    lengths = torch.zeros(shape[0], dtype=torch.long)
    assert not model.score(torch.full(shape, -7), before, lengths)[0].any()


def test_probabilities_sum_to_one_and_depend_on_the_past():
    model = make()
    states = [None, *(model.score(random_ids(1, 7, V, seed))[1] for seed in range(3))]
    assert [total_probability(model, state, V) for state in states] == pytest.approx([1.0] * 4, abs=1e-6)
    a, b = (model.score(torch.tensor([[first, 2, 3, 4]]))[0][0, -1] for first in (0, 1))
    assert float((a - b).detach().abs()) > 1e-6


def test_a_seed_decides_the_parameters_and_leaves_the_generator_alone():
    torch.manual_seed(1)
    undisturbed = torch.rand(2)
    torch.manual_seed(1)
    a, b, c = (TransformerLM(TransformerLMConfig(V, width=8, layers=1), seed) for seed in (3, 3, 4))
    assert torch.equal(torch.rand(2), undisturbed)
    assert torch.equal(a.model.embed_tokens.weight, b.model.embed_tokens.weight)
    assert not torch.equal(a.model.embed_tokens.weight, c.model.embed_tokens.weight)


def test_learning_drops_and_a_seed_decides_what():
    model, ids, scores = make(dropout=0.5).train(), random_ids(2, 6, V), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        scores.append(model.score(ids)[0])
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


def test_products_may_be_in_bf16():
    model, ids = make(dtype=torch.float32, width=32), random_ids(3, 12, V)
    found = []
    for asked in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=asked):
            scores = model.score(ids)[0]
        assert scores.dtype == torch.float32
        found.append(torch.autograd.grad(scores.sum(), list(model.parameters())))
    for full, half in zip(*found, strict=True):
        assert half.isfinite().all()
        assert float((half - full).norm() / full.norm()) < 0.3


def test_it_survives_the_disk(tmp_path):
    assert_it_survives_the_disk(make(), V, tmp_path)
    assert_it_survives_the_disk(make(dtype=torch.float32, begin=None), V, tmp_path)


def test_its_folder_is_one_of_the_transformers_library(tmp_path):
    from transformers import AutoModelForCausalLM

    model = make(context=8, dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    theirs, facts = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(facts.values())  # no weight missing, unexpected or of another shape
    ids = random_ids(3, 8, V)
    logits = theirs.eval()(torch.cat([torch.full((3, 1), 1), ids], 1)[:, :-1]).logits
    wanted = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
    torch.testing.assert_close(model.score(ids)[0], wanted, atol=1e-5, rtol=1e-5)
    assert theirs.config.bos_token_id == 1
    assert theirs.config.max_position_embeddings >= 512  # so that it may be the network of as many states
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in model.parameters())


def test_with_its_tokenizer_the_folder_is_whole_for_both_libraries(tmp_path):
    from transformers import AutoTokenizer

    documents = ["the cat saw the milk", "a dog likes a bone"] * 4
    tokenizer = SubwordTokenizer.train_bpe(documents, 300)
    model = TransformerLM(TransformerLMConfig(tokenizer.vocab_size, width=8, layers=1), seed=0)
    model.save_pretrained(tmp_path / "model", tokenizer)
    model.save_pretrained(tmp_path / "model", tokenizer)  # a model makes way for a model
    assert AutoTokenizer.from_pretrained(tmp_path / "model").encode("a cat") == tokenizer.encode("a cat")
    assert load_pretrained(tmp_path / "model").tokenizer.fingerprint() == tokenizer.fingerprint()
    about = json.loads((tmp_path / "model" / "config.json").read_text())
    assert about["trellis"]["tokenizer"] == tokenizer.fingerprint()
    about["trellis"]["tokenizer"] = "another"
    (tmp_path / "model" / "config.json").write_text(json.dumps(about))
    (tmp_path / "model" / MANIFEST).unlink()
    with pytest.raises(TrellisError, match="is not the one its model was trained with"):
        load_pretrained(tmp_path / "model")


def test_a_llama_of_somebody_else_is_not_ours(tmp_path):
    make(dtype=torch.float32).model.save_pretrained(tmp_path / "theirs")
    with pytest.raises(TrellisError, match="a model of another kind: Trellis reads only its own"):
        load_model(tmp_path / "theirs")
    with pytest.raises(TrellisError, match="holds something other than a Trellis model"):
        make().save_pretrained(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("words", "given", "begin"), [(["the", "cat"], None, 1), (["the", "<s>"], None, 3), (["the", "cat"], 2, 2)]
)
def test_it_begins_as_its_tokenizer_does(words, given, begin, tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    tokenizer = WordTokenizer(["<unk>", "<eos>", *words])
    text = prepare(MemoryCorpus("text", ("the cat",)), tokenizer)
    model = TransformerLM.for_text(TransformerLMConfig(4, width=8, layers=1, begin=given), text, tokenizer, seed=0)
    assert (model.config.begin, model.transformers_config()["bos_token_id"]) == (begin, begin)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"width": 0}, "model.width must be at least 1, not 0."),
        ({"context": 0}, "model.context must be at least 1, not 0."),
        ({"width": 12, "heads": 4}, "model.width must be a multiple of 8, twice the heads, not 12."),
        ({"dropout": 1.0}, "model.dropout must be at least 0 and below 1, not 1.0."),
        ({"begin": 9}, "model.begin must be a token id from 0 to 8, not 9."),
    ],
)
def test_shapes_that_cannot_be(shape, said):
    with pytest.raises(TrellisError) as caught:
        TransformerLMConfig(V, **shape)
    assert str(caught.value) == said


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(TrellisError, match="token id 9 is outside"):
        make().score(torch.tensor([[9]]))


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TrellisError, match=r"run pip install 'trellis-lm\[teachers\]'\.$"):
        TransformerLM(TransformerLMConfig(V))
