"""Texts drawn from an HMM given that they meet a constraint: exactly, token by token from the first."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.inference.draws import draw
from trellis.models.generation import Samples
from trellis.progress import Progress
from trellis.steering.messages import Messages

AT_ONCE = 1 << 24  # numbers of a step that are held at once: 64 MB of float32


@torch.no_grad()
def sample(
    messages: Messages, predicted_BS: Tensor, state_B: Tensor, generator: torch.Generator | None = None
) -> Samples:
    """Rows of `messages.length` tokens, or up to the end token, drawn from p(text | the constraint is met).

    `predicted_BS` is the distribution of each row's first state, and `state_B` where the automaton stands. A row whose
    constraint cannot be met has no tokens.
    """
    batch, time = len(predicted_BS), messages.length
    states_BT, tokens_BT = torch.full((2, batch, time), -1, device=predicted_BS.device).unbind()
    possible_B = messages.log_prob(predicted_BS, state_B, time) > -torch.inf
    state_B, weight_BS = state_B.clone(), predicted_BS.to(messages.message_NQS).clone()
    running_N = (possible_B & ~_ended(messages, state_B)).nonzero().flatten()
    lengths_B = torch.zeros_like(state_B)
    at_once = max(
        1, AT_ONCE // max(1, messages.model.config.vocab_size, messages.next_QC.shape[1] * weight_BS.shape[1])
    )
    with Progress("drawing", time) as progress:
        for t in range(time):
            for rows_N in running_N.split(at_once):
                drawn = _draw_token(messages, weight_BS[rows_N], state_B[rows_N], time - t, generator)
                states_BT[rows_N, t], tokens_BT[rows_N, t], state_B[rows_N], weight_BS[rows_N] = drawn
            lengths_B[running_N] = t + 1
            running_N = running_N[~_ended(messages, state_B[running_N])]
            progress.advance()
    return Samples(states_BT, tokens_BT, lengths_B)


def _ended(messages: Messages, state_N: Tensor) -> Tensor:
    end = messages.automaton.end
    return torch.zeros_like(state_N, dtype=torch.bool) if end is None else state_N == end


def _draw_token(
    messages: Messages, weight_NS: Tensor, state_N: Tensor, left: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each row's next state, token, state of the automaton, and distribution of the state after."""
    chosen_N = draw(weight_NS * messages.message_NQS[left, state_N], generator)
    message_NCS, log_scale_NC = messages.targets(state_N, left)
    factor_NC = (log_scale_NC - log_scale_NC.amax(1, keepdim=True)).exp()
    token_N = draw(messages.steps.token_weights(chosen_N, message_NCS * factor_NC[..., None]), generator)
    after_N = messages.next_QC[state_N, messages.steps.class_V[token_N]]
    return chosen_N, token_N, after_N, messages.steps.next_states(chosen_N, token_N)
