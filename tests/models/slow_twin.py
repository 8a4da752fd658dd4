"""The slow twin of an HMM: its distributions held whole, differentiable, with what dropout leaves of them."""

import torch

from trellis import inference
from trellis.inference import Chain
from trellis.models.starts import ScalarStart
from trellis.models.transitions import ScalarTransition

NEVER = torch.tensor(-torch.inf, dtype=torch.float64)


class Seen:
    """The vectors of all states by role, from an encoder that is shown some of them; zeros for the others."""

    def __init__(self, model, states_U):
        self.encoder, self.states_U, self.states = model.encoder, states_U, model.config.states
        self.encoded = None

    def __getattr__(self, role):
        if self.encoded is None:
            self.encoded = self.encoder.encode(self.states_U)
        rows_UR = self.encoder.vectors(role, self.encoded)
        return rows_UR.new_zeros(self.states, rows_UR.shape[1]).index_copy(0, self.states_U, rows_UR)


def involved(model, taking_part, state):
    """The states that an encoder is shown at once."""
    if model.encoder.independent or (state is not None and model.support is None):
        return torch.arange(model.config.states)
    if state is None:
        return taking_part.all_S
    return torch.cat([taking_part.all_S, (state > 0).any(0).nonzero().flatten()]).unique()


def slow_tables(model, taking_part, state=None):
    """log start S, log transition S×S and log emission V×S; states that are dropped are never entered."""
    states, vectors = model.config.states, Seen(model, involved(model, taking_part, state))
    alive = torch.zeros(states, dtype=torch.bool)
    alive[taking_part.all_S] = True
    start = model.start.table if isinstance(model.start, ScalarStart) else vectors.starting @ model.start.first
    log_start = torch.where(alive, start, NEVER).log_softmax(0)
    logits, block_logits = slow_transition_logits(model, vectors)
    logits = torch.where(alive, logits, NEVER)
    if block_logits is None:
        log_transition = logits.log_softmax(1)
    else:
        within = logits.view(states, block_logits.shape[1], -1).log_softmax(2)
        log_transition = (within + block_logits.log_softmax(1)[:, :, None]).flatten(1)
    return log_start, log_transition, slow_emission(model, vectors)


def slow_transition_logits(model, vectors):
    """Of the next state, S×S, and if it is drawn first of its block, S×M."""
    part, hierarchical = model.transition, model.config.transition.startswith("hierarchical")
    if isinstance(part, ScalarTransition):
        return part.table, part.blocks if hierarchical else None
    leaving = vectors.leaving
    return leaving @ vectors.entering.T, leaving @ part.blocks.T + part.bias if hierarchical else None


def slow_emission(model, vectors):
    """Each state's words are those whose block it is in."""
    shape = model.config.vocab_size, model.config.states
    lists = torch.arange(model.config.states).expand(shape)
    if model.support is not None:
        lists = model.states_MK[model.block_V]
    allowed = torch.zeros(shape, dtype=torch.bool).scatter(1, lists, True)
    if model.config.emission == "scalar":
        logits = torch.zeros(shape, dtype=torch.float64).scatter(1, lists, model.emission.table)
    else:
        logits = model.emission.words @ vectors.emitting.T
        logits = logits if model.emission.bias is None else logits + model.emission.bias[:, None]
    lonely = ~allowed.any(0)
    return torch.where(allowed | lonely, logits, NEVER).log_softmax(0).where(allowed, NEVER)


def slow_score(model, ids_BT, state, lengths_B, taking_part):
    """What `score` must say, by dense inference on those tables."""
    log_start, log_transition, log_emission = slow_tables(model, taking_part, state)
    if lengths_B is not None:
        ids_BT = ids_BT.masked_fill(torch.arange(ids_BT.shape[1]) >= lengths_B[:, None], 0)
    return inference.score(Chain.dense(log_start, log_transition, log_emission[ids_BT], lengths_B, state))
