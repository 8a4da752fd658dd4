"""A teacher of the shape of stories15M: its plain forward pass, and the labelling of a text by it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.nn import functional

from bench.contenders import THREADS
from bench.contenders.trellis_encoders import llama
from bench.problem import Problem
from trellis.distillation import labels
from trellis.distillation.codebook import Blocks, Codebook, Labeller
from trellis.distillation.reading import ROWS, Reader
from trellis.distillation.teachers import find_teacher
from trellis.text import Tokenizer

WIDTH, LAYERS, HEADS, POSITIONS = 288, 6, 6, 256  # of stories15M


class _Words(NamedTuple):
    """A tokenizer, as far as a reader looks at it whose teacher has none."""

    vocab_size: int


class _Teaching:
    """A teacher with random weights before the problem's sequences, one after the other."""

    def __init__(self, problem: Problem, rows: int) -> None:
        torch.set_num_threads(THREADS)
        self.problem = problem
        with llama(problem.words, WIDTH, LAYERS, HEADS, POSITIONS) as name:
            teacher = find_teacher(name, problem.seed).open(-1)
        self.reader = Reader(teacher, problem.ids(rows).reshape(-1), cast(Tokenizer, _Words(problem.words)))


class Forward(_Teaching):
    """The network alone, on windows as labelling reads them."""

    def __init__(self, problem: Problem, rows: int) -> None:
        super().__init__(problem, rows)
        ids, window = torch.from_numpy(self.reader.ids), self.reader.window
        padded = functional.pad(ids, (0, -len(ids) % window)).view(-1, window)
        begin = self.reader.teacher.begin
        self.batches = (padded if begin is None else functional.pad(padded, (1, 0), value=begin)).split(ROWS)

    def evaluate(self) -> float:
        """How many tokens of the text have a state that is a number."""
        found = torch.cat([self.reader.teacher.states(ids)[:, -self.reader.window :] for ids in self.batches])
        return float(found.flatten(0, 1)[: len(self.reader.ids)].isfinite().all(-1).sum())

    def step(self) -> None:
        """Read the text."""
        for ids_BT in self.batches:
            self.reader.teacher.states(ids_BT)


class Labelling(_Teaching):
    """As distillation labels a text: read, round each state to the nearest of the centres, write."""

    def __init__(self, problem: Problem, rows: int) -> None:
        super().__init__(problem, rows)
        draw = np.random.default_rng(problem.seed + 2)
        self.centres_SR = draw.standard_normal((problem.states, WIDTH), np.float32)
        codebook = Codebook(self.centres_SR, np.ones(problem.states, bool), None, None, {})
        self.labeller = Labeller(codebook, Blocks.of(None, problem.words, problem.states))

    def _labelled(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        with TemporaryDirectory() as folder:
            count, states = len(self.reader.ids), self.problem.states
            labels.write(self.reader, self.labeller, count, states, Path(folder), {}, before=None, quiet=True)
            found = labels.Labels.load(Path(folder), count)
            assert found is not None
            return np.array(found.values)

    def evaluate(self) -> float:
        """How many labels are the nearest centre, by all distances in double precision, or as near but for rounding."""
        labels_N, right = self._labelled(), 0
        for position, states_NR in self.reader.states(range(self.reader.windows)):
            distance_NS = torch.cdist(states_NR.double(), torch.from_numpy(self.centres_SR).double())
            given_N = distance_NS.gather(1, torch.from_numpy(labels_N[position]).long()[:, None])[:, 0]
            right += int((given_N <= distance_NS.amin(1) * (1 + 1e-5)).sum())
        return float(right)

    def step(self) -> None:
        """Label the text."""
        self._labelled()
