"""Causal language models of the transformers library, as guidance meets them: their vocabulary, prompts, generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis.errors import InputError, TrellisError
from trellis.models.hugging_face import library
from trellis.steering.guidance import Guidance
from trellis.text import Tokenizer


class Prompts(NamedTuple):
    """Prompts as a language model takes them, padded at the left; the mask is one where there is a token.

    bos   the token that begins texts, which an HMM has not seen; None: there is none, or it also ends them
    pad   whatever stands where nothing is read
    eos   the token that ends texts for the HMM
    ends  tokens by which the language model ends them: its own, and that which begins the next text
    """

    ids_BT: Tensor
    mask_BT: Tensor
    bos: int | None
    pad: int
    eos: int | None
    ends: tuple[int, ...] = ()

    def read(self, row: int) -> list[int]:
        """What an HMM reads of a row."""
        found: list[int] = self.ids_BT[row][self.mask_BT[row] == 1].tolist()
        return [token for token in found if token != self.bos]


def prompts_of(model: Any, tokenizer: Any, texts: Sequence[str], ours: Tokenizer) -> Prompts:
    """Texts as prompts of a model: by its own tokenizer, which must have the vocabulary of ours."""
    if not texts:
        raise InputError("there are no prompts: give one text or more.")
    tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
    check_vocabulary(tokenizer, ours)
    bos = None if tokenizer.bos_token_id == ours.eos_id else tokenizer.bos_token_id
    begins = next((token for token in (tokenizer.bos_token_id, ours.eos_id) if token is not None), None)
    rows = []
    for number, text in enumerate(texts, 1):
        ids = list(tokenizer(text)["input_ids"])
        if not ids and begins is None:
            raise InputError(f"prompt {number} is empty, and no token begins a text: give it a word.")
        rows.append(ids or [begins])
    pad = ours.eos_id if ours.eos_id is not None else 0
    longest = max(map(len, rows))
    ids_BT = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=model.device)
    mask_BT = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=model.device)
    return Prompts(ids_BT, mask_BT, bos, pad, ours.eos_id, _ends(model, bos))


def _ends(model: Any, bos: int | None) -> tuple[int, ...]:
    """Tokens by which a model ends texts: those it names, and the one that begins another."""
    named = getattr(model.generation_config, "eos_token_id", None)
    named = named if isinstance(named, list | tuple) else [named]
    return tuple(token for token in dict.fromkeys([*named, bos]) if token is not None)


def tokenizer_of(model: Any) -> Any:
    """The tokenizer in the folder that a model was loaded from."""
    where = getattr(model, "name_or_path", "")
    try:
        return library("guiding a language model").AutoTokenizer.from_pretrained(where, local_files_only=True)
    except TrellisError:
        raise
    except Exception as error:  # the library raises a dozen types where there is no tokenizer
        raise TrellisError(
            f"the language model has no tokenizer beside it ({where or 'it was not loaded from a folder'}): give its "
            "own as tokenizer=."
        ) from error


def check_vocabulary(theirs: Any, ours: Tokenizer) -> None:
    """Refuse a language model whose ids mean other tokens than the HMM's; it may have further ones."""
    spelt = {id: token for token, id in theirs.get_vocab().items()}
    for id in range(ours.vocab_size):
        token = _spelling(ours, id)
        if token is not None and spelt.get(id) != token:
            other = "no token" if id not in spelt else repr(spelt[id])
            raise TrellisError(
                f"token {id} is {token!r} to the HMM and {other} to the language model: use an HMM that was "
                "trained with the language model's tokenizer."
            )


def _spelling(tokenizer: Tokenizer, id: int) -> str | None:
    try:
        return tokenizer.token(id)
    except TrellisError:  # an id that no token has
        return None


def generate(model: Any, prompts: Prompts, guidance: Guidance, options: dict[str, Any]) -> Tensor:
    """What a model's own `generate` makes of prompts under guidance: the new tokens alone."""
    for name in ("max_new_tokens", "max_length"):
        if name in options:
            raise InputError(f"how long texts may be is said to the Guide, as tokens=: leave {name} out.")
    given = {
        "input_ids": prompts.ids_BT,
        "attention_mask": prompts.mask_BT,
        "max_new_tokens": guidance.tokens,
        "eos_token_id": prompts.eos,
        "pad_token_id": prompts.pad,
        **options,
        "logits_processor": [*options.get("logits_processor", []), guidance],
    }
    found = model.generate(**given)
    found_BT: Tensor = found if isinstance(found, Tensor) else found.sequences
    return found_BT[:, prompts.ids_BT.shape[1] :]
