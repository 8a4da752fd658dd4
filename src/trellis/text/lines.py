"""Sentences one a line, as ids: some tokens of a line may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trellis.text.tokenizer import Tokenizer

GAP = "<mask>"  # a missing token, to be summed over


@dataclass(frozen=True)
class Line:
    """A sentence as the model sees it."""

    number: int  # from 1
    text: str
    ids: list[int]
    missing: list[bool]  # which tokens are gaps; their id means nothing
    unknown: int  # tokens outside the vocabulary

    def spelling(self, tokenizer: Tokenizer) -> list[str]:
        """Each token as written in the vocabulary."""
        return [GAP if gap else tokenizer.token(id) for id, gap in zip(self.ids, self.missing, strict=True)]

    @property
    def tokens(self) -> int:
        """How many tokens are there to be scored."""
        return len(self.ids) - sum(self.missing)


def read_lines(texts: Iterable[str], tokenizer: Tokenizer, eos: bool) -> Iterator[Line]:
    """The sentences in order, numbered and encoded, each with its end as a token if `eos`."""
    for number, text in enumerate(texts, start=1):
        ids: list[int | None] = []  # of gaps, none
        for place, piece in enumerate(text.split(GAP)):
            if place > 0:
                ids.append(None)
            # A space before a gap belongs to the gap, as it would to a word.
            ids += tokenizer.encode(piece.rstrip() if GAP in text else piece)
        if eos and tokenizer.eos_id is not None:
            ids.append(tokenizer.eos_id)
        unknown = 0 if tokenizer.unk_id is None else ids.count(tokenizer.unk_id)
        yield Line(number, text, [id or 0 for id in ids], [id is None for id in ids], unknown)


def tensors(lines: list[Line], device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ids, lengths and, if there are any gaps, where they are."""
    lengths_B = torch.tensor([len(line.ids) for line in lines])
    ids_BT = torch.zeros(len(lines), int(lengths_B.max()), dtype=torch.int64)
    missing_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for row, line in enumerate(lines):
        ids_BT[row, : len(line.ids)] = torch.tensor(line.ids)
        missing_BT[row, : len(line.ids)] = torch.tensor(line.missing)
    gaps = missing_BT.to(device) if bool(missing_BT.any()) else None
    return ids_BT.to(device), lengths_B.to(device), gaps
