"""Text that meets a constraint: its probability, draws, the best texts, and guidance of language models."""

from trellis.steering.drawing import sample
from trellis.steering.guidance import Guidance
from trellis.steering.guide import Guide
from trellis.steering.messages import Messages
from trellis.steering.next_tokens import NextTokens
from trellis.steering.searching import Found, k_best

__all__ = ["Found", "Guidance", "Guide", "Messages", "NextTokens", "k_best", "sample"]
