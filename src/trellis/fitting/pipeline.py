"""`trellis.fit`: from data to a model, in one call and without a folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trellis.errors import InputError, TrellisError
from trellis.fitting.data import Data
from trellis.fitting.fitted import LENGTH, About, Fitted
from trellis.fitting.recognising import recognise
from trellis.fitting.told import Told
from trellis.models import HMM, HMMConfig, load_model
from trellis.progress import counted, roughly
from trellis.text import IdFile, Tokenizer, open_corpus
from trellis.text.corpora import NAMES
from trellis.training import Stopped, train
from trellis.training.settings import CompleteSettings


def fit(
    data: Any,
    lengths: Any = None,
    *,
    valid: Any = None,
    states: int | None = None,
    tokenizer: Any = None,
    column: str | None = None,
    seed: int = 0,
    quiet: bool = False,
    data_dir: str | None = None,
    **settings: Any,
) -> Fitted:
    """Fit an HMM to data of nearly any kind, and get an object that answers about such data.

    `data` is a list, iterator or pandas column of strings; lists of tokens; lists or arrays of whole numbers, a 1-D
    array with the `lengths` of its sequences; a table of pandas or `datasets` with its `column`, by default "text"; a
    corpus, a corpus's name, or the path of a text, JSON-lines or NumPy file. `valid` is validation data of the same
    kinds; by default a tenth is held out, and False learns from all. `tokenizer` is a name (words, bpe, characters,
    bytes), a folder or an object. `settings` are those of `trellis.TrainingSettings` and `trellis.HMMConfig`, and
    vocab_size and min_count, by their plain names; what is not said is chosen to suit the data.
    """
    told = Told.of(settings, states, seed, data_dir)
    given = recognise(data, lengths, column=column, data_dir=data_dir)
    learnt, measured = _parts(given, _own_valid(data, valid, data_dir), column, told, quiet)
    folder = Path(tempfile.mkdtemp(prefix="trellis-fit-"))
    try:
        return _fitted(learnt, measured, tokenizer, told, column, folder, quiet)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _own_valid(data: Any, valid: Any, data_dir: str | None) -> Any:
    """The validation data that was given, or a named corpus's own."""
    named = isinstance(data, str) and data in NAMES
    return open_corpus(data, "valid", data_dir) if named and valid is None else valid


def _parts(given: Data, valid: Any, column: str | None, told: Told, quiet: bool) -> tuple[Data, Data | None]:
    """What to learn from and what to measure on; says what was held out."""
    if valid is False:
        return given, None
    if valid is not None:
        columned = column if hasattr(valid, "column_names") or hasattr(valid, "columns") else None
        measured = recognise(valid, name="valid", column=columned, data_dir=told.data.data_dir)
        if (measured.kind == "integers") != (given.kind == "integers"):
            raise InputError(f"valid holds {measured.kind}, but data holds {given.kind}: give the same kind.")
        return given, measured
    learnt, held_out = given.held_out(told.training.seed)
    if not quiet:
        print(_said(given, held_out), file=sys.stderr)
    return learnt, held_out


def _said(given: Data, held_out: Data | None) -> str:
    """One line on what was held out."""
    if held_out is None:
        return "too little data to hold any out for validation: the model learns from all of it"
    ends = given.running or held_out.count >= given.count  # of one text, or of each of a few sequences
    what = "the last tenth of the data" if ends else f"{held_out.count:,} of {given.count:,} sequences"
    return f"{what} held out for validation (valid=False learns from all, valid=… gives other data)"


def _fitted(
    learnt: Data, measured: Data | None, chosen: Any, told: Told, column: str | None, folder: Path, quiet: bool
) -> Fitted:
    with _about_the_data():
        tokenizer = learnt.tokenizer(chosen, told.data, quiet)
        text = learnt.ids(tokenizer, folder / "learnt", quiet)
        valid = None if measured is None else measured.ids(tokenizer, folder / "measured", quiet)
        shape = told.shape(text)
        settings = told.learning(text, shape, running=learnt.running)
    if not quiet:
        print(_plan(shape, settings, len(text)), file=sys.stderr)

    def make_model(seed: int) -> HMM:
        return HMM.for_text(shape, text, tokenizer, seed, told.data.data_dir)

    try:
        trained = train(make_model, tokenizer, text, valid, settings, folder / "run", quiet=quiet)
    except Stopped as stopped:
        raise KeyboardInterrupt(str(stopped)) from None
    model = load_model(trained.best)
    assert isinstance(model, HMM)
    length = _length(text, tokenizer, learnt)
    about = About(learnt.kind, learnt.running, column, length, trained.perplexity, trained.unigram)
    return Fitted(model, tokenizer, about, folder / "run")


def _plan(shape: HMMConfig, settings: CompleteSettings, tokens: int) -> str:
    """One line on what was chosen, or told."""
    rate = "" if settings.method == "baum_welch" else f", at a rate of {settings.lr:g}"
    passes = "1 pass" if settings.epochs == 1 else f"{settings.epochs:g} passes"
    return (
        f"fitting {counted(shape.states, 'state')} to {roughly(tokens, 'token')} of "
        f"{counted(shape.vocab_size, 'type')}: {passes} in batches of {settings.batch_size} × {settings.length}{rate}"
    )


def _length(text: IdFile, tokenizer: Tokenizer, learnt: Data) -> int:
    """How long a sample is to be, if nothing is said."""
    if learnt.running or tokenizer.eos_id is not None:
        return LENGTH
    return max(1, round(len(text) / text.meta.documents))


@contextmanager
def _about_the_data() -> Iterator[None]:
    """Whatever is wrong here is wrong with an argument."""
    try:
        yield
    except InputError:
        raise
    except TrellisError as error:
        raise InputError(str(error)) from error
