"""`trellis import`: an HMM in Ctrl-G's layout as a model of ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli.terminal import Json, Threads, report, say
from trellis.errors import TrellisError
from trellis.progress import waiting

if TYPE_CHECKING:
    from trellis.text import Tokenizer

EXAMPLE = "Example:\n\ntrellis import hmm_gpt2-large_4096 gpt2-hmm --tokenizer gpt2"


def run(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of Ctrl-G's.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write the model.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The tokenizer of its tokens. (default: one in the folder, or else token ids as whole numbers)",
        ),
    ] = None,
    json: Json = False,
    threads: Threads = None,
) -> None:
    """Write an HMM of Ctrl-G's as a model that every command here reads, with the same scores.

    Ctrl-G learns from texts that are padded with the end token: after a text's end its HMMs expect that token for ever.
    """
    from trellis.models.ctrl_g import read_ctrl_g

    with waiting(f"reading {folder}"):
        model, eos_id = read_ctrl_g(folder)
    words = _tokenizer(folder, tokenizer, model.config.vocab_size)
    if eos_id is not None and words.eos_id not in (None, eos_id):
        say(f"{folder} ends texts with token {eos_id}, but its tokenizer with {words.eos_id}: is it the right one?")
    model.save_pretrained(out, words)
    report(
        json,
        {"model": str(out), "states": model.config.states, "vocab_size": model.config.vocab_size, "eos_id": eos_id},
        ("model", str(out)),
        ("states", f"{model.config.states:,}"),
        ("tokens", f"{model.config.vocab_size:,}, by {words!r}"),
        ("next", f"trellis sample {out}"),
    )


def _tokenizer(folder: Path, given: Path | None, vocab_size: int) -> Tokenizer:
    from trellis.text import IntegerTokenizer, load_tokenizer
    from trellis.text.tokenizer import TOKENIZER_FILE

    if given is None and not (folder / TOKENIZER_FILE).exists():
        return IntegerTokenizer(vocab_size)
    found = load_tokenizer(folder if given is None else given)
    if found.vocab_size > vocab_size:
        raise TrellisError(
            f"a tokenizer of {found.vocab_size:,} tokens does not fit a model of {vocab_size:,}: give its own."
        )
    return found
