"""Deterministic automata over the symbols of a vocabulary, on NumPy tables; nothing here knows a probability."""

from trellis.automata.automaton import Automaton
from trellis.automata.counting import counting
from trellis.automata.ending import ending
from trellis.automata.expressions import expression
from trellis.automata.lifting import Spellings, lifted
from trellis.automata.making import every, nothing, one_after_another

__all__ = [
    "Automaton",
    "Spellings",
    "counting",
    "ending",
    "every",
    "expression",
    "lifted",
    "nothing",
    "one_after_another",
]
