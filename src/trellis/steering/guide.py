"""Guide a causal language model to texts that meet a constraint, by an HMM that knows what is still to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from trellis.automata import Automaton
from trellis.errors import InputError, TrellisError
from trellis.progress import counted, waiting
from trellis.steering import language_models, particles
from trellis.steering.goals import Compilable, Goal, automaton_of
from trellis.steering.guidance import Guidance, Prompt

if TYPE_CHECKING:
    from trellis.models.hmm import HMM
    from trellis.text import Tokenizer

Constraint = Compilable | Automaton


class Guide:
    """Multiplies a language model's next-token probabilities by an HMM's p(the constraint will be met | text, token).

    constraint   of all texts, or one for each prompt; also an automaton over the HMM's tokens
    tokens       the most that a text may have, its end token included
    weight       the power of the HMM's probability. What makes the constraint impossible is impossible whatever the
                 weight, so that a very small one only forbids; 0 leaves the language model alone
    ended        texts must end by the end token; else they may also be cut off at `tokens`, if they then meet theirs
    with_prompt  the constraint is on prompt and text together; else on the text alone
    beginning    the HMM's state in which prompts begin, as of `Pretrained.after_eos()`; None: its start distribution

    The HMM is put into evaluation mode. It and its tokenizer must have the language model's vocabulary. The constraint
    sees the text alone, so that its first word is one even where the prompt ends within a word.
    """

    def __init__(
        self,
        hmm: HMM,
        tokenizer: Tokenizer,
        constraint: Constraint | Sequence[Constraint],
        tokens: int = 32,
        *,
        weight: float = 1.0,
        ended: bool = False,
        with_prompt: bool = False,
        beginning: Tensor | None = None,
    ) -> None:
        if tokens < 1:
            raise InputError(f"a text of {tokens} tokens is none: give tokens=1 or more.")
        if not hasattr(hmm, "predicted"):
            raise InputError(f"a {type(hmm).__name__} cannot look ahead: guide by an HMM.")
        if not 0 <= weight < float("inf"):
            raise InputError(f"a weight of {weight} is none: give 0 or more.")
        self.hmm, self.tokenizer, self.tokens = hmm.eval(), tokenizer, tokens
        self.weight, self.with_prompt, self.beginning = weight, with_prompt, beginning
        given = list(constraint) if isinstance(constraint, list | tuple) else [cast(Constraint, constraint)]
        if not given:
            raise InputError("no constraint is given: give one for all prompts, or one for each.")
        goals: dict[tuple[object, ...], Goal] = {}  # what comes to the same automaton shares its messages
        self.goals = []
        for number, one in enumerate(given, 1):
            automaton = self._automaton(one, number, len(given), ended)
            tables = (automaton.next_QC, automaton.class_V, automaton.accepting_Q)
            key = (*(table.tobytes() for table in tables), automaton.start, automaton.end)
            self.goals.append(goals.setdefault(key, Goal(hmm, automaton, tokens)))

    def __repr__(self) -> str:
        distinct = len({id(goal) for goal in self.goals})
        return f"Guide({counted(distinct, 'constraint')}, up to {counted(self.tokens, 'token')}, {self.hmm!r})"

    def processor(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        bos_token_id: int | None = None,
        ends: Sequence[int] = (),
    ) -> Guidance:
        """A logits processor for one call of `generate` with these prompts, padded at the left.

        Tokens that the mask hides, and a beginning-of-text token other than the end token, are not read by the HMM,
        which never saw them. If the language model ends texts by other tokens than the tokenizer's end token, as by one
        that begins the next text, these are its `ends`: they are taken for the end token.
        """
        if input_ids.dim() != 2 or not len(input_ids):
            raise InputError(f"ids of shape {tuple(input_ids.shape)} are no prompts: give rows of tokens, B×T.")
        seen_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        unread = None if bos_token_id == self.tokenizer.eos_id else bos_token_id
        read = [
            [token for token, seen in zip(row, mask, strict=True) if seen and token != unread]
            for row, mask in zip(input_ids.tolist(), seen_BT.tolist(), strict=True)
        ]
        goals = self._goals(len(read))
        prompts = [
            self._prompt(ids, goal, number) for number, (ids, goal) in enumerate(zip(read, goals, strict=True), 1)
        ]
        length, eos = input_ids.shape[1], self.tokenizer.eos_id
        return Guidance(self.hmm, prompts, length, eos=eos, ends=ends, weight=self.weight, beginning=self.beginning)

    def generate(
        self,
        language_model: Any,
        prompts: str | Sequence[str],
        *,
        tokenizer: Any = None,
        particles: int | None = None,
        **options: Any,
    ) -> list[str]:
        """Texts that go on from prompts and meet their constraints; with `with_prompt`, prompt and text.

        `tokenizer` is the language model's own; by default, that of the folder it was loaded from. The options are
        those of `language_model.generate`: `num_beams=4`, `do_sample=True` and so on. With `particles`, each text is
        one of so many that are drawn together and weighed, so that the more there are, the nearer texts come to draws
        from the language model given that the constraint is met; the options are then `temperature` and `generator`.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        batch = language_models.prompts_of(language_model, tokenizer, prompts, self.tokenizer)
        ids = self.generate_ids(language_model, batch, particles=particles, **options)
        each = len(ids) // max(1, len(prompts))
        before = [batch.read(number // each) if self.with_prompt else [] for number in range(len(ids))]
        return [self.tokenizer.decode(first + rest) for first, rest in zip(before, ids, strict=True)]

    def generate_ids(
        self, language_model: Any, batch: language_models.Prompts, *, particles: int | None = None, **options: Any
    ) -> list[list[int]]:
        """The tokens of the texts, without prompts and end tokens."""
        guidance = self.processor(batch.ids_BT, batch.mask_BT, batch.bos, batch.ends)
        if particles is not None:
            found_BT = self._drawn(language_model, batch, guidance, particles, options)
        else:
            with waiting("generating"):
                found_BT = language_models.generate(language_model, batch, guidance, options)
        return [_until(row, self.tokenizer.eos_id) for row in found_BT.tolist()]

    def _drawn(
        self, model: Any, batch: language_models.Prompts, guidance: Guidance, count: int, options: dict[str, Any]
    ) -> Tensor:
        if unknown := sorted(set(options) - {"temperature", "generator"}):
            raise InputError(
                f"particles know nothing of {unknown[0]}: leave it out; they take temperature and generator."
            )
        return particles.draw_texts(model, batch, guidance, count, **options)

    def _automaton(self, constraint: Constraint, number: int, count: int, ended: bool) -> Automaton:
        try:
            return automaton_of(constraint, self.tokenizer, ended)
        except TrellisError as error:
            if count == 1:
                raise
            raise type(error)(f"the constraint of prompt {number}: {error}") from error

    def _goals(self, rows: int) -> list[Goal]:
        """One for each prompt."""
        if len(self.goals) == 1:
            return self.goals * rows
        if len(self.goals) != rows:
            raise InputError(f"{rows} prompts have {len(self.goals)} constraints: give one for all, or one for each.")
        return self.goals

    def _prompt(self, ids: list[int], goal: Goal, number: int) -> Prompt:
        """A prompt, and where the automaton stands after it if it is to read it."""
        automaton = goal.automaton
        state = automaton.run(ids) if self.with_prompt else automaton.start
        if self.with_prompt and automaton.alive_Q[automaton.start] and not automaton.alive_Q[state]:
            raise TrellisError(f"prompt {number} already breaks its constraint: change one of the two.")
        return Prompt(ids, goal, state)


def _until(tokens: list[int], eos: int | None) -> list[int]:
    """The tokens before the end token."""
    return tokens[: tokens.index(eos)] if eos is not None and eos in tokens else tokens
