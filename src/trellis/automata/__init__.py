"""Deterministic automata over the symbols of a vocabulary, on NumPy tables; nothing here knows a probability."""

from trellis.automata.automaton import Automaton
from trellis.automata.ending import ending
from trellis.automata.making import every, nothing, one_after_another

__all__ = ["Automaton", "ending", "every", "nothing", "one_after_another"]
