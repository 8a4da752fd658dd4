"""`distill` from end to end: labels and centres, found again by what decided them."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from trellis.distillation import DistillSettings, distill, pipeline
from trellis.errors import TrellisError
from trellis.manifests import MANIFEST
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.models.supports import partition

from .makers import load_llama, save_llama

SETTINGS = {"points": 30, "iterations": 6, "restarts": 2, "tokens": 200}


@pytest.fixture
def ask(llama, text, bpe, own_cache):
    """Distil the tiny Llama, with some settings changed."""

    def ask(states=8, support=None, **changes):
        settings = DistillSettings(**{"teacher": str(llama), **SETTINGS, **changes})
        return distill(settings, text, bpe, states, support, quiet=True)

    return ask


@pytest.fixture
def no_teacher(monkeypatch):
    """Whoever opens a teacher from here on fails."""

    def forbid():
        monkeypatch.setattr(pipeline.Source, "open", lambda *_: pytest.fail("a teacher was loaded"))

    return forbid


def test_labels_are_the_nearest_centres_and_none_past_the_tokens(ask, llama, text):
    found = ask()
    assert found.labels.dtype == np.int32
    assert isinstance(found.labels, np.memmap)
    assert found.labels.shape == (len(text),)
    assert set(found.labels[200:].tolist()) == {-1}
    ids = torch.from_numpy(text.ids[:192].astype(np.int64)).view(3, 64)
    with torch.no_grad():
        states = load_llama(llama).model(torch.nn.functional.pad(ids, (1, 0), value=0)).last_hidden_state[:, 1:]
    distances = torch.cdist(states.flatten(0, 1).double(), torch.from_numpy(found.centroids_SR).double())
    assert found.labels[:192].tolist() == distances.argmin(1).tolist()
    np.testing.assert_array_equal(found.head_VR, load_llama(llama).lm_head.weight.detach().numpy())
    assert found.about["tokens"] == 200
    assert found.about["used_states"] == len(set(found.labels[:200].tolist()))


def test_it_is_found_again_without_the_teacher(ask, no_teacher):
    first = ask()
    no_teacher()
    again = ask()
    np.testing.assert_array_equal(again.labels, first.labels)
    np.testing.assert_array_equal(again.centroids_SR, first.centroids_SR)
    assert dict(again.about) == dict(first.about)


def test_other_numbers_of_tokens_use_the_same_clusters_and_labels(ask, own_cache, monkeypatch):
    first = ask(tokens=200)
    read = []
    states = pipeline.Reader.states
    monkeypatch.setattr(pipeline.Reader, "states", lambda self, windows: read.append(windows) or states(self, windows))
    longer, shorter, whole = ask(tokens=300), ask(tokens=70), ask(tokens=10**9)
    assert [list(windows) for windows in read[:2]] == [[3, 4], []]  # what 200 tokens cover of window 3 is not whole
    np.testing.assert_array_equal(longer.labels[:200], first.labels[:200])
    assert longer.labels[200:300].min() >= 0
    np.testing.assert_array_equal(shorter.labels[:70], first.labels[:70])
    assert set(shorter.labels[70:].tolist()) == set(longer.labels[300:].tolist()) == {-1}
    assert whole.labels.min() >= 0
    np.testing.assert_array_equal(whole.labels[:300], longer.labels[:300])
    assert len(list(own_cache.glob("clusters-*"))) == 1


@pytest.mark.parametrize(
    "change",
    [{"layer": 1}, {"pca": 4}, {"points": 20}, {"iterations": 5}, {"restarts": 1}, {"seed": 1}, {"states": 7}],
)
def test_all_that_decides_the_clusters_names_them(ask, own_cache, change):
    ask()
    ask(**change)
    assert len(list(own_cache.glob("clusters-*"))) == 2


def test_blocks_name_the_clusters_and_hold_their_labels(ask, text, own_cache):
    ask()
    for shift in (0, 1):
        support = partition((torch.arange(300) + shift) % 2, 8, 2)
        found = ask(support=support)
        block = support.block_V[torch.from_numpy(text.ids[:200].astype(np.int64))]
        assert (found.labels[:200] // 4).tolist() == block.tolist()
    assert len(list(own_cache.glob("clusters-*"))) == 3


def test_another_text_or_another_teacher_has_other_clusters(ask, llama, text, bpe, own_cache, tmp_path):
    ask()
    other = save_llama(tmp_path / "other", bpe, seed=6)
    ask(teacher=str(other))
    text = type(text)(text.folder, dataclasses.replace(text.meta, content_hash="another"))
    distill(DistillSettings(teacher=str(llama), **SETTINGS), text, bpe, 8, quiet=True)
    assert len(list(own_cache.glob("clusters-*"))) == 3


@pytest.mark.parametrize("what", ["clusters", "labels"])
def test_a_cache_from_another_teacher_is_refused(ask, own_cache, what):
    ask()
    (file,) = own_cache.glob("clusters-*/about.json" if what == "clusters" else "labels-*/200/about.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"teacher_hash": "other"}))
    (file.parent / MANIFEST).unlink()
    with pytest.raises(TrellisError, match="holds a cache from another teacher: delete it"):
        ask()


@pytest.mark.parametrize("name", ["clusters-*/centroids_SR.npy", "labels-*/200/labels.npy"])
def test_a_number_that_changed_is_found_and_made_anew(ask, own_cache, name):
    expected = np.array(ask().labels)
    (file,) = own_cache.glob(name)
    whole = file.read_bytes()
    file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    assert np.array_equal(ask().labels, expected)
    assert file.read_bytes() == whole


def test_a_damaged_cache_is_made_anew(ask, own_cache):
    first = ask()
    expected = np.array(first.labels)
    (file,) = own_cache.glob("labels-*/200/labels.npy")
    file.write_bytes(file.read_bytes()[:100])
    (centroids,) = own_cache.glob("clusters-*/centroids_SR.npy")
    centroids.unlink()
    np.testing.assert_array_equal(ask().labels, expected)


def test_a_copied_teacher_is_the_same(ask, llama, tmp_path, no_teacher):
    ask()
    no_teacher()
    ask(teacher=str(shutil.copytree(llama, tmp_path / "copy")))


def test_a_random_teacher_of_a_shape_alone(ask, llama):
    one, two = ask(teacher=f"random:{llama / 'config.json'}"), ask(teacher=f"random:{llama / 'config.json'}", seed=1)
    assert one.labels[:200].min() >= 0
    assert one.head_VR is not None
    assert one.labels[:200].tolist() != two.labels[:200].tolist()


def test_a_word_level_hmm_learns_from_subwords(llama, word_text, words, own_cache):
    found = distill(DistillSettings(teacher=str(llama), **SETTINGS), word_text, words, 6, quiet=True)
    assert found.head_VR is None
    assert found.labels[:200].min() >= 0
    assert found.about["used_states"] > 3


def test_our_own_lstm_of_the_same_words_teaches(word_text, words, own_cache, tmp_path):
    model = LSTM(LSTMConfig(words.vocab_size, width=6, layers=1), seed=1)
    model.save_pretrained(tmp_path / "teacher", words)
    settings = DistillSettings(teacher=str(tmp_path / "teacher"), **SETTINGS)
    found = distill(settings, word_text, words, 6, quiet=True)
    np.testing.assert_array_equal(found.head_VR, model.words.vectors.detach().numpy())
    assert found.labels[:200].min() >= 0


def test_what_cannot_be_distilled_leaves_nothing_behind(ask, own_cache):
    with pytest.raises(TrellisError, match="has no layer 9"):
        ask(layer=9)
    with pytest.raises(TrellisError, match="more than the 16 dimensions"):
        ask(pca=17)
    assert not [one for one in own_cache.iterdir() if not one.name.endswith(".lock")]
