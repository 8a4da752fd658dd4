"""All that can be asked of a chain."""

import torch
from torch import Tensor

from trellis.inference import Chain, entropy, filter, k_best, sample_posterior, score, smooth, viterbi


def every_answer(chain: Chain) -> tuple[Tensor, ...]:
    """The answers to all questions, but for the gradients."""
    return (
        *filter(chain),
        *smooth(chain),
        *viterbi(chain),
        *k_best(chain, 3),
        sample_posterior(chain, 4, torch.Generator().manual_seed(0)),
        entropy(chain),
        *(answer.detach() for answer in score(chain)),
    )
