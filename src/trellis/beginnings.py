"""Where a text begins: after `<eos>`, as sentences do in running text, or at a model's start distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trellis.errors import TrellisError

if TYPE_CHECKING:
    from torch import Tensor

    from trellis.models.pretrained import Pretrained


def beginning(loaded: Pretrained, bos: bool | None) -> Tensor | None:
    """The state in which a line begins: after `<eos>`, or None, the start distribution.

    If nothing is asked for, as the model learnt. In running text, sentences begin after `<eos>`, and nearly no sentence
    at the start distribution; a model of sequences has seen nothing follow `<eos>`.
    """
    if bos is None:
        bos = not _learnt_from_sequences(loaded)
    return loaded.after_eos() if bos else None


def _learnt_from_sequences(loaded: Pretrained) -> bool:
    from trellis.config import run_of
    from trellis.models.storage import read_json

    if fitted := loaded.fitted():
        return not fitted["running"]
    try:
        if noted := read_json(loaded.folder / "config.json").get("begins"):  # in a folder that transformers wrote
            return bool(noted == "start")
        return run_of(loaded.folder).training.batching == "sequences"
    except TrellisError:  # a model without a folder or a run
        return False
