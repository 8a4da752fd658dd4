"""Cut ids into batches that depend only on the seed and the step, so that a run resumes anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
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


class _Batching(ABC):
    """What both ways share: the corpus, the share of one process, and resuming in mid-epoch.

    `batch_size` is the whole batch of all `world` processes; `rank` takes its own contiguous rows of it. With
    `labelled_first`, what carries labels, if only for some of its tokens, comes before the rest in the first epoch.
    """

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


class Streams(_Batching):
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

    def _batch(self, order: tuple[Offsets, Offsets], step: int) -> Batch:
        rows = np.arange(self.batch_size)[self._share(self.batch_size)]
        shortest, longer = divmod(len(self.ids), self.batch_size)
        begins = rows * shortest + np.minimum(rows, longer)
        left = shortest + (rows < longer) - step * self.length
        rows_left = left > 0
        starts, lengths = (begins + step * self.length)[rows_left], np.minimum(left[rows_left], self.length)
        ends, shifts = order
        positions, inside = _grid(starts, lengths)
        documents = np.searchsorted(ends, positions[inside], side="right")
        positions[inside] += shifts[documents]
        return self._gather(positions, inside, lengths, carried=step > 0)


class Windows(_Batching):
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

    def _batch(self, order: Offsets, step: int) -> Batch:
        whole = order[step * self.batch_size : (step + 1) * self.batch_size]
        starts = whole[self._share(len(whole))] * self.length
        lengths = np.minimum(len(self.ids) - starts, self.length)
        return self._gather(*_grid(starts, lengths), lengths, carried=False)


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
    if batch_size > tokens:
        raise TrellisError(f"{tokens} tokens cannot fill {batch_size} rows; set a smaller batch_size.")
    if seed < 0:
        raise TrellisError(f"The seed {seed} is negative; use 0 or more.")
    if not 0 <= rank < world:
        raise TrellisError(f"Rank {rank} is not one of {world} processes; ranks go from 0 to world - 1.")
    if batch_size < world:
        raise TrellisError(f"{world} processes cannot share {batch_size} rows; set a larger batch_size.")
