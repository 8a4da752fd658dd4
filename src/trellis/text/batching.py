"""Cut ids into batches that depend only on the seed and the step, so that a run resumes anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trellis.errors import TrellisError
from trellis.text.ids import IdFile

Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Rows of ids, with states where some are given; `carried`: row b goes on where row b of the last batch stopped."""

    ids: torch.Tensor  # (B, T) int64, 0 past a row's length
    lengths: torch.Tensor  # (B,) int64, each at least 1
    carried: bool
    labels: torch.Tensor | None = None  # (B, T) int64: the state given for each token, −1 where it is unknown

    @property
    def tokens(self) -> int:
        """Count the tokens in all rows."""
        return int(self.lengths.sum())

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Batch(self.ids.to(device), self.lengths.to(device), self.carried, labels)


class Batching(ABC):
    """What all ways share: the corpus, the share of one process, and resuming in mid-epoch.

    `batch_size` is the whole batch of all `world` processes; `rank` takes its own contiguous rows of it. With
    `labelled_first`, what carries labels, if only for some of its tokens, comes before the rest in the first epoch.
    """

    rows_of_tokens = True  # a batch has `batch_size` rows, which the text must fill

    def __init__(
        self,
        ids: IdFile | NDArray[Any],
        documents: NDArray[Any] | None = None,
        *,
        batch_size: int,
        length: int,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        labels: NDArray[Any] | None = None,
        labelled_first: bool = False,
    ) -> None:
        if isinstance(ids, IdFile) and documents is None:
            documents = ids.documents
        self.ids = ids.ids if isinstance(ids, IdFile) else ids
        self.ends = _check_documents(documents, len(ids))
        self.batch_size, self.length, self.shuffle, self.seed = batch_size, length, shuffle, seed
        self.rank, self.world, self.labels, self.labelled_first = rank, world, labels, labelled_first
        if labels is not None and labels.shape != (len(ids),):
            raise TrellisError(
                f"There are {' × '.join(map(str, labels.shape))} labels for {len(ids)} tokens; give one state a token, "
                "-1 if unknown."
            )
        if labels is not None and not np.issubdtype(labels.dtype, np.integer):
            raise TrellisError(f"Labels of type {labels.dtype} are no states; give whole numbers.")
        _check_settings(len(ids), batch_size, length, seed, rank, world)
        if self.rows_of_tokens and batch_size > len(ids):
            raise TrellisError(f"{len(ids)} tokens cannot fill {batch_size} rows; set a smaller batch_size.")

    @property
    def tokens_per_epoch(self) -> int:
        """Count the tokens all processes see together in an epoch: each of the corpus once."""
        return len(self.ids)

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Count the batches of an epoch, the same in every epoch and process."""

    @abstractmethod
    def _order(self, epoch: int) -> Any:
        """Draw the order of an epoch."""

    @abstractmethod
    def _batch(self, order: Any, step: int) -> Batch:
        """Cut one batch of an epoch."""

    @abstractmethod
    def begins(self, step: int) -> Offsets:
        """Where each row of a batch begins in the text, if nothing is shuffled."""

    def epoch(self, number: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, from `start_step` on."""
        order = self._order(number)
        for step in range(start_step, self.steps_per_epoch):
            yield self._batch(order, step)

    def batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Yield batches without end, epoch after epoch; `start_step` counts from the very first batch."""
        if start_step < 0:
            raise TrellisError(f"There is no step {start_step}; start at 0 or later.")
        epoch, step = divmod(start_step, self.steps_per_epoch)
        while True:
            yield from self.epoch(epoch, step)
            epoch, step = epoch + 1, 0

    def _permutation(self, size: int, epoch: int) -> Offsets:
        if not self.shuffle:
            return np.arange(size)
        return np.random.default_rng((self.seed, epoch)).permutation(size)

    def _labelled(self, begins: Offsets, epoch: int) -> NDArray[np.bool_] | None:
        """Which parts of the text, by where they begin, carry a label; None in an epoch where that does not matter."""
        if self.labels is None or not self.labelled_first or epoch > 0:
            return None
        labelled = np.diff(begins, append=len(self.ids)) > 0  # an empty document has no tokens, and so no labels
        labelled[labelled] = np.maximum.reduceat(self.labels, begins[labelled]) >= 0
        return labelled

    def _share(self, rows: int) -> slice:
        return slice(self.rank * rows // self.world, (self.rank + 1) * rows // self.world)

    def _gather(self, positions: Offsets, inside: NDArray[np.bool_], lengths: Offsets, *, carried: bool) -> Batch:
        labels = None if self.labels is None else _take(self.labels, positions, inside, -1)
        return Batch(_take(self.ids, positions, inside, 0), torch.from_numpy(lengths), carried, labels)


class Streams(Batching):
    """Parallel streams that carry the belief from batch to batch.

    Documents are shuffled every epoch, joined, and cut into `batch_size` streams whose lengths differ by at
    most one, the longer first. When only the longer streams reach the last batch, it has only their rows: row
    b still goes on from row b, and the state of the rows past the end is to be dropped. Without `documents`
    the ids are one document, and shuffling has nothing to move. Where labelled documents come first, every stream
    begins with its share of them.
    """

    @property
    def steps_per_epoch(self) -> int:
        """Count the chunks of the longest stream."""
        longest = -(-len(self.ids) // self.batch_size)
        return -(-longest // self.length)

    def _order(self, epoch: int) -> tuple[Offsets, Offsets]:
        """Where each document ends once shuffled, and how far from there its tokens lie in the file."""
        begins = np.concatenate([[0], self.ends[:-1]])
        lengths = self.ends - begins
        order = self._permutation(len(lengths), epoch)
        if (labelled := self._labelled(begins, epoch)) is not None:
            order = self._dealt(order, lengths, labelled)
        begins, lengths = begins[order], lengths[order]
        new_ends = np.cumsum(lengths)
        return new_ends, begins - (new_ends - lengths)

    def _dealt(self, order: Offsets, lengths: Offsets, labelled: NDArray[np.bool_]) -> Offsets:
        """This order of documents, dealt to the streams: to each as many labelled tokens, then as many others."""
        others, lengths, stream = ~labelled[order], lengths[order], np.empty_like(order)
        for these in (~others, others):
            before = np.cumsum(lengths[these]) - lengths[these]
            stream[these] = before * self.batch_size // max(1, int(lengths[these].sum()))
        return order[np.lexsort((others, stream))]

    def begins(self, step: int) -> Offsets:
        """Where each stream goes on in the text, if nothing is shuffled."""
        return self._starts(step)[0]

    def _starts(self, step: int) -> tuple[Offsets, Offsets]:
        """Where the streams that are not at their end go on in the shuffled text, and the tokens each has left."""
        rows = np.arange(self.batch_size)[self._share(self.batch_size)]
        shortest, longer = divmod(len(self.ids), self.batch_size)
        begins = rows * shortest + np.minimum(rows, longer)
        left = shortest + (rows < longer) - step * self.length
        return (begins + step * self.length)[left > 0], left[left > 0]

    def _batch(self, order: tuple[Offsets, Offsets], step: int) -> Batch:
        starts, left = self._starts(step)
        lengths = np.minimum(left, self.length)
        ends, shifts = order
        positions, inside = _grid(starts, lengths)
        documents = np.searchsorted(ends, positions[inside], side="right")
        positions[inside] += shifts[documents]
        return self._gather(positions, inside, lengths, carried=step > 0)


class Windows(Batching):
    """Independent windows of `length` tokens, cut from the text as it stands and shuffled every epoch.

    The corpus's last window may be shorter and the epoch's last batch smaller; when it has fewer rows than
    there are processes, some of them get a batch of no rows.
    """

    @property
    def steps_per_epoch(self) -> int:
        """Count the batches that hold every window once."""
        return -(-self._windows // self.batch_size)

    @property
    def _windows(self) -> int:
        return -(-len(self.ids) // self.length)

    def _order(self, epoch: int) -> Offsets:
        order = self._permutation(self._windows, epoch)
        labelled = self._labelled(np.arange(self._windows) * self.length, epoch)
        return order if labelled is None else order[np.argsort(~labelled[order], kind="stable")]

    def begins(self, step: int) -> Offsets:
        """Where each window begins, if nothing is shuffled."""
        return self._starts(np.arange(self._windows), step)

    def _starts(self, order: Offsets, step: int) -> Offsets:
        whole = order[step * self.batch_size : (step + 1) * self.batch_size]
        return whole[self._share(len(whole))] * self.length

    def _batch(self, order: Offsets, step: int) -> Batch:
        starts = self._starts(order, step)
        lengths = np.minimum(len(self.ids) - starts, self.length)
        return self._gather(*_grid(starts, lengths), lengths, carried=False)


class Sequences(Batching):
    """Documents whole, each from its start: for texts of which every one is a sample of its own.

    A batch has documents of like length, and no more tokens, padding counted, than `batch_size` windows of `length`; a
    longer document is a batch by itself. Documents of the same length, and batches, are shuffled every epoch.
    """

    rows_of_tokens = False

    @property
    def steps_per_epoch(self) -> int:
        """Count the batches, which depend on the documents' lengths alone."""
        return len(self._cuts) - 1

    @cached_property
    def _begins(self) -> Offsets:
        return np.concatenate([[0], self.ends[:-1]])

    @cached_property
    def _lengths(self) -> Offsets:
        return self.ends - self._begins

    @cached_property
    def _cuts(self) -> Offsets:
        """Where batches begin and end among the documents from the longest to the shortest; empty ones are in none."""
        longest_first = -np.sort(-self._lengths[self._lengths > 0])
        cuts, budget = [0], self.batch_size * self.length
        while cuts[-1] < len(longest_first):
            rows = max(1, budget // int(longest_first[cuts[-1]]))
            cuts.append(min(cuts[-1] + rows, len(longest_first)))
        return np.array(cuts, dtype=np.int64)

    def _order(self, epoch: int) -> tuple[Offsets, Offsets]:
        """Documents from the longest to the shortest, those of one length in a new order; and the order of batches."""
        documents = self._permutation(len(self._lengths), epoch)
        documents = documents[np.argsort(-self._lengths[documents], kind="stable")]
        batches = self._permutation(self.steps_per_epoch, epoch)
        if (labelled := self._labelled(self._begins, epoch)) is not None:
            some = np.logical_or.reduceat(labelled[documents], self._cuts[:-1])
            batches = batches[np.argsort(~some[batches], kind="stable")]
        return documents, batches

    def begins(self, step: int) -> Offsets:
        """Where each document of a batch begins, if nothing is shuffled."""
        return self._begins[self._rows(self._order(0), step)]

    def _rows(self, order: tuple[Offsets, Offsets], step: int) -> Offsets:
        """The documents of a batch."""
        documents, batches = order
        whole = documents[self._cuts[batches[step]] : self._cuts[batches[step] + 1]]
        return whole[self._share(len(whole))]

    def _batch(self, order: tuple[Offsets, Offsets], step: int) -> Batch:
        rows = self._rows(order, step)
        lengths = self._lengths[rows]
        return self._gather(*_grid(self._begins[rows], lengths), lengths, carried=False)


BATCHINGS: dict[str, type[Batching]] = {"windows": Windows, "streams": Streams, "sequences": Sequences}


def _grid(starts: Offsets, lengths: Offsets) -> tuple[Offsets, NDArray[np.bool_]]:
    """Positions of every row's tokens, as wide as the longest row, and which of them are inside their row."""
    steps = np.arange(int(lengths.max(initial=0)))
    return starts[:, None] + steps, steps < lengths[:, None]


def _take(values: NDArray[Any], positions: Offsets, inside: NDArray[np.bool_], outside: int) -> torch.Tensor:
    """The values at the positions that are inside their row, and `outside` past its end."""
    rows = np.full(positions.shape, outside, dtype=np.int64)
    rows[inside] = values[positions[inside]]
    return torch.from_numpy(rows)


def _check_documents(documents: NDArray[Any] | None, tokens: int) -> Offsets:
    ends = np.array([tokens], dtype=np.int64) if documents is None else np.asarray(documents, dtype=np.int64)
    if len(ends) == 0 or ends[-1] != tokens or ends[0] < 0 or bool(np.any(np.diff(ends) < 0)):
        raise TrellisError(f"The documents' ends must rise to the {tokens} tokens there are; prepare the ids again.")
    return ends


def _check_settings(tokens: int, batch_size: int, length: int, seed: int, rank: int, world: int) -> None:
    if tokens == 0:
        raise TrellisError("There are no tokens to batch; give a corpus with text in it.")
    if length < 1:
        raise TrellisError(f"A length of {length} holds no tokens; set length to 1 or more.")
    if batch_size < 1:
        raise TrellisError(f"A batch of {batch_size} rows is no batch; set batch_size to 1 or more.")
    if seed < 0:
        raise TrellisError(f"The seed {seed} is negative; use 0 or more.")
    if not 0 <= rank < world:
        raise TrellisError(f"Rank {rank} is not one of {world} processes; ranks go from 0 to world - 1.")
    if batch_size < world:
        raise TrellisError(f"{world} processes cannot share {batch_size} rows; set a larger batch_size.")
