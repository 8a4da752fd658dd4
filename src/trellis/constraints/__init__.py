"""Constraints on texts as people write them, and the automata over a tokenizer's tokens that they become."""

from trellis.constraints.constraint import Constraint
from trellis.constraints.limits import contains_tokens, length, tokens
from trellis.constraints.parsing import parse
from trellis.constraints.patterns import matches, matches_words
from trellis.constraints.phrases import contains, contains_any, ends_with, starts_with, times, without

__all__ = [
    "Constraint",
    "contains",
    "contains_any",
    "contains_tokens",
    "ends_with",
    "length",
    "matches",
    "matches_words",
    "parse",
    "starts_with",
    "times",
    "tokens",
    "without",
]
