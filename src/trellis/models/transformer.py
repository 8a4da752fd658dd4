"""A decoder-only transformer: a baseline, a teacher to distil, and a checkpoint that the transformers library loads.

    p(w_t | w_<t) = softmax(E · Llama(begin, w_s … w_t−1)),    with E the word vectors themselves

s is where the window of w_t begins. The first window is the text's first `context` tokens. Each next one begins half a
context later and predicts the tokens that the one before did not reach, so that a token is predicted from all of a text
that is no longer than `context`, and later from `context // 2` to `context − 1` tokens before it. Windows are counted
from where the text begins, not from where a call does: a text in pieces scores as it does whole. Training on windows of
`context` tokens runs the network once a batch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.models.asking import NOTHING, Texts, rows_of
from trellis.models.hugging_face import library
from trellis.models.model import Model, ModelConfig, check_dropouts, check_sizes, drawn_from
from trellis.models.scorer import MaybeTensor
from trellis.models.softmax import word_log_probs
from trellis.text import IdFile, Tokenizer

POSITIONS = 2**15  # rotary positions have no table: as a network over an HMM's states it takes more than its context
BEGINNINGS = ("<s>", "<|begin_of_text|>", "<|startoftext|>", "<bos>")  # spellings of a token that begins a text


@dataclass(frozen=True)
class TransformerLMConfig(ModelConfig):
    """A small Llama."""

    kind: ClassVar[str] = "transformer"
    width: int = 128  # of word vectors and layers; the gated layers inside are 8/3 as wide
    layers: int = 4  # of attention and gated layers
    heads: int = 4  # of attention, each width / heads wide
    context: int = 64  # tokens in a window
    dropout: float = 0.0  # of word vectors and before the softmax; only while learning
    begin: int | None = None  # id read before a window; by default the tokenizer's begin of text, or its end, or 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "width", "layers", "heads", "context")
        check_dropouts(self, "dropout")
        if self.width % (2 * self.heads):
            raise TrellisError(
                f"model.width must be a multiple of {2 * self.heads}, twice the heads, not {self.width}."
            )
        if self.begin is not None and not 0 <= self.begin < self.vocab_size:
            raise TrellisError(f"model.begin must be a token id from 0 to {self.vocab_size - 1}, not {self.begin}.")


class _Windows(NamedTuple):
    """The windows that predict something, M of them, at most `context` wide."""

    ids_MW: Tensor
    scored_MW: Tensor  # the tokens that this window predicts, for this call; row by row of the batch, in their order


class TransformerLM(Model):
    """A transformer language model; its state is the tokens so far of each row's window, −1 before them."""

    config: TransformerLMConfig
    config_class: ClassVar[type[ModelConfig]] = TransformerLMConfig

    def __init__(self, config: TransformerLMConfig, seed: int | None = None) -> None:
        super().__init__(config)
        shape, network = _llama(config)
        with drawn_from(seed):
            self.model: nn.Module = network(shape)  # named so that tensors on disk have the names of transformers

    @classmethod
    def for_text(
        cls, config: ModelConfig, text: IdFile, tokenizer: Tokenizer, seed: int, data_dir: str | None = None
    ) -> Self:
        """A fresh model, which begins texts as this tokenizer's models do."""
        assert isinstance(config, TransformerLMConfig)
        begin = _begin(tokenizer) if config.begin is None else config.begin
        return cls(dataclasses.replace(config, begin=begin), seed)

    def transformers_config(self) -> dict[str, Any]:
        """What makes its folder one that the transformers library loads."""
        dtype = str(self._words_VR.dtype).removeprefix("torch.")
        return {"architectures": ["LlamaForCausalLM"], **self.model.config.to_diff_dict(), "dtype": dtype}  # type: ignore[union-attr, operator]  # of a Llama

    @property
    def _words_VR(self) -> Tensor:
        """The word vectors."""
        vectors_VR: Tensor = self.model.embed_tokens.weight  # type: ignore[union-attr, assignment]  # of a Llama
        return vectors_VR

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it in its window), B×T, zero past a row's end; and the state to carry on from."""
        before = self.config.context - 1
        texts = Texts.of(ids_BT, state, lengths_B, (self.config.vocab_size, before), self.device)
        ids_BT, before_BN, lengths_B, inside_BT = texts
        all_BN, past_B = texts.whole(), (before_BN != NOTHING).sum(1)
        windows = self._windows(all_BN, past_B, lengths_B)
        hidden_NR = self._hidden(windows.ids_MW)[windows.scored_MW]
        log_prob_N = word_log_probs(hidden_NR, self._words_VR, None, windows.ids_MW[windows.scored_MW])
        log_prob_BT = log_prob_N.new_zeros(ids_BT.shape).masked_scatter(inside_BT, log_prob_N)
        return log_prob_BT, self._last(all_BN, past_B, lengths_B)

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before in its window), B×V; with no state, of the first token, 1×V."""
        any_B1 = torch.zeros(rows_of(state), 1, dtype=torch.int64, device=self.device)
        texts = Texts.of(any_B1, state, None, (self.config.vocab_size, self.config.context - 1), self.device)
        windows = self._windows(texts.whole(), (texts.before_BN != NOTHING).sum(1), texts.lengths_B)
        hidden_BR = self._hidden(windows.ids_MW)[windows.scored_MW]  # before the token, whichever it is
        return functional.linear(hidden_BR, self._words_VR).log_softmax(1)

    def _windows(self, all_BN: Tensor, past_B: Tensor, lengths_B: Tensor) -> _Windows:
        """Cut rows into windows; the carried tokens, `past_B` of them, are the beginning of a row's first."""
        context, end_B = self.config.context, past_B + lengths_B
        longest, half = int(end_B.max()) if len(end_B) else 0, _half(context)
        count = 1 + max(0, -(-(longest - context) // half))
        first_K1 = half * torch.arange(count, device=all_BN.device)[:, None]
        place_KW = first_K1 + torch.arange(max(1, min(context, longest)), device=all_BN.device)
        new_KW = (first_K1 == 0) | (place_KW - first_K1 >= context - half)  # not reached by the window before
        scored_BKW = new_KW & (place_KW >= past_B[:, None, None]) & (place_KW < end_B[:, None, None])
        # The carried tokens stand at the end of their columns; past a row's end any id will do, as nothing reads it.
        column_BKW = (place_KW + (context - 1 - past_B)[:, None, None]).clamp_max(all_BN.shape[1] - 1)
        ids_BKW = all_BN.gather(1, column_BKW.flatten(1)).view(column_BKW.shape).clamp_min(0)
        needed_BK = scored_BKW.any(-1)
        return _Windows(ids_BKW[needed_BK], scored_BKW[needed_BK])

    def _last(self, all_BN: Tensor, past_B: Tensor, lengths_B: Tensor) -> Tensor:
        """The tokens that come before the next one in its window, at the end of context − 1 columns."""
        context, end_B = self.config.context, past_B + lengths_B
        column_C = torch.arange(context - 1, device=all_BN.device)
        last_BC = all_BN.gather(1, lengths_B[:, None] + column_C)
        half = _half(context)
        first_B = torch.where(end_B < context, 0, ((end_B - context) // half + 1) * half)
        return last_BC.masked_fill(column_C + end_B[:, None] - (context - 1) < first_B[:, None], NOTHING)

    def _hidden(self, ids_MW: Tensor) -> Tensor:
        """The vector that predicts each token of a window, M×W×R: of `begin` and the tokens before it."""
        before_MW = functional.pad(ids_MW[:, :-1], (1, 0), value=self.config.begin or 0)
        vectors_MWR = functional.embedding(before_MW, self._words_VR)
        if not len(vectors_MWR):  # for which the library has no answer
            return vectors_MWR
        vectors_MWR = functional.dropout(vectors_MWR, self.config.dropout, self.training)
        hidden_MWR: Tensor = self.model(inputs_embeds=vectors_MWR, use_cache=False).last_hidden_state
        return functional.dropout(hidden_MWR, self.config.dropout, self.training)


def _half(context: int) -> int:
    """How far the next window is from the one before."""
    return context - context // 2


def _begin(tokenizer: Tokenizer) -> int:
    """The id to read before a text."""
    for spelling in BEGINNINGS:
        try:
            return tokenizer.id(spelling)
        except TrellisError:  # not in the vocabulary
            continue
    return 0 if tokenizer.eos_id is None else tokenizer.eos_id


def _llama(config: TransformerLMConfig) -> tuple[Any, type[nn.Module]]:
    """The network's shape as transformers describes it, and its class."""
    transformers = library("model.kind=transformer")
    shape = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        intermediate_size=32 * -(-config.width // 12),  # 8/3 of the width, in steps that products like
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        max_position_embeddings=max(config.context, POSITIONS),
        tie_word_embeddings=True,
        bos_token_id=config.begin or 0,
        eos_token_id=None,
        pad_token_id=None,
    )
    return shape, transformers.LlamaModel
