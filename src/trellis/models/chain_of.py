"""The chain of a batch, whatever a model is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trellis.inference import Chain
from trellis.models.asking import Asked
from trellis.models.chains import plain_chain
from trellis.models.remembering import remembering_chain
from trellis.models.remembering_blocks import remembering_block_chain

if TYPE_CHECKING:
    from trellis.models.distributions import Distributions


def chain_of(model: Distributions, asked: Asked) -> Chain:
    """The chain of a batch."""
    asked = asked.ready(model)
    if model.memory is None:
        chain = plain_chain(model, asked)
    elif model.support is None:
        chain = remembering_chain(model, asked)
    else:
        chain = remembering_block_chain(model, model.support, asked)
    return chain._replace(learning=model.training)
