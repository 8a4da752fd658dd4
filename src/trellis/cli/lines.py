"""Lines from files or standard input, and their scores in the order they came."""

from __future__ import annotations

import codecs
import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from trellis.cli.terminal import load, say, say_unknown
from trellis.errors import TrellisError
from trellis.models.model import Model
from trellis.models.pretrained import Pretrained
from trellis.models.scorer import check_answer
from trellis.progress import Progress
from trellis.text.files import STDIN
from trellis.text.lines import GAP, Line, read_lines, tensors
from trellis.text.sources import open_sources
from trellis.text.unknown import UnknownWords

if TYPE_CHECKING:
    from trellis.models import HMM

ROWS, CELLS, LONG = 32, 8192, 1024  # lines and padded tokens in a batch; a longer line is scored piece by piece


class Reading(NamedTuple):
    """A model, and the lines that it is asked about."""

    loaded: Pretrained
    lines: Iterable[Line]
    doing: str  # for the progress: "scoring"

    @classmethod
    def open(
        cls, model: str, files: list[str] | None, split: str, data_dir: str | None, device: str, eos: bool, doing: str
    ) -> Reading:
        """Find the text, then read the model."""
        texts = read_texts(files or [], split, data_dir)
        loaded = load(model, device)
        return cls(loaded, read_lines(texts, loaded.tokenizer, eos), doing)

    def groups(self) -> Iterator[list[Line]]:
        """The lines in groups that fit in memory; shows how far it is, and names unknown words when done."""
        return batches(self.watched())

    def watched(self) -> Iterator[Line]:
        """The lines, one by one; shows how far it is, and names unknown words when done, or as a person types them."""
        unknown, typed = UnknownWords(self.loaded.tokenizer), sys.stdin.isatty()
        with Progress(self.doing, unit="lines", quiet=sys.stdout.isatty()) as bar:
            for line in self.lines:
                if line.unknown:
                    unknown.read(line.text.replace(GAP, " "))
                if typed:
                    say_unknown(unknown)
                    unknown = UnknownWords(self.loaded.tokenizer)
                yield line
                bar.advance()
        say_unknown(unknown)


def read_texts(files: list[str], split: str, data_dir: str | None) -> Iterable[str]:
    """Lines of files, of a named corpus, or of standard input as they come, so that it can be a conversation."""
    return _standard_input() if files in ([], [STDIN]) else open_sources(files, split, data_dir)


def _standard_input() -> Iterator[str]:
    if sys.stdin.isatty():
        say("one sentence a line; Ctrl-D ends")
    number = 0
    for number, line in enumerate(sys.stdin.buffer, start=1):
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise TrellisError(
                f"standard input is not UTF-8 at line {number}, byte {error.start + 1} of it: convert it, for example "
                "with iconv."
            ) from None
    if number == 0:
        raise TrellisError("standard input is empty: pipe some text into it.")


def batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines in groups that fit in memory side by side; one at a time when a person is typing them."""
    rows = 1 if sys.stdin.isatty() else ROWS
    group: list[Line] = []
    widest = 0
    for line in lines:
        wider = max(widest, len(line.ids))
        if group and (len(group) == rows or wider * (len(group) + 1) > CELLS):
            yield group
            group, wider = [], len(line.ids)
        group.append(line)
        widest = wider
        if rows == 1:
            yield group
            group, widest = [], 0
    if group:
        yield group


@torch.no_grad()
def score_lines(
    model: Model, lines: Iterable[Line], carry: bool, begin: Tensor | None
) -> Iterator[tuple[Line, list[float]]]:
    """Each line with the natural log-probability of each of its tokens, given the line so far or, if carried, all."""
    state = begin
    for group in batches(lines):
        if carry or len(group) == 1:
            everything = [id for line in group for id in line.ids]
            gaps = [gap for line in group for gap in line.missing]
            scores, state = _score_row(model, everything, gaps, state if carry else begin)
            for line in group:
                yield line, scores[: len(line.ids)]
                scores = scores[len(line.ids) :]
            continue
        found: dict[int, list[float]] = {}
        if full := [line for line in group if line.ids]:
            ids_BT, lengths_B, missing_BT = tensors(full, model.device)
            first = None if begin is None else begin.expand(len(full), -1)
            rows = _score(model, ids_BT, first, lengths_B, missing_BT)[0].cpu().tolist()
            found = {line.number: row[: len(line.ids)] for line, row in zip(full, rows, strict=True)}
        yield from ((line, found.get(line.number, [])) for line in group)


def _score(
    model: Model, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None, missing_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`model.score`, with gaps if there are any and the model can sum over them; what is no number is refused."""
    log_prob_BT, state = _ask(model, ids_BT, state, lengths_B, missing_BT)
    check_answer(log_prob_BT)
    return log_prob_BT, state


def _ask(
    model: Model, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None, missing_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    if missing_BT is None:
        return model.score(ids_BT, state, lengths_B)
    if "missing_BT" not in inspect.signature(model.score).parameters:
        raise TrellisError(f"a model of kind {model.config.kind} cannot sum over {GAP}: write the words out.")
    return cast("HMM", model).score(ids_BT, state, lengths_B, missing_BT)


def _score_row(
    model: Model, ids: list[int], missing: list[bool], state: Tensor | None
) -> tuple[list[float], Tensor | None]:
    """One long row, piece by piece, and the state after it."""
    scores: list[float] = []
    for begin in range(0, len(ids), LONG):
        piece = slice(begin, begin + LONG)
        gaps = torch.tensor([missing[piece]], device=model.device) if any(missing[piece]) else None
        log_prob_BT, state = _score(model, torch.tensor([ids[piece]], device=model.device), state, None, gaps)
        scores += log_prob_BT[0].cpu().tolist()
    return scores, state
