"""Encoders whose vectors come out of networks that are more than a residual layer: MLPs, transformers, pretrained ones.

All their vectors are made when states are encoded, so that a network runs once a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.models import storage
from trellis.models.networks import MLP, Transformer
from trellis.models.state_vectors import Encoder, vector_of
from trellis.ops.precision import full_precision

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig
    from trellis.models.hugging_face import CausalNetwork


class Networked(Encoder):
    """Embeddings of states through networks; states start as they are entered.

                     one embedding a state (merged)          one a role (split)
    a network a role    each of the one embedding               each of its own
    monolithic          one network, then a linear map a role   one network, of each role's embedding

    All vectors are made when states are encoded, so that each network runs once a batch. Vectors that leave and emit
    begin with unit spread if the networks end in a norm, and those that enter with `config.scale`.
    """

    network: Callable[[HMMConfig, float], nn.Module]  # of a shape, with this spread of its output

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__(config, blocks, roles)
        self.roles = sorted({vector_of(role) for role in roles})
        self.merged, self.monolithic = config.merged, config.monolithic
        names = ["states"] if self.merged else self.roles
        tables = {name: torch.randn(config.states, config.width).mul_(config.scale) for name in names}
        self.tables, self.maps = nn.ParameterDict(tables), nn.ModuleDict()
        make, spreads = type(self).network, {role: config.scale if role == "entering" else 1.0 for role in self.roles}
        if not self.monolithic:
            self.networks = nn.ModuleDict({role: make(config, spreads[role]) for role in self.roles})
        elif self.merged:
            self.networks = nn.ModuleDict({"all": make(config, 1.0)})
            self.maps = _maps(config.width, config.width, spreads if config.norm else dict.fromkeys(self.roles, 1.0))
        else:  # whose products are of two vectors of this spread
            self.networks = nn.ModuleDict({"all": make(config, config.scale**0.5)})

    def network_parameters(self) -> list[nn.Parameter]:
        """Those of networks and maps."""
        return [*self.networks.parameters(), *self.maps.parameters()]

    def encode(self, states_N: Tensor) -> Tensor:
        """The vectors of these states in all roles, as a stack of N×R."""
        embeddings = {name: table.index_select(0, states_N) for name, table in self.tables.items()}
        if not self.monolithic:
            made = [self.networks[role](embeddings["states" if self.merged else role]) for role in self.roles]
            return torch.stack(made)
        if self.merged:
            return _mapped(self.maps, self.networks["all"](embeddings["states"]))
        return cast(Tensor, self.networks["all"](torch.stack([embeddings[role] for role in self.roles])))

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        return encoded[self.roles.index(vector_of(role))]


class NetworkedByMLP(Networked):
    """Embeddings through linear layers, with or without skip connections, ReLU and LayerNorm."""

    network = MLP


class NetworkedByTransformer(Networked):
    """Embeddings through a transformer, in which all states that take part see one another."""

    network = Transformer


class Pretrained(Encoder):
    """One embedding a state, through the layers of a causal language model, then a linear map a role.

    States are its tokens, in the order of their numbers. Embeddings begin with the spread of its word vectors, or with
    the vectors of a text's first words.
    """

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__(config, blocks, roles)
        found, fresh = _causal_network(config), config.architecture is None
        self.roles = sorted({vector_of(role) for role in roles})
        self.architecture, self.words_VE = found.architecture, None
        spread = found.words_VE.std() if config.init_scale is None else config.init_scale
        states_SE = torch.randn(config.states, found.words_VE.shape[1]).mul_(spread)
        self.tables, self.network = nn.ParameterDict({"states": states_SE}), found.module
        spreads = {role: config.scale if role == "entering" else 1.0 for role in self.roles}
        self.maps = _maps(found.width, config.width, spreads)
        self.train(self.training)
        if fresh and config.inputs == "text":
            self.words_VE = _checked_words(found.words_VE, config)  # until the text is there
        elif fresh:
            self._fit_maps()

    def train(self, mode: bool = True) -> Self:
        """As of any module; but the network never drops anything, so that a batch has one answer."""
        super().train(mode)
        self.network.eval()
        return self

    def described(self, config: HMMConfig) -> HMMConfig:
        """The configuration with the network's shape, from which a saved model is made again."""
        return dataclasses.replace(config, architecture=self.architecture)

    def begin_with(self, ids_N: Tensor) -> None:
        """Take the vectors of a text's first words as the embeddings of the states, if that was asked for."""
        if self.words_VE is None:
            return
        states_SE = self.tables["states"]
        if len(ids_N) < len(states_SE):
            raise TrellisError(
                f"a text of {len(ids_N):,} tokens has too few for {len(states_SE):,} states: set model.inputs=states."
            )
        with torch.no_grad():
            states_SE.copy_(self.words_VE[ids_N.cpu()])
        self.words_VE = None
        self._fit_maps()

    @torch.no_grad()
    def _fit_maps(self) -> None:
        """Give fresh maps the spread they should have, as a trained network's output has a size of its own."""
        everything = torch.arange(len(self.tables["states"]), device=self.tables["states"].device)
        size = self._hidden(everything).square().mean().sqrt()
        for made in self.maps.parameters():
            made.div_(size)

    def network_parameters(self) -> list[nn.Parameter]:
        """Those of the network and the maps."""
        return [*self.network.parameters(), *self.maps.parameters()]

    def encode(self, states_N: Tensor) -> Tensor:
        """The vectors of these states in all roles, as a stack of N×R."""
        if self.words_VE is not None:
            raise TrellisError(
                "model.inputs=text needs the text: make the model by HMM.for_text, or set inputs=states."
            )
        return _mapped(self.maps, self._hidden(states_N))

    def _hidden(self, states_N: Tensor) -> Tensor:
        """What the network makes of these states as one sequence."""
        embedding_1NE = self.tables["states"].index_select(0, states_N)[None]
        with full_precision(embedding_1NE.device):
            return cast(Tensor, self.network(inputs_embeds=embedding_1NE, use_cache=False).last_hidden_state[0])

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        return encoded[self.roles.index(vector_of(role))]


def placed(config: HMMConfig, data_dir: str | None) -> HMMConfig:
    """The configuration with its network, if it needs one, named by where it lies: as named, or in the data folder."""
    if config.network is None or not config.roles():
        return config
    name = config.network.removeprefix(storage.RANDOM)
    random = config.network.removesuffix(name)
    place = storage.find_model(name, "network", "model.network", data_dir)
    return dataclasses.replace(config, network=f"{random}{place}")


def _causal_network(config: HMMConfig) -> CausalNetwork:
    """The network with its own weights, or of a saved model, which brings the weights, one of its shape."""
    from trellis.models.hugging_face import load_network, of_shape

    if config.architecture is not None:
        return of_shape(config.architecture)
    return load_network(str(config.network), config.states)


def _maps(inputs: int, width: int, spreads: dict[str, float]) -> nn.ModuleDict:
    """A linear map a role; of an input of unit spread, each begins with the spread given."""
    maps = nn.ModuleDict({role: nn.Linear(inputs, width, bias=False) for role in spreads})
    for role, spread in spreads.items():
        nn.init.normal_(cast(nn.Linear, maps[role]).weight, std=spread * inputs**-0.5)
    return maps


def _mapped(maps: nn.ModuleDict, hidden_NR: Tensor) -> Tensor:
    """What the maps make of the same vectors, as a stack in their order; in full precision, as networks."""
    with full_precision(hidden_NR.device):
        return torch.stack([made(hidden_NR) for made in maps.values()])


def _checked_words(words_VE: Tensor, config: HMMConfig) -> Tensor:
    """A network's word vectors, which must be those of the model's words."""
    if len(words_VE) != config.vocab_size:
        raise TrellisError(
            f"the network {config.network} has {len(words_VE):,} words and the model {config.vocab_size:,}: set "
            "model.inputs=states, or data.tokenizer to the network's own."
        )
    return words_VE
