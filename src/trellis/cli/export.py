"""`trellis export`: a model's distributions as a plain HMM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trellis.cli.terminal import Device, Json, Model, Threads, load, report
from trellis.progress import waiting

EXAMPLE = "Example:\n\ntrellis export runs/ptb-low-rank plain-hmm"


def run(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the plain HMM.")],
    json: Json = False,
    threads: Threads = None,
    device: Device = "auto",
) -> None:
    """Write the distributions that a model's networks and vectors stand for as free logits, with the same scores.

    The folder is a model like any other. Its logits are log-probabilities: one for each first state, each pair of
    states, and each word in each state that may emit it.
    """
    loaded = load(model, device)
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
