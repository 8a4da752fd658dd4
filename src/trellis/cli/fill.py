"""`trellis fill`: the words that may stand in the gaps of sentences."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trellis.cli import terminal
from trellis.cli.terminal import MANY
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from torch import Tensor

    from trellis.models import HMM
    from trellis.text import Tokenizer
    from trellis.text.lines import Line

EXAMPLE = (
    "Examples:\n\necho 'the <mask> of the list' | trellis fill runs/pydocs-64\n\n"
    "trellis fill runs/ptb-512 gaps.txt --best 10 --json"
)


def run(
    model: terminal.Model,
    files: terminal.Files = None,
    best: Annotated[
        int, typer.Option(min=1, max=MANY, metavar="N", help="How many of the best words for each gap.")
    ] = 5,
    bos: terminal.Bos = None,
    eos: terminal.Eos = True,
    split: terminal.Split = "test",
    json: terminal.Json = False,
    threads: terminal.Threads = None,
    device: terminal.Device = "auto",
    data_dir: terminal.DataDir = None,
) -> None:
    """Print the most probable words for every `<mask>` of each line, given all of the line.

    Columns are separated by tabs; p is the exact probability of the word there, among all words. Each gap of a line is
    filled by itself, with the others summed over: the best words of two gaps need not be the best pair.
    """
    from trellis.cli.lines import Reading
    from trellis.text.lines import GAP

    reading = Reading.open(model, files, split, data_dir, device, eos, "filling")
    hmm, begin = reading.loaded.answering("fill"), terminal.beginning(reading.loaded, bos)
    if not json:
        terminal.print_row("line", "gap", "p", "word")
    gaps = several = 0
    for group in reading.groups():
        for line, found in zip(group, _answers(hmm, reading.loaded.tokenizer, begin, group, best), strict=True):
            gaps, several = gaps + len(found), several + (len(found) > 1)
            _print(line, found, json)
        if sys.stdin.isatty():
            sys.stdout.flush()
    if not gaps:
        raise TrellisError(f"there is no gap in the text: write {GAP} where a word is missing.")
    if several:
        terminal.say("where a line has several gaps, each is filled by itself, with the others summed over")


def _answers(
    hmm: HMM, tokenizer: Tokenizer, begin: Tensor | None, group: list[Line], best: int
) -> list[list[dict[str, Any]]]:
    """Of each line its gaps, each with its place among the tokens, counted from 1, and its best words."""
    from trellis.text.lines import tensors

    answers: list[list[dict[str, Any]]] = [[] for _ in group]
    rows = [number for number, line in enumerate(group) if any(line.missing)]
    if not rows:
        return answers
    ids_BT, lengths_B, missing_BT = tensors([group[number] for number in rows], hmm.device)
    assert missing_BT is not None
    filled = hmm.fill(ids_BT, missing_BT, None if begin is None else begin.expand(len(rows), -1), lengths_B)
    found = (tensor.cpu().tolist() for tensor in (filled.row_N, filled.place_N, *filled.best(best)))
    for row, place, probabilities, ids in zip(*found, strict=True):
        words = [[tokenizer.token(id), p] for id, p in zip(ids, probabilities, strict=True) if p > 0]
        answers[rows[row]].append({"token": place + 1, "words": words})
    return answers


def _print(line: Line, gaps: list[dict[str, Any]], json: bool) -> None:
    if json:
        terminal.print_json({"line": line.number, "text": line.text, "gaps": gaps})
        return
    for number, gap in enumerate(gaps, start=1):
        if not gap["words"]:
            terminal.print_row(line.number, number, "impossible: the model gives the rest of the line no probability")
        for word, probability in gap["words"]:
            terminal.print_row(line.number, number, f"{probability:.4f}", word)
