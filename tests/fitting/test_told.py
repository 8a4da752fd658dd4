import numpy as np
import pytest

from trellis.errors import InputError
from trellis.fitting.told import Told
from trellis.text import BATCHINGS, IdFile, IntegerTokenizer
from trellis.training.defaults import UPDATES, VALIDATIONS


def told(states=None, **settings):
    return Told.of(settings, states, 0, None)


@pytest.fixture
def text(tmp_path):
    rng = np.random.default_rng(0)
    return IdFile.from_arrays(tmp_path / "x", [rng.integers(9, size=12) for _ in range(20)], IntegerTokenizer(9))


def test_settings_are_sorted_by_their_names():
    found = told(states=8, epochs=3, lr=0.2, emission="scalar", vocab_size=50, min_count=2)
    assert (found.training.epochs, found.training.lr, found.training.seed) == (3.0, 0.2, 0)
    assert found.model == {"states": 8, "emission": "scalar"}
    assert (found.data.vocab_size, found.data.min_count) == (50, 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epoch": 3}, "no setting 'epoch': did you mean 'epochs'"),
        ({"transitions": "scalar"}, "did you mean 'transition'"),
        ({"tokeniser": "bpe"}, "did you mean 'tokenizer'"),
        ({"epochs": "many"}, "'epochs' must be a number"),
        ({"epochs": 0}, "epochs must be above 0"),
        ({"emission": "mlp"}, "emission' cannot be 'mlp'"),
        ({"states": 0}, "at least one state"),
        ({"batching": "sequence"}, "did you mean 'sequences'"),
        ({"min_count": 0}, "min_count must be at least 1"),
    ],
)
def test_settings_that_cannot_be(settings, said):
    with pytest.raises(InputError, match=said):
        told(**settings)


def test_what_is_not_said_is_chosen(text):
    assert told().shape(text).vocab_size == 9
    assert told(states=8).shape(text).states == 8
    assert told(states=8, emission="scalar").shape(text).emission == "scalar"
    counted = told(method="baum_welch").shape(text)
    assert {counted.start, counted.transition, counted.emission} == {"scalar"}, "which is what counts can make"


def test_samples_are_learnt_from_whole_and_texts_in_streams(text):
    for running, batching in ((False, "sequences"), (True, "streams")):
        chosen = told()
        assert chosen.learning(text, chosen.shape(text), running=running).batching == batching
        chosen = told(batching="windows")
        assert chosen.learning(text, chosen.shape(text), running=running).batching == "windows"


def test_little_data_is_read_often_enough(text):
    chosen = told()
    settings = chosen.learning(text, chosen.shape(text), running=False)
    cut = BATCHINGS[settings.batching](text, batch_size=settings.batch_size, length=settings.length)
    assert settings.epochs * cut.steps_per_epoch >= 0.9 * UPDATES
    assert settings.epochs * settings.validations == pytest.approx(VALIDATIONS)
    chosen = told(epochs=2, validations=3)
    settings = chosen.learning(text, chosen.shape(text), running=False)
    assert (settings.epochs, settings.validations) == (2.0, 3.0)


def test_a_text_of_a_few_tokens_has_no_more_rows_than_that(tmp_path):
    text = IdFile.from_arrays(tmp_path / "y", [np.array([0, 1, 2])], IntegerTokenizer(3))
    chosen = told()
    assert chosen.learning(text, chosen.shape(text), running=True).batch_size == 3
