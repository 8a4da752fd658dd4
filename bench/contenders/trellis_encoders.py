"""HMMs whose parts are low-rank, with vectors by any encoder, as their training runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.contenders import Precision, versions
from bench.contenders.trellis_hmm import Trained
from bench.problem import Problem
from trellis.models import HMM, HMMConfig

LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank"}


@contextmanager
def llama(words: int, width: int, layers: int, heads: int, positions: int) -> Iterator[str]:
    """The name of a network of a small Llama's shape; its weights are drawn, so that no data are needed."""
    shape = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": words,
        "hidden_size": width,
        "intermediate_size": 8 * width // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape), encoding="utf-8")
        yield f"random:{folder}"


def model_of(problem: Problem, settings: dict[str, Any]) -> HMM:
    """A model by an encoder, as wide as the problem's rank; a pretrained network is as wide, and has four layers."""
    shape: dict[str, Any] = {**LOW_RANK, "width": problem.rank, **versions.fitting(settings, problem.words)}
    if settings["encoder"] != "pretrained":
        return HMM(HMMConfig(problem.words, problem.states, **shape), problem.seed)
    with llama(problem.words, problem.rank, 4, max(1, problem.rank // 32), problem.states) as network:
        return HMM(HMMConfig(problem.words, problem.states, network=network, **shape), problem.seed)


@torch.no_grad()
def exact_log_likelihood(problem: Problem, settings: dict[str, Any]) -> float:
    """Of the whole batch in double precision, by Trellis's own PyTorch path, which its tests hold to brute force."""
    log_prob_BT, _ = model_of(problem, settings).double().eval().score(torch.from_numpy(problem.ids()))
    return float(log_prob_BT.sum())


class Encoded(Trained):
    """A model by an encoder."""

    def __init__(self, problem: Problem, rows: int, settings: dict[str, Any], precision: Precision = "float32") -> None:
        self.settings = settings
        super().__init__(problem, rows, precision)

    def build(self, problem: Problem) -> HMM:
        """Fresh parameters, drawn from the problem's seed."""
        return model_of(problem, self.settings)

    def facts(self) -> dict[str, Any]:
        """Its size."""
        return {"parameters": sum(parameter.numel() for parameter in self.model.parameters())}
