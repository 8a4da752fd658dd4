"""Networks over the embeddings of states: what encoders put between an embedding and the vectors made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from trellis.ops.precision import full_precision

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


class ResidualNetwork(nn.Module):
    """LayerNorm(ReLU(D W₂) + D) with D = ReLU(E W₁)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, embedding_NR: Tensor) -> Tensor:
        """The network's output, N×R; in full precision, as the products that follow round it once more."""
        with full_precision(embedding_NR.device):
            hidden_NR = torch.relu(self.first(embedding_NR))
            out: Tensor = self.norm(torch.relu(self.second(hidden_NR)) + hidden_NR)
        return out


# What a skip connection makes of the mean square of y, with a ReLU and without: fresh weights are divided by its root.
_GROWTH = {("none", True): 0.5, ("none", False): 1.0, ("linear", True): 2.5, ("linear", False): 4.0}


class Layer(nn.Module):
    """y = W x, then a = ReLU(y) or y; then a, a + x or a + y by the skip connection; then a LayerNorm or not.

    Fresh weights are such that the output is about as large as the input.
    """

    def __init__(self, width: int, skip: str, *, relu: bool, norm: bool) -> None:
        super().__init__()
        self.skip, self.relu = skip, relu
        self.linear = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.linear.weight, std=(_GROWTH.get((skip, relu), 1.0) * width) ** -0.5)
        self.norm = nn.LayerNorm(width) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, as wide as its input."""
        y = self.linear(x)
        out = torch.relu(y) if self.relu else y
        if self.skip != "none":
            out = out + (x if self.skip == "input" else y)
        return out if self.norm is None else self.norm(out)


class MLP(nn.Module):
    """Layers y = W x, a = ReLU(y) (without `relu`, a = y), each of which gives, with `norm` or without,

        skip=none    LayerNorm(a)
        skip=linear  LayerNorm(a + y), Lee & Berg-Kirkpatrick's residual layer
        skip=input   LayerNorm(a + x), Chiu & Rush's; but of several layers the first gives a alone

    so that two layers with skip=input are LayerNorm(ReLU(W₂ D) + D) with D = ReLU(W₁ E), and one layer is
    LayerNorm(ReLU(W E) + E). The last LayerNorm's output begins with the given spread.
    """

    def __init__(self, config: HMMConfig, spread: float) -> None:
        super().__init__()
        plain = config.skip == "input" and config.layers > 1  # the first layer
        self.layers = nn.Sequential(
            *(
                Layer(config.width, "none", relu=config.relu, norm=False)
                if plain and depth == 0
                else Layer(config.width, config.skip, relu=config.relu, norm=config.norm)
                for depth in range(config.layers)
            )
        )
        if config.norm:
            nn.init.constant_(cast(nn.LayerNorm, self.layers[-1].norm).weight, spread)

    def forward(self, embedding_NR: Tensor) -> Tensor:
        """The network's output, N×R; in full precision, as the products that follow round it once more."""
        with full_precision(embedding_NR.device):
            out: Tensor = self.layers(embedding_NR)
        return out


class Attending(nn.Module):
    """A pre-norm layer of a transformer: x + Attention(LayerNorm(x)), then x + MLP(LayerNorm(x)), without biases."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.asked = nn.Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.given = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        with torch.no_grad():  # so that the sum of all layers stays small beside what they are added to
            for last in (self.given, self.down):
                last.weight.mul_((2 * layers) ** -0.5)

    def forward(self, x_BNR: Tensor) -> Tensor:
        """The layer's output, B×N×R: every state has seen all others."""
        x_BNR = x_BNR + self._attention(self.attention_norm(x_BNR))
        out: Tensor = x_BNR + self.down(functional.gelu(self.up(self.norm(x_BNR))))
        return out

    def _attention(self, x_BNR: Tensor) -> Tensor:
        asked_3BHND = self.asked(x_BNR).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found_BHND = functional.scaled_dot_product_attention(*asked_3BHND.unbind(0))
        out: Tensor = self.given(found_BHND.transpose(1, 2).flatten(2))
        return out


class Transformer(nn.Module):
    """Layers of attention among all states, without order or mask, and a last LayerNorm with the given spread."""

    def __init__(self, config: HMMConfig, spread: float) -> None:
        super().__init__()
        heads = config.attention_heads
        self.layers = nn.Sequential(*(Attending(config.width, heads, config.layers) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        nn.init.constant_(self.norm.weight, spread)

    def forward(self, embedding_NR: Tensor) -> Tensor:
        """The network's output, N×R, or that of several sets of states, B×N×R; in full precision."""
        with full_precision(embedding_NR.device):
            sets_BNR = embedding_NR.reshape(-1, *embedding_NR.shape[-2:])
            out: Tensor = self.norm(self.layers(sets_BNR))
        return out.view_as(embedding_NR)
