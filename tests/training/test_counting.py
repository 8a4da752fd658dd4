import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition, uniform_subsets
from trellis.text import Batch
from trellis.training import counting
from trellis.training.counting import Labelled, begin_with_counts
from trellis.training.objectives import joint

from .runs import BLOCK_V, WORDS, run, settings, taught, tensors, text

V, S = WORDS.vocab_size, 6
SUPPORTS = {
    "dense": ("dense", None),
    "blocks": ("brown", partition(BLOCK_V, S, 2)),
    "overlapping": ("uniform", uniform_subsets(V, S, 3, seed=1)),
}
KINDS = [("dense", "scalar"), ("blocks", "scalar"), ("blocks", "hierarchical_scalar"), ("overlapping", "scalar")]


def model_of(support, transition="scalar", **changes):
    name, made = SUPPORTS[support]
    return HMM(HMMConfig(V, S, name, 2, transition=transition, **changes), 0, made).double()


def a_text(support, tokens=500, share=0.7, length=7):
    """Random words with labels of states that may emit them, some of them unknown."""
    rng, made = np.random.default_rng(2), SUPPORTS[support][1]
    ids = rng.integers(V, size=tokens)
    lists_VK = np.tile(np.arange(S), (V, 1)) if made is None else made.lists().numpy()
    labels = lists_VK[ids, rng.integers(lists_VK.shape[1], size=tokens)]
    return Labelled(ids, np.where(rng.random(tokens) < share, labels, -1), length)


def naive(model, text, smoothing):
    """Counts, token after token, and their shares; a state may only emit words in whose list it is."""
    start, transition, emission = np.zeros(S), np.zeros((S, S)), np.zeros((S, V))
    for at, (word, label) in enumerate(zip(text.ids, text.labels, strict=True)):
        if label < 0:
            continue
        emission[label, word] += 1
        first = at % text.length == 0 if text.ends is None else at == 0 or at in text.ends
        start[label] += first
        crosses = text.ends is not None and at + 1 in text.ends
        if at + 1 < len(text.ids) and text.labels[at + 1] >= 0 and not crosses:
            transition[label, text.labels[at + 1]] += 1
    allowed = np.ones((S, V))
    if model.support is not None:
        allowed = np.array([[z in model.support.lists()[v] for v in range(V)] for z in range(S)], dtype=float)
    tables = start + smoothing, transition + smoothing, emission + smoothing * allowed
    return [torch.from_numpy(table / table.sum(-1, keepdims=True)) for table in tables]


@pytest.mark.parametrize("piece", [1, 13, 10**6])
@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_a_slow_look_at_every_token(kind, piece, monkeypatch):
    monkeypatch.setattr(counting, "PIECE", piece)
    model, found = model_of(*kind), a_text(kind[0])
    begin_with_counts(model, found, 0.3)
    for table, want in zip(model.eval().tables(), naive(model, found, 0.3), strict=True):
        assert_close(table, want)


@pytest.mark.parametrize("piece", [1, 13, 10**6])
def test_documents_are_counted_from_their_starts_to_their_ends(piece, monkeypatch):
    monkeypatch.setattr(counting, "PIECE", piece)
    ends = np.array([1, 1, 14, 26, 39, 100, 499, 500, 500])  # some empty, some of one token, some at a piece's edge
    model, found = model_of("dense"), a_text("dense", share=0.9)._replace(ends=ends)
    begin_with_counts(model, found, 0.3)
    for table, want in zip(model.eval().tables(), naive(model, found, 0.3), strict=True):
        assert_close(table, want)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_the_optimum_of_the_joint_likelihood(kind):
    """Of one window: with all labels given and nothing added there is no gradient left."""
    model, found = model_of(*kind), a_text(kind[0], share=1.0, length=500)
    begin_with_counts(model, found, 0.0)
    batch = Batch(torch.from_numpy(found.ids)[None], torch.tensor([500]), False, torch.from_numpy(found.labels)[None])
    for gradient in torch.autograd.grad(joint(model, batch, None)[0].sum(), list(model.parameters())):
        assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_never_seen_knows_nothing(kind):
    model, found = model_of(*kind), a_text(kind[0])
    begin_with_counts(model, found._replace(labels=np.where(found.labels == 4, -1, found.labels)), 0.0)
    _, transition, emission = model.eval().tables()
    assert_close(transition[4], torch.full((S,), 1 / S).double())
    words = emission[4] > 0
    assert_close(emission[4][words], torch.full_like(emission[4][words], 1 / int(words.sum())))


def test_a_text_without_labels_leaves_everything_equal():
    model, found = model_of("dense"), a_text("dense", share=0.0)
    begin_with_counts(model, found, 0.5)
    for table in model.tables():
        assert_close(table, torch.full_like(table, 1 / table.shape[-1]))


def test_memory_is_that_of_the_model(monkeypatch):
    """Labels on disk are read a piece at a time."""
    asked = []

    class Watched(np.ndarray):
        def __getitem__(self, key):
            asked.append(key)
            return np.asarray(super().__getitem__(key))

    monkeypatch.setattr(counting, "PIECE", 50)
    found = a_text("dense")
    begin_with_counts(model_of("dense"), found._replace(labels=found.labels.view(Watched)), 0.1)
    assert [(key.start, key.stop) for key in asked] == [(begin, begin + 51) for begin in range(0, 500, 50)]


@pytest.mark.parametrize("part", ["start", "transition", "emission"])
def test_only_free_logits_can_be_counted(part):
    with pytest.raises(TrellisError, match=r"^counting labels sets probabilities one by one: make model\.start, model"):
        begin_with_counts(model_of("dense", **{part: "low_rank", "width": 2}), a_text("dense"), 0.1)


@pytest.mark.parametrize("support", ["blocks", "overlapping"])
def test_a_state_that_cannot_emit_its_word_is_refused(support):
    model, found = model_of(support), a_text(support)
    word = int(found.ids[7])
    found.labels[7] = label = min(set(range(S)) - set(model.support.lists()[word].tolist()))
    with pytest.raises(TrellisError, match=f"^state {label} cannot emit word {word}: label a token with a state of"):
        begin_with_counts(model, found, 0.1)


def test_a_run_begins_with_the_counts(tmp_path):
    """Its first loss is the joint one of a model that has them already."""
    learnt = text(tmp_path / "cache")
    labels = np.random.default_rng(0).integers(S, size=len(learnt))
    chosen = settings(init="distill", smoothing=0.2, lr=1e-9)

    def make(seed):
        return HMM(HMMConfig(V, S), seed)

    run(tmp_path, chosen, make=make, distilled=taught(labels, S, counts=True))
    want = make(0)
    begin_with_counts(want, Labelled(learnt.ids, labels, chosen.length), 0.2)
    found = {name.rpartition("/")[2]: tensor for name, tensor in tensors(tmp_path).items() if "best/model" in name}
    assert_close(found, dict(want.named_parameters()), rtol=0, atol=1e-6)
