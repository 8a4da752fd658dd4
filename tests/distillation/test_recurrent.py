"""Our own LSTMs as teachers."""

import pytest
import torch

from trellis.distillation.teachers import find_teacher
from trellis.errors import TrellisError
from trellis.models.hmm import HMM
from trellis.models.hmm_config import HMMConfig
from trellis.models.lstm import AWDLSTM, LSTM, AWDLSTMConfig, LSTMConfig

IDS = torch.tensor([[4, 5, 7, 3], [3, 1, 1, 2]])


@pytest.fixture(params=["lstm", "awd_lstm"])
def saved(request, words, tmp_path):
    size = words.vocab_size
    if request.param == "lstm":
        model = LSTM(LSTMConfig(size, width=6, layers=2), seed=1).eval()
    else:
        model = AWDLSTM(AWDLSTMConfig(size, width=6, hidden=9, layers=2), seed=1).eval()
    model.save_pretrained(tmp_path / "teacher", words)
    return model, tmp_path / "teacher"


def test_the_last_states_and_the_head_give_the_models_own_predictions(saved):
    model, folder = saved
    teacher = find_teacher(str(folder), 0).open(-1)
    logits = teacher.states(IDS) @ teacher.head_VR.T + model.words.bias.detach()
    expected = model.score(IDS)[0][:, 1:]
    torch.testing.assert_close(
        logits.log_softmax(-1)[:, :-1].gather(2, IDS[:, 1:, None])[..., 0], expected.detach(), rtol=1e-5, atol=1e-6
    )


def test_layers_from_word_vectors_on(saved):
    model, folder = saved
    words, first = (find_teacher(str(folder), 0).open(layer) for layer in (0, 1))
    torch.testing.assert_close(words.states(IDS), model.words.vectors[IDS].detach())
    expected = model.recurrence.layers[0](model.words.vectors[IDS])[0]
    torch.testing.assert_close(first.states(IDS), expected.detach())
    assert first.width == expected.shape[2]
    assert (first.head_VR is None) == (first.width != 6)
    with pytest.raises(TrellisError, match="has no layer 3"):
        find_teacher(str(folder), 0).open(3)


def test_a_random_one_has_the_shape_alone(saved):
    model, folder = saved
    one, two = (find_teacher(f"random:{folder}", seed).open(-1) for seed in (1, 2))
    torch.testing.assert_close(one.head_VR, model.words.vectors.detach())  # which was drawn from seed 1
    assert not torch.allclose(two.states(IDS), one.states(IDS))


def test_other_kinds_cannot_teach(words, tmp_path):
    HMM(HMMConfig(words.vocab_size, states=4), seed=0).save_pretrained(tmp_path / "hmm", words)
    with pytest.raises(TrellisError, match="kind hmm, which cannot teach"):
        find_teacher(str(tmp_path / "hmm"), 0).open(-1)


def test_a_teacher_without_words_is_refused(saved):
    _, folder = saved
    (folder / "tokenizer.json").unlink()
    (folder / "manifest.json").unlink()
    with pytest.raises(TrellisError, match=r"has no tokenizer\.json"):
        find_teacher(str(folder), 0).open(-1)
