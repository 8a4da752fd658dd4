"""The slow twin of a blocked model: its distributions held whole, differentiable, with what dropout leaves of them."""

import torch

from trellis.inference import log_probs
from trellis.models.state_features import ScalarStates


def slow_tables(model, kept):
    """log start S, log transition S×S and log emission V×S; states that are dropped are never entered."""
    states, everything = model.config.states, torch.arange(model.config.states)
    alive = torch.zeros(states, dtype=torch.bool)
    alive[kept.all_S] = True
    never = torch.tensor(-torch.inf, dtype=torch.float64)
    log_start = torch.where(alive, model.vectors.start_logits(model.vectors.look_up(everything)), never).log_softmax(0)
    if isinstance(model.vectors, ScalarStates):
        logits = model.transition.table
        block_logits = model.transition.block
    else:
        leaving = model.vectors.leaving(model.vectors.look_up(everything))
        logits = leaving @ model.vectors.entering(model.vectors.look_up(everything)).T
        part = model.transition
        block_logits = None if part.block is None else leaving @ part.block.T + part.block_bias
    logits = torch.where(alive, logits, never)
    if block_logits is None:
        log_transition = logits.log_softmax(1)
    else:
        within = logits.view(states, block_logits.shape[1], -1).log_softmax(2)
        log_transition = (within + block_logits.log_softmax(1)[:, :, None]).flatten(1)
    return log_start, log_transition, slow_emission(model, never)


def slow_emission(model, never):
    """Each state's words are those whose list it is in."""
    states, vocab_size = model.config.states, model.config.vocab_size
    lists = model.states_GK[model.group_V]
    allowed = torch.zeros(vocab_size, states, dtype=torch.bool).scatter(1, lists, True)
    if isinstance(model.vectors, ScalarStates):
        logits = torch.zeros(vocab_size, states, dtype=torch.float64).scatter(1, lists, model.emission.table)
    else:
        emitting = model.vectors.emitting(model.vectors.look_up(torch.arange(states)))
        logits = model.emission.words @ emitting.T + model.emission.bias[:, None]
    lonely = ~allowed.any(0)
    return torch.where(allowed | lonely, logits, never).log_softmax(0).where(allowed, never)


def slow_score(model, ids_BT, state, lengths_B, kept):
    """What `score` must say, by dense inference on those tables."""
    log_start, log_transition, log_emission = slow_tables(model, kept)
    if lengths_B is not None:
        ids_BT = ids_BT.masked_fill(torch.arange(ids_BT.shape[1]) >= lengths_B[:, None], 0)
    return log_probs(log_start, log_transition, log_emission[ids_BT], lengths_B, state)
