"""Mixtures of HMMs: every document is of one concept, an HMM of its own, which a prior draws.

With weights w_c = p(concept c | tokens so far), exactly,

    p(token | before) = Σ_c w_c p_c(token | before)        w_c ← w_c p_c(token | before) / p(token | before)

No predictor of documents that are drawn so has a lower expected loss than the first line: in the study of in-context
learning (Xie et al. 2021) it is what a language model is held against.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis.errors import InputError, TrellisError
from trellis.folders import whole_folder
from trellis.inference.brief import brief
from trellis.inference.draws import draw
from trellis.json_files import write_json
from trellis.models import HMM, HMMConfig
from trellis.models.asking import asked_rows, count, probabilities, rows_of, state_of_rows
from trellis.models.pretrained import Pretrained, load_pretrained
from trellis.models.storage import read_json
from trellis.models.storage import save as save_model
from trellis.ops.precision import at_most_zero, widened
from trellis.text import Tokenizer

MIXTURE_FILE = "mixture.json"


class Documents(NamedTuple):
    """Documents drawn from a mixture, with all that is hidden in them.

    concepts_B            which of the models drew each
    states_BT, tokens_BT  −1 past a document's end
    lengths_B             tokens drawn, the end token included
    """

    concepts_B: Tensor
    states_BT: Tensor
    tokens_BT: Tensor
    lengths_B: Tensor

    def __repr__(self) -> str:
        return brief(self)


class Mixture:
    """Some HMMs of one vocabulary, and the prior probability of each; without a prior, all are equal.

    `score` keeps the contract of every model here. Its state is, a row a text, the logarithms of the weights and the
    models' own states side by side.
    """

    def __init__(self, models: Sequence[HMM], prior_C: Any = None) -> None:
        if not models:
            raise InputError("a mixture of no models draws nothing: give at least one.")
        sizes = sorted({model.config.vocab_size for model in models})
        if len(sizes) > 1:
            raise InputError(f"models with vocabularies of {sizes[0]} and {sizes[-1]} cannot be mixed: give one kind.")
        self.models = tuple(models)
        like = next(models[0].parameters())
        prior_C = like.new_ones(len(models)) / len(models) if prior_C is None else prior_C
        prior_C = probabilities(prior_C, "prior_C", like.new_empty(len(models)))
        self.log_prior_C = (widened(prior_C) / widened(prior_C).sum()).log()

    def __repr__(self) -> str:
        return (
            f"Mixture({', '.join(f'{p:.3g} × {m}' for p, m in zip(self.prior_C.tolist(), self.models, strict=True))})"
        )

    @property
    def prior_C(self) -> Tensor:
        """p(concept)."""
        return self.log_prior_C.exp()

    @property
    def device(self) -> torch.device:
        """Where the numbers live."""
        return self.models[0].device

    @torch.no_grad()
    def score(
        self, ids_BT: Tensor, state: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, and the state to carry on from."""
        log_prob_BT, _, state = self._walk(ids_BT, state, lengths_B)
        return log_prob_BT, state

    @torch.no_grad()
    def posteriors(
        self, ids_BT: Tensor, state: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """p(concept | tokens up to and with this one), B×T×C, and the state to carry on from.

        Past a row's end it is that of the whole row; zeros from an impossible token on.
        """
        _, log_joint_BTC, state = self._walk(ids_BT, state, lengths_B)
        possible_BT1 = log_joint_BTC.amax(-1, keepdim=True) > -torch.inf
        return torch.where(possible_BT1, log_joint_BTC, 0.0).softmax(-1) * possible_BT1, state

    @torch.no_grad()
    def posterior(self, state: Tensor | None = None) -> Tensor:
        """p(concept | all tokens before), B×C: what a state says of concepts; without one, the prior."""
        return self._split(state, rows_of(state))[0].exp()

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V: the Bayes-optimal prediction; with no state, of the first token."""
        log_weight_BC, states = self._split(state, rows_of(state))
        words_BCV = torch.stack([m.next_token(own) for m, own in zip(self.models, states, strict=True)], 1)
        return torch.logsumexp(log_weight_BC[:, :, None] + widened(words_BCV), 1).to(words_BCV.dtype)

    @torch.no_grad()
    def sample(
        self, batch: int, length: int, end: int | None = None, generator: torch.Generator | None = None
    ) -> Documents:
        """Documents drawn from the mixture: a concept from the prior, then its tokens; `end` stops a document."""
        batch, length = count(batch, "the number of documents"), count(length, "the length of documents")
        concepts_B = draw(self.prior_C.expand(batch, -1), generator)
        states_BT, tokens_BT = torch.full((2, batch, length), -1, device=self.device).unbind()
        lengths_B = torch.zeros_like(concepts_B)
        for concept, model in enumerate(self.models):
            rows_N = (concepts_B == concept).nonzero().flatten()
            if len(rows_N):
                drawn = model.sample(len(rows_N), length, end=end, generator=generator)
                states_BT[rows_N], tokens_BT[rows_N], lengths_B[rows_N] = drawn
        return Documents(concepts_B, states_BT, tokens_BT, lengths_B)

    @torch.no_grad()
    def joined(self) -> HMM:
        """The same as one dense HMM, in which no state of one model leads to one of another."""
        tables = [model.tables() for model in self.models]
        start_S = torch.cat([p * one.start_S for p, one in zip(self.prior_C, tables, strict=True)])
        emission_SV = torch.cat([one.emission_SV for one in tables])
        model = HMM(HMMConfig(emission_SV.shape[1], len(start_S)), seed=0).to(emission_SV)
        model.set_tables(start_S, torch.block_diag(*(one.transition_SS for one in tables)), emission_SV)
        return model.eval()

    def save_pretrained(self, folder: str | PathLike[str], tokenizer: Tokenizer) -> None:
        """Write each model into a folder of its own, and the prior beside them, all or nothing."""
        names = [f"concept-{number}" for number in range(len(self.models))]
        with whole_folder(folder) as partial:
            for name, model in zip(names, self.models, strict=True):
                save_model(model, partial / name, tokenizer)
            told = {"concepts": names, "prior": self.prior_C.tolist()}
            write_json(partial / MIXTURE_FILE, told)

    def _walk(self, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """log p(token | before), log p(concept, tokens so far | before the batch) after each token, and the state."""
        width = len(self.models) + sum(model.state_width for model in self.models)
        like = next(self.models[0].parameters())
        ids_BT, state, lengths_B = asked_rows(ids_BT, state, lengths_B, width, like, logarithms=True)
        log_weight_BC, states = self._split(state, len(ids_BT))
        found = [m.score(ids_BT, own, lengths_B) for m, own in zip(self.models, states, strict=True)]
        given_BTC = torch.stack([log_prob_BT for log_prob_BT, _ in found], -1)
        log_joint_BTC = log_weight_BC[:, None] + widened(given_BTC).cumsum(1)
        total_BT = torch.cat([log_weight_BC[:, None], log_joint_BTC], 1).logsumexp(-1)
        gained_BT = at_most_zero(total_BT[:, 1:] - total_BT[:, :-1])
        inside_BT = _inside(ids_BT, lengths_B)
        log_prob_BT = torch.where(total_BT[:, 1:] > -torch.inf, gained_BT, -torch.inf)
        log_prob_BT = torch.where(inside_BT, log_prob_BT, 0.0).to(given_BTC.dtype)
        last_BC = log_joint_BTC[:, -1] if ids_BT.shape[1] else log_weight_BC
        after_BC = torch.where(total_BT[:, -1:] > -torch.inf, last_BC - total_BT[:, -1:], -torch.inf)
        return log_prob_BT, log_joint_BTC, self._packed(after_BC, [own for _, own in found])

    def _packed(self, log_weight_BC: Tensor, states: list[Tensor]) -> Tensor:
        return torch.cat([log_weight_BC.to(states[0].dtype), *states], 1)

    def _split(self, state: Tensor | None, rows: int) -> tuple[Tensor, list[Tensor | None]]:
        """The logarithms of the weights, float64, and each model's own state."""
        if state is None:
            return self.log_prior_C.expand(rows, -1), [None] * len(self.models)
        sizes = [len(self.models), *(model.state_width for model in self.models)]
        state = state_of_rows(state, rows, sum(sizes), next(self.models[0].parameters()), logarithms=True)
        assert state is not None
        weight_BC, *states = state.split(sizes, 1)
        return widened(weight_BC), list(states)


def _inside(ids_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Which tokens there are."""
    if lengths_B is None:
        return torch.ones_like(ids_BT, dtype=torch.bool)
    return torch.arange(ids_BT.shape[1], device=ids_BT.device) < lengths_B[:, None]


def mixture_of(found: Sequence[Pretrained], weights: Sequence[float] | None = None) -> tuple[Mixture, Tokenizer]:
    """Saved models as a mixture, and the tokenizer that they share; weights need not sum to one."""
    weights = [1.0] * len(found) if weights is None else list(weights)
    if len(weights) != len(found) or min(weights, default=0.0) < 0 or not 0 < sum(weights) < float("inf"):
        raise TrellisError(f"{len(found)} models need as many weights of zero or more, not {weights}.")
    for one in found[1:]:
        if one.tokenizer.fingerprint() != found[0].tokenizer.fingerprint():
            raise TrellisError(f"{one.folder} has another tokenizer than {found[0].folder}: mix models of one.")
    prior_C = [weight / sum(weights) for weight in weights]
    return Mixture([one.answering("sample", "predicted") for one in found], prior_C), found[0].tokenizer


def load_mixture(folder: str | PathLike[str]) -> tuple[Mixture, Tokenizer]:
    """Read what `save_pretrained` wrote: the mixture and its tokenizer."""
    told = read_json(Path(folder) / MIXTURE_FILE)
    try:
        found = [load_pretrained(Path(folder) / str(name)) for name in told["concepts"]]
        prior = [float(p) for p in told["prior"]]
    except (KeyError, TypeError, ValueError) as error:
        raise TrellisError(f"{Path(folder) / MIXTURE_FILE} names no concepts and their prior: restore it.") from error
    return mixture_of(found, prior)
