"""What an HMM says to a language model at each token: a logits processor of the transformers library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.steering.goals import Goal, log_met

if TYPE_CHECKING:
    from trellis.models.hmm import HMM


class Row(NamedTuple):
    """A text under way: which prompt it goes on from, and the tokens since."""

    prompt: int
    tokens: tuple[int, ...]


class Prompt(NamedTuple):
    """What the HMM reads of a prompt, what is asked of the text, and the automaton's state in which the text begins."""

    ids: list[int]
    goal: Goal
    state: int


class _Known(NamedTuple):
    """Texts that were followed: where each is, the HMM's state after it, and the automaton's."""

    place: dict[Row, int]
    carried_NS: Tensor
    states: list[int]


class Guidance:
    """Adds weight · log p(the constraint will be met | text, token) to the scores of a language model.

    From the second token on, log p(the constraint will be met | text) is taken away again, which changes no
    distribution; so the score that a beam adds up is log p(text) + weight · log p(met | text), and that of a complete
    text is the language model's own. Rows whose text has ended are left as they are. Where the language model ends
    texts by further tokens (`ends`), what it gives to these is the end token's.

    Only the rows of the last step are remembered, by their tokens: beams may be reordered as they like.
    """

    @torch.no_grad()
    def __init__(
        self,
        hmm: HMM,
        prompts: Sequence[Prompt],
        prompt_length: int,
        *,
        eos: int | None,
        ends: Sequence[int] = (),
        weight: float = 1.0,
        beginning: Tensor | None = None,
    ) -> None:
        self.hmm, self.prompts, self.prompt_length = hmm, list(prompts), prompt_length
        self.eos, self.weight, self.beginning = eos, weight, beginning
        self.ends = [token for token in ends if token != eos] if eos is not None else []
        self.tokens = self.prompts[0].goal.tokens
        self._known = self._read([Row(prompt, ()) for prompt in range(len(self.prompts))])
        predicted_BS = hmm.predicted(len(self.prompts), self._known.carried_NS)
        for number, (prompt, predicted_S) in enumerate(zip(self.prompts, predicted_BS, strict=True), 1):
            if why := prompt.goal.refusal(predicted_S[None], prompt.state):
                raise TrellisError(f"the constraint of prompt {number} {why}.")

    def __len__(self) -> int:
        """How many texts are remembered."""
        return len(self._known.place)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores of every next token, guided."""
        rows = self._rows(input_ids)
        running = [number for number, row in enumerate(rows) if self._runs(row)]
        scores = self._with_one_end(scores, running)
        if self.weight == 0:
            return scores
        left = self.tokens - (input_ids.shape[1] - self.prompt_length)
        if not running or (left <= 0 and self.eos is None):
            return scores
        distinct = {rows[number]: None for number in running}  # a set that keeps the order
        say_NV = self._say(list(distinct), left) if left > 0 else self._only_end(len(distinct))
        if len(distinct) < len(running):
            place = _places(distinct)
            say_NV = say_NV[[place[rows[number]] for number in running]]
        return _added(scores, running, say_NV.to(scores))

    def _rows(self, input_ids: Tensor) -> list[Row]:
        """Each row's prompt and tokens; transformers puts the rows of a prompt next to each other."""
        each, rest = divmod(len(input_ids), len(self.prompts))
        if rest or input_ids.shape[1] < self.prompt_length:
            raise TrellisError(
                f"{len(input_ids)} rows of {input_ids.shape[1]} tokens do not go on from {len(self.prompts)} prompts "
                f"of {self.prompt_length}: make a processor from the ids that are given to generate."
            )
        generated = input_ids[:, self.prompt_length :].tolist()
        return [Row(number // each, tuple(tokens)) for number, tokens in enumerate(generated)]

    def _with_one_end(self, scores: Tensor, running: list[int]) -> Tensor:
        """The scores where running rows can end by the end token alone, as likely as by any before."""
        if not self.ends or not running:
            return scores
        scores, rows_N1 = scores.clone(), torch.tensor(running, device=scores.device)[:, None]
        ends_K = torch.tensor([self.eos, *self.ends], device=scores.device)
        log_end_N = scores[rows_N1, ends_K].logsumexp(1)
        scores[rows_N1, ends_K] = -torch.inf
        scores[rows_N1[:, 0], ends_K[0]] = log_end_N
        return scores

    def _runs(self, row: Row) -> bool:
        """Whether the text can go on: a beam without a possible token may take one that the HMM does not even know."""
        return self.eos not in row.tokens and max(row.tokens, default=0) < self.hmm.config.vocab_size

    def _say(self, rows: list[Row], left: int) -> Tensor:
        """What is added to the scores of distinct rows, N×V."""
        self._known = self._follow(rows)
        predicted_NS = self.hmm.predicted(len(rows), self._known.carried_NS)
        state_N = torch.tensor(self._known.states, device=self.hmm.device)
        numbers: dict[Goal, list[int]] = {}  # the rows of each goal
        for number, row in enumerate(rows):
            numbers.setdefault(self.prompts[row.prompt].goal, []).append(number)
        asked = [(goal, predicted_NS[some], state_N[some]) for goal, some in numbers.items()]
        parts = []
        for log_met_MV, log_before_M in log_met(asked, left):
            if left < self.tokens:
                log_met_MV -= log_before_M[:, None]
            parts.append(log_met_MV if self.weight == 1.0 else log_met_MV.mul_(self.weight))
        if len(parts) == 1:
            return parts[0]
        order = torch.tensor([number for some in numbers.values() for number in some], device=self.hmm.device)
        return torch.cat(parts)[order.argsort()]

    def _only_end(self, rows: int) -> Tensor:
        """Past the last token a text can only end."""
        assert self.eos is not None
        say_NV = torch.full((rows, self.hmm.config.vocab_size), -torch.inf)
        say_NV[:, self.eos] = 0.0
        return say_NV

    def _follow(self, rows: list[Row]) -> _Known:
        """Where distinct rows stand: as remembered, one token on from what is remembered, or read from their start."""
        old = self._known
        if all(row in old.place for row in rows):
            return _some(old, rows)
        before = [Row(row.prompt, row.tokens[:-1]) for row in rows]
        strangers = [row for row, parent in zip(rows, before, strict=True) if parent not in old.place]
        if strangers:
            return self._read(rows)
        parents = _some(old, before)
        last = [row.tokens[-1] for row in rows]
        carried_NS = self.hmm.score(self._ids([last]).T.contiguous(), parents.carried_NS)[1]
        states = [
            self.prompts[row.prompt].goal.automaton.step(state, token)
            for row, state, token in zip(rows, parents.states, last, strict=True)
        ]
        return _Known(_places(rows), carried_NS, states)

    def _read(self, rows: list[Row]) -> _Known:
        """Read prompts and tokens from their start."""
        texts = [self.prompts[row.prompt].ids + list(row.tokens) for row in rows]
        longest = max(map(len, texts))
        ids_NT = self._ids([text + [0] * (longest - len(text)) for text in texts])
        lengths_N = torch.tensor([len(text) for text in texts], device=self.hmm.device)
        first = None if self.beginning is None else self.beginning.expand(len(rows), -1)
        states = []
        for row in rows:
            prompt = self.prompts[row.prompt]
            states.append(prompt.goal.automaton.run(row.tokens, prompt.state))
        return _Known(_places(rows), self.hmm.score(ids_NT, first, lengths_N)[1], states)

    def _ids(self, ids: list[list[int]]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.hmm.device)


def _places(rows: Iterable[Row]) -> dict[Row, int]:
    return {row: number for number, row in enumerate(rows)}


def _some(known: _Known, rows: list[Row]) -> _Known:
    """Rows that are remembered, in this order."""
    places = [known.place[row] for row in rows]
    return _Known(_places(rows), known.carried_NS[places], [known.states[place] for place in places])


def _added(scores: Tensor, running: list[int], say_NV: Tensor) -> Tensor:
    """The scores with what is said of the running rows; tokens that the HMM does not know are impossible there."""
    width = min(scores.shape[1], say_NV.shape[1])
    if len(running) == len(scores) and width == scores.shape[1]:
        return scores + say_NV[:, :width]
    scores = scores.clone()
    guided_NV = scores.new_full((len(running), scores.shape[1]), -torch.inf)
    guided_NV[:, :width] = scores[running, :width] + say_NV[:, :width]
    scores[running] = guided_NV
    return scores
