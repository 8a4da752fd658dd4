"""What people ask a model about, made into tensors: what cannot be meant is refused in a sentence that says what to do.

Shapes and kinds of numbers are looked at here, which costs nothing beside any question; values are where they are used.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from trellis.errors import InputError
from trellis.inference.chain import check_lengths
from trellis.models.scorer import MaybeTensor, Scorer, check_ids, without_padding
from trellis.ops.precision import widened

if TYPE_CHECKING:
    from trellis.models.distributions import Distributions

MANY = 2**31  # of rows, tokens, paths or draws: more would fit into no memory
NOTHING = -1  # in the place of a word, where a text has not begun
LARGEST = 1e30  # number in a state: sums of larger ones may have no end
TOLERANCE = 1e-4  # how far from one the sum of given probabilities may be


def batch_of_ids(ids: Any, device: torch.device) -> Tensor:
    """Token ids B×T: such a tensor as it is, an array or equal lists of whole numbers as a tensor on the device."""
    if isinstance(ids, Tensor) and ids.dim() == 2 and ids.dtype == torch.int64:
        return ids
    found = _tensor(ids, "ids", device)
    if found.dim() == 1:
        how = "ids[None]" if hasattr(ids, "shape") else "[ids]"
        raise InputError(f"ids of shape {_shape(found)} are one text: give a batch of texts, {how}.")
    if found.dim() != 2:
        raise InputError(f"ids of shape {_shape(found)} are no batch of texts: give rows of tokens, B×T.")
    return _whole(found, "ids", "use those of the model's tokenizer, or convert them by .long() if they are whole")


def lengths_of_rows(lengths: Any, rows: int, device: torch.device) -> MaybeTensor:
    """How many tokens each row has, B; None: all are full."""
    if lengths is None:
        return None
    found = _tensor(lengths, "lengths_B", device)
    if found.shape != (rows,):
        raise InputError(f"lengths of {_shape(found)} do not fit {rows} rows: give one a row.")
    return _whole(found, "lengths_B", "give how many tokens each row has")


def state_of_rows(state: Any, rows: int, width: int, like: Tensor, *, logarithms: bool = False) -> MaybeTensor:
    """What an earlier call ended with, a row a text, in numbers such as those of `like`; None: texts begin.

    Where `like` is whole numbers, these are words; which ones is for `Texts` to look at. Where there are `logarithms`
    in it, they may be that of nothing, −inf.
    """
    if state is None:
        return None
    if not isinstance(state, Tensor):
        raise InputError(
            f"a state cannot be of type {type(state).__name__}: give the tensor that the last call returned beside its "
            "answer, as in log_probs, state = model.score(ids)."
        )
    if state.shape != (rows, width):
        raise InputError(
            f"a state of shape {_shape(state)} does not belong to {rows} rows of this model: "
            f"give the one that the last call returned, {rows}×{width}."
        )
    found: Tensor = _state_like(state, like)
    if found.is_floating_point() and not bool(((found.abs() <= LARGEST) | (logarithms & (found == -torch.inf))).all()):
        raise InputError("a state of NaN, infinity or the like is none: give the one that the last call returned.")
    return found


def rows_of(state: Any) -> int:
    """How many texts a state is of; of None, and of what is none, one."""
    return len(state) if isinstance(state, Tensor) and state.dim() else 1


def checked_state(model: Scorer, state: Any, device: torch.device, rows: int | None = None) -> Tensor:
    """A state, if the model would go on from it: asked by the score of no tokens; `rows` are as many as it has."""
    rows = rows_of(state) if rows is None else rows
    model.score(torch.zeros(rows, 0, dtype=torch.int64, device=device), state)
    return cast(Tensor, state)


def _state_like(state: Tensor, like: Tensor) -> Tensor:
    """The state in the precision of the model, which must be where the model is, and of its kind of numbers."""
    if state.device != like.device:
        raise InputError(f"a state on {state.device} is not where its model is: move it by .to({str(like.device)!r}).")
    measures = like.is_floating_point()
    whole = not (state.is_floating_point() or state.is_complex() or state.dtype == torch.bool)
    if state.layout != torch.strided or not (state.is_floating_point() if measures else whole):
        raise InputError(
            f"a state of {_kind(state)} numbers is not one of this model's: give the one that the last call returned."
        )
    return state.to(like.dtype)


def probabilities(given: Any, name: str, like: Tensor) -> Tensor:
    """A distribution, or a table of one a row, of the shape of `like`: at least zero, and one in sum within 0.0001."""
    found = _tensor(given, name, like.device)
    if found.shape != like.shape:
        raise InputError(f"{name} has the shape {_shape(found)}, but this model needs {_shape(like)}.")
    wrong = found[~(found >= 0)]  # not a number, too
    if wrong.numel():
        raise InputError(f"{name} holds {float(wrong[0]):g}, which is no probability: give numbers from 0 to 1.")
    total = widened(found).sum(-1)
    if bool(((total - 1).abs() > TOLERANCE).any()):
        worst = int((total - 1).abs().argmax())
        row = f"row {worst} of {name}" if found.dim() > 1 else name
        raise InputError(
            f"{row} sums to {float(total.flatten()[worst]):.6g}, not to one within {TOLERANCE}: divide it by its sum."
        )
    return found


class Texts(NamedTuple):
    """A batch for a model whose state is the last words of each row.

    ids_BT     zeros past each row's end
    before_BN  the words before, NOTHING where a text has not begun
    lengths_B  also where all rows are full
    inside_BT  which tokens there are
    """

    ids_BT: Tensor
    before_BN: Tensor
    lengths_B: Tensor
    inside_BT: Tensor

    @classmethod
    def of(cls, ids: Any, state: Any, lengths: Any, shape: tuple[int, int], device: torch.device) -> Texts:
        """What was asked of a model whose vocabulary is so large and whose state is so many words."""
        vocab_size, words = shape
        ids_BT = batch_of_ids(ids, device)
        rows, time = ids_BT.shape
        given_B = lengths_of_rows(lengths, rows, ids_BT.device)
        ids_BT = without_padding(ids_BT, given_B)
        check_ids(ids_BT, vocab_size)
        lengths_B = ids_BT.new_full((rows,), time) if given_B is None else given_B
        inside_BT = torch.arange(time, device=ids_BT.device) < lengths_B[:, None]
        before_BN = state_of_rows(state, rows, words, ids_BT)
        before_BN = ids_BT.new_full((rows, words), NOTHING) if before_BN is None else before_BN
        _check_before(before_BN, vocab_size)
        return cls(ids_BT, before_BN, lengths_B, inside_BT)

    def whole(self) -> Tensor:
        """Each row with the words before it."""
        return torch.cat([self.before_BN, self.ids_BT], 1)


class Asked(NamedTuple):
    """A batch as an HMM is asked about it."""

    ids_BT: Tensor
    lengths_B: MaybeTensor = None
    missing_BT: MaybeTensor = None
    state: MaybeTensor = None
    labels_BT: MaybeTensor = None

    @classmethod
    def of(
        cls, model: Distributions, ids: Any, lengths: Any = None, missing: Any = None, state: Any = None,
        labels: Any = None,
    ) -> Asked:  # fmt: skip
        """Refuse what does not belong to this model and to one batch."""
        ids_BT = batch_of_ids(ids, model.device)
        rows, device = len(ids_BT), ids_BT.device
        missing_BT = _for_each_token(missing, ids_BT, "missing tokens", "true or false")
        if missing_BT is not None and missing_BT.dtype != torch.bool:
            raise InputError(
                f"missing tokens of {_kind(missing_BT)} are neither there nor missing: give true or false for each "
                "token."
            )
        labels_BT = _for_each_token(labels, ids_BT, "labels", "a state, or −1,")
        if labels_BT is not None:
            labels_BT = _whole(labels_BT, "labels", "give a state, or −1, for each token")
        lengths_B = lengths_of_rows(lengths, rows, device)
        state = state_of_rows(state, rows, model.state_width, next(model.parameters()))
        return cls(ids_BT, lengths_B, missing_BT, state, labels_BT)

    def some(self, rows: slice | Tensor) -> Asked:
        """These rows of it."""
        return Asked(self.ids_BT[rows], *(None if given is None else given[rows] for given in self[1:]))

    def between(self, begin: int, stop: int) -> Asked:
        """Its tokens from one place up to another; the state is still that before the first of all."""
        ids_BT, lengths_B, missing_BT, state, labels_BT = self
        cut = [None if given is None else given[:, begin:stop] for given in (missing_BT, labels_BT)]
        left_B = None if lengths_B is None else (lengths_B - begin).clamp(0, stop - begin)
        return Asked(ids_BT[:, begin:stop], left_B, cut[0], state, cut[1])

    def inside(self) -> Tensor:
        """Which tokens there are, B×T, padding left out."""
        time_T = torch.arange(self.ids_BT.shape[1], device=self.ids_BT.device)
        if self.lengths_B is None:
            return (time_T >= 0).expand(self.ids_BT.shape)
        return time_T < self.lengths_B[:, None]

    def gaps(self) -> Tensor:
        """Which of them are missing, B×T."""
        return torch.zeros_like(self.inside()) if self.missing_BT is None else self.missing_BT & self.inside()

    def ready(self, model: Distributions) -> Asked:
        """The same, its values checked once for all kinds of chains; padding and missing tokens hold word 0."""
        ids_BT, labels_BT = without_padding(self.ids_BT, self.lengths_B), self.labels_BT
        missing_BT = None if self.missing_BT is None else self.missing_BT & self.inside()
        if missing_BT is not None:
            ids_BT, missing_BT = ids_BT.masked_fill(missing_BT, 0), missing_BT if bool(missing_BT.any()) else None
        check_ids(ids_BT, model.config.vocab_size)
        if labels_BT is not None:
            labels_BT = _checked_labels(labels_BT, ids_BT, self.lengths_B, model.config.states)
        return self._replace(ids_BT=ids_BT, missing_BT=missing_BT, labels_BT=labels_BT)


def asked_rows(
    ids: Any, state: Any, lengths: Any, width: int, like: Tensor, *, logarithms: bool = False
) -> tuple[Tensor, MaybeTensor, MaybeTensor]:
    """What was asked of a model whose state is so wide, of numbers such as `like`: three that fit each other."""
    ids_BT = batch_of_ids(ids, like.device)
    lengths_B = lengths_of_rows(lengths, len(ids_BT), ids_BT.device)
    check_lengths(lengths_B, ids_BT.shape[1])
    return ids_BT, state_of_rows(state, len(ids_BT), width, like, logarithms=logarithms), lengths_B


def count(given: Any, what: str, least: int = 0, below: int = MANY) -> int:
    """How many of something are asked for, or a number by which something goes, as a whole number."""
    try:
        found = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        raise InputError(f"{what} cannot be {given!r:.40}: give a whole number.") from None
    if not least <= found < below:
        raise InputError(f"{what} cannot be {given!r:.40}: give {least} or more, and less than {below:,}.")
    return found


def texts_asked(batch: Any, length: Any, end: Any, vocab_size: int) -> tuple[int, int, int | None]:
    """How many texts to draw, how long at most, and the token that ends one, if any."""
    batch, length = count(batch, "the number of texts"), count(length, "the length of texts")
    return batch, length, None if end is None else count(end, "the token that ends a text", below=vocab_size)


def _check_before(before_BN: Tensor, vocab_size: int) -> None:
    """Refuse a state with words outside of the vocabulary before they index something else."""
    if before_BN.numel() and (int(before_BN.min()) < NOTHING or int(before_BN.max()) >= vocab_size):
        bad = int(before_BN[(before_BN < NOTHING) | (before_BN >= vocab_size)][0])
        raise InputError(
            f"a state with the word {bad} is not one of this model's {vocab_size} words: give the one that the last "
            "call returned."
        )


def _for_each_token(given: Any, ids_BT: Tensor, name: str, what: str) -> MaybeTensor:
    if given is None:
        return None
    found = _tensor(given, name, ids_BT.device)
    if found.shape != ids_BT.shape:
        raise InputError(
            f"{name} of {tuple(found.shape)} do not fit a text of {tuple(ids_BT.shape)} tokens: give {what} "
            "for each token."
        )
    return found


def _tensor(given: Any, name: str, device: torch.device) -> Tensor:
    """Whatever holds numbers, as a tensor of as many dimensions."""
    if isinstance(given, Tensor):
        return given
    try:
        array = np.asarray(given)
    except ValueError:  # which is how NumPy refuses lists of different lengths
        raise InputError(f"{name} are rows of different lengths: pad them, and give lengths_B.") from None
    if array.dtype.kind in "US":
        raise InputError(f"{name} are numbers, not text: encode text by the model's tokenizer, tokenizer.encode(text).")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} cannot be of type {type(given).__name__}: give a tensor or array of numbers.")
    return torch.from_numpy(np.array(array, dtype=_plain(array.dtype))).to(device)


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A kind of number that PyTorch has and that holds those of this one: ids of 2⁶³ and more are refused as any."""
    return np.dtype(np.int64) if dtype.kind in "iu" else np.dtype(np.float64 if dtype.kind == "f" else np.bool_)


def _whole(found: Tensor, name: str, what: str) -> Tensor:
    """Whole numbers as int64; where there are none at all, of whatever kind they are said to be."""
    if found.dtype == torch.int64:
        return found
    if found.numel() and (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool):
        raise InputError(f"{name} of {_kind(found)} are no whole numbers: {what}.")
    return found.long()


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _checked_labels(labels_BT: Tensor, ids_BT: Tensor, lengths_B: Tensor | None, states: int) -> Tensor:
    if lengths_B is not None:
        outside_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device) >= lengths_B[:, None]
        labels_BT = labels_BT.masked_fill(outside_BT, -1)
    if labels_BT.numel() and (int(labels_BT.min()) < -1 or int(labels_BT.max()) >= states):
        bad = int(labels_BT[(labels_BT < -1) | (labels_BT >= states)][0])
        raise InputError(f"label {bad} is none of the {states:,} states: give 0 to {states - 1:,}, or −1 for unknown.")
    return labels_BT
