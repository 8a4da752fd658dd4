"""A saved model together with the tokenizer it was trained with."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.models import storage
from trellis.models.model import Model
from trellis.models.registry import load_model
from trellis.text import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from trellis.models import HMM


FITTED_FILE = "fitted.json"  # beside a model that `trellis.fit` made: of what kind its data was, and how it did


class Pretrained(NamedTuple):
    """A model and its tokenizer, and the folder they were read from."""

    folder: Path
    model: Model
    tokenizer: Tokenizer

    def answering(self, *questions: str) -> HMM:
        """The model, if it is one of those that answer these questions as an HMM does."""
        if not all(hasattr(self.model, question) for question in questions):
            raise TrellisError(
                f"{self.folder} holds a model of kind {self.model.config.kind}, which cannot say this: give an HMM, or "
                "ask trellis evaluate or score."
            )
        return cast("HMM", self.model)

    def fitted(self) -> dict[str, Any]:
        """What `trellis.fit` knew of the model, if it made it."""
        path = self.folder / FITTED_FILE
        return storage.read_json(path) if path.exists() else {}

    @torch.no_grad()
    def after_eos(self) -> Tensor | None:
        """The state from which a new sentence begins in running text; None, the very start, if there is no `<eos>`."""
        if self.tokenizer.eos_id is None:
            return None
        log_prob_BT, state = self.model.score(torch.tensor([[self.tokenizer.eos_id]], device=self.model.device))
        return state if float(log_prob_BT) > -torch.inf else None


def load_pretrained(name: str | PathLike[str], device: torch.device | None = None) -> Pretrained:
    """Read a model, named as for `load_model`, and its tokenizer, refusing a pair that does not belong together."""
    folder = storage.model_folder(name)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    told = storage.read_about(folder).get("tokenizer")
    if tokenizer.vocab_size > model.config.vocab_size or told not in (None, tokenizer.fingerprint()):
        raise TrellisError(f"the tokenizer in {folder} is not the one its model was trained with: restore it.")
    return Pretrained(folder, model.eval().to(device), tokenizer)
