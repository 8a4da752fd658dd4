"""`trellis export`: a model's distributions as a plain HMM, or in Ctrl-G's layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli.terminal import Device, Json, Model, Threads, load, report
from trellis.errors import TrellisError
from trellis.progress import waiting

if TYPE_CHECKING:
    from trellis.models.pretrained import Pretrained

EXAMPLE = (
    "Examples:\n\ntrellis export runs/ptb-low-rank plain-hmm\n\n"
    "trellis export runs/ptb-low-rank for-ctrl-g --format ctrl-g"
)
FORMATS = ("trellis", "ctrl-g")


def run(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the plain HMM.")],
    format: Annotated[str, typer.Option(metavar="NAME", help="trellis, or ctrl-g: a folder that Ctrl-G loads.")] = (
        FORMATS[0]
    ),
    eos_id: Annotated[
        int | None, typer.Option(metavar="ID", help="ctrl-g: the token that ends texts. (default: the tokenizer's)")
    ] = None,
    json: Json = False,
    threads: Threads = None,
    device: Device = "auto",
) -> None:
    """Write the distributions that a model's networks and vectors stand for as free logits, with the same scores.

    The folder is a model like any other. Its logits are log-probabilities: one for each first state, each pair of
    states, and each word in each state that may emit it.
    """
    if format not in FORMATS:
        raise TrellisError(f"there is no format '{format}': choose from {', '.join(FORMATS)}.")
    if format != "ctrl-g" and eos_id is not None:
        raise TrellisError("--eos-id is for --format ctrl-g: leave it out.")
    loaded = load(model, device)
    if format == "ctrl-g":
        _write_for_ctrl_g(loaded, out, eos_id, json)
        return
    with waiting("writing the distributions out"):
        plain = loaded.answering("plain").plain()
        plain.save_pretrained(out, loaded.tokenizer)
    numbers = sum(parameter.numel() for parameter in plain.parameters())
    report(
        json,
        {"model": str(out), "states": plain.config.states, "parameters": numbers},
        ("model", str(out)),
        ("states", f"{plain.config.states:,}, support {plain.config.support}"),
        ("log-probabilities", f"{numbers:,}"),
        ("next", f"trellis evaluate {out} CORPUS"),
    )


def _write_for_ctrl_g(loaded: Pretrained, out: Path, eos_id: int | None, json: bool) -> None:
    from trellis.models.ctrl_g import write_ctrl_g

    end = loaded.tokenizer.eos_id if eos_id is None else eos_id
    if end is None:
        raise TrellisError(
            "Ctrl-G's folders name the token that ends texts, and this tokenizer has none: give --eos-id."
        )
    hmm = loaded.answering("tables", "log_emission")
    with waiting("writing the distributions out"):
        write_ctrl_g(hmm, out, end)
    states, words = hmm.config.states, hmm.config.vocab_size
    report(
        json,
        {"folder": str(out), "hidden_states": states, "vocab_size": words, "eos_token_id": end},
        ("folder", f"{out}, as Ctrl-G reads it"),
        ("states", f"{states:,}"),
        ("tokens", f"{words:,}, of which {end} ends a text"),
    )
