"""Sequential Monte Carlo: texts of a language model given that a constraint is met, not only token by token.

Guided by an HMM, a token is drawn from q(v) ∝ p_LM(v | text) h(text, v), where h is the HMM's probability that the
constraint will be met. That would be exact if the HMM were the language model. It is not, so each particle carries the
weight by which it is to be corrected: a token multiplies it by

    Σ_v p_LM(v | text) h(text, v) / h(text)

As h is one for texts that met the constraint and zero for others, a complete text has the weight p_LM(text) / q(text).
"""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from torch import Tensor

from trellis.errors import InputError, TrellisError
from trellis.inference.draws import draw
from trellis.progress import Progress
from trellis.steering.guidance import Guidance
from trellis.steering.language_models import Prompts

FEWEST = 0.5  # the share of particles that must count, or they are drawn anew


@torch.no_grad()
def draw_texts(
    model: Any,
    prompts: Prompts,
    guidance: Guidance,
    count: int,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One text a prompt, B×T, out of `count` particles, drawn by their weights; padded after its end.

    With many particles it is a draw from p_LM(text | the constraint is met), the language model's at this temperature.
    """
    if count < 1 or not 0 < temperature < float("inf"):
        raise InputError(
            f"{count} particles at a temperature of {temperature} are none: give 1 or more, and above zero."
        )
    batch = len(prompts.ids_BT)
    walk = _Walk(model, prompts, count)
    log_weight_BN = torch.zeros(batch, count, dtype=torch.float64)
    with Progress("drawing", guidance.tokens, unit="tokens") as progress:
        for t in range(guidance.tokens):
            if t > 0:
                walk.go_on(_resampled(log_weight_BN, generator))
            log_prob_MV = (walk.logits_MV.float() / temperature).log_softmax(-1)
            scores_MV = guidance(walk.ids_MT, log_prob_MV)
            running_M = ~walk.ended_M
            log_step_M = scores_MV.logsumexp(-1).double().cpu().masked_fill(~running_M.cpu(), 0.0)
            log_weight_BN += log_step_M.view(batch, count)
            _check_alive(log_weight_BN)
            drawn_M = draw(scores_MV.softmax(-1).nan_to_num(0.0), generator)
            walk.append(torch.where(running_M, drawn_M, prompts.pad))
            progress.advance()
            if bool(walk.ended_M.all()):
                break
    last_B = torch.arange(batch) * count + draw(log_weight_BN.softmax(1), generator)
    return walk.ids_MT[last_B.to(walk.ids_MT.device), walk.prompt_length :]


def _check_alive(log_weight_BN: Tensor) -> None:
    dead_B = (log_weight_BN == -torch.inf).all(1)
    if bool(dead_B.any()):
        raise TrellisError(
            f"no particle of prompt {int(dead_B.nonzero()[0]) + 1} can meet its constraint under the language model: "
            "raise particles or tokens."
        )


def _resampled(log_weight_BN: Tensor, generator: torch.Generator | None) -> Tensor | None:
    """Which particle each goes on as, B×N; weights of prompts that are drawn anew become equal. None: all as they are.

    Systematic resampling: one random number for N equally spaced points of the cumulated weights.
    """
    weight_BN = log_weight_BN.softmax(1)
    count = weight_BN.shape[1]
    few_B = 1.0 / weight_BN.square().sum(1) < FEWEST * count
    if not bool(few_B.any()):
        return None
    chosen_BN = torch.arange(count).repeat(len(weight_BN), 1)
    heap_MN = weight_BN[few_B].cumsum(1)
    first_M1 = torch.rand(len(heap_MN), 1, generator=generator, dtype=torch.float64)
    points_MN = (torch.arange(count) + first_M1) / count * heap_MN[:, -1:]
    chosen_BN[few_B] = torch.searchsorted(heap_MN, points_MN, right=True).clamp_max(count - 1)
    log_weight_BN[few_B] = 0.0
    return chosen_BN


class _Walk:
    """All particles of all prompts under way, M rows, and what the language model says of their next tokens."""

    def __init__(self, model: Any, prompts: Prompts, count: int) -> None:
        self.model, self.count, self.eos = model, count, prompts.eos
        self.prompt_length = prompts.ids_BT.shape[1]
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.mask_MT, self.cache = prompts.mask_BT, cast(Any, None)
        logits_BV = self._read(prompts.ids_BT)
        each_M = torch.arange(len(logits_BV), device=logits_BV.device).repeat_interleave(count)
        self.ids_MT, self.mask_MT, self.logits_MV = prompts.ids_BT[each_M], self.mask_MT[each_M], logits_BV[each_M]
        self.cache.reorder_cache(each_M)
        self.ended_M = torch.zeros(len(each_M), dtype=torch.bool, device=each_M.device)

    def _read(self, ids_MT: Tensor) -> Tensor:
        """What the model says after these tokens, which follow those of the cache, M×V."""
        position_MT = (self.mask_MT.cumsum(1) - 1).clamp_min(0)[:, -ids_MT.shape[1] :]
        places = {"position_ids": position_MT} if self.takes_positions else {}
        told = self.model(
            input_ids=ids_MT, attention_mask=self.mask_MT, past_key_values=self.cache, use_cache=True, **places
        )
        self.cache = told.past_key_values
        last_MV: Tensor = told.logits[:, -1]
        return last_MV

    def append(self, token_M: Tensor) -> None:
        """A token to each row."""
        token_M = token_M.to(self.ids_MT)
        self.ids_MT = torch.cat([self.ids_MT, token_M[:, None]], 1)
        self.mask_MT = torch.cat([self.mask_MT, torch.ones_like(self.mask_MT[:, :1])], 1)
        if self.eos is not None:
            self.ended_M = self.ended_M | (token_M == self.eos)

    def go_on(self, chosen_BN: Tensor | None) -> None:
        """Let each row be the chosen one of its prompt's, and ask the model for its next token."""
        if chosen_BN is not None:
            first_B1 = torch.arange(len(chosen_BN))[:, None] * self.count
            chosen_M = (first_B1 + chosen_BN).flatten().to(self.ids_MT.device)
            self.ids_MT, self.mask_MT, self.ended_M = (
                rows[chosen_M] for rows in (self.ids_MT, self.mask_MT, self.ended_M)
            )
            self.cache.reorder_cache(chosen_M)
        self.logits_MV = self._read(self.ids_MT[:, -1:])
