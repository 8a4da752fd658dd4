"""`trellis decode`: the hidden states behind sentences."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from trellis.cli import terminal
from trellis.cli.terminal import MANY
from trellis.errors import TrellisError

if TYPE_CHECKING:
    import torch

    from trellis.inspection import StateWords
    from trellis.models import HMM
    from trellis.text.lines import Line

EXAMPLE = (
    "Examples:\n\necho 'the cat sat' | trellis decode runs/pydocs-64 --tokens\n\n"
    "trellis decode runs/ptb-512 a.txt --posterior --entropy --json"
)
HEADS = {"paths": ["ln p"], "posterior": [], "samples": ["draw"]}


def run(
    model: terminal.Model,
    files: terminal.Files = None,
    k: Annotated[
        int, typer.Option("--k", min=1, max=MANY, metavar="N", help="How many of the most probable paths.")
    ] = 1,
    posterior: Annotated[
        bool, typer.Option("--posterior", help="The most probable state at each position, with its probability.")
    ] = False,
    samples: Annotated[
        int, typer.Option(min=0, max=MANY, metavar="N", help="Draw so many paths from the posterior instead.")
    ] = 0,
    entropy: Annotated[
        bool, typer.Option("--entropy", help="Also how unsure the path is: its posterior's entropy in nats.")
    ] = False,
    words: Annotated[
        int,
        typer.Option(min=0, max=MANY, metavar="N", help="How many of each state's foremost words to print with it."),
    ] = 3,
    tokens: Annotated[bool, typer.Option("--tokens", help="A row for every token.")] = False,
    seed: terminal.Seed = 0,
    bos: terminal.Bos = None,
    eos: terminal.Eos = True,
    split: terminal.Split = "test",
    json: terminal.Json = False,
    threads: terminal.Threads = None,
    device: terminal.Device = "auto",
    data_dir: terminal.DataDir = None,
) -> None:
    """Print the most probable state path of each line (Viterbi) as word/state[the state's foremost words].

    Columns are separated by tabs; ln p is that of the path and the words together. A word written `<mask>` is missing.
    """
    if (k > 1) + posterior + (samples > 0) > 1:
        raise TrellisError("--k, --posterior and --samples are different questions: ask one at a time.")
    import torch

    from trellis.cli.lines import Reading
    from trellis.inspection import StateWords

    reading = Reading.open(model, files, split, data_dir, device, eos, "decoding")
    loaded = reading.loaded
    kind = "posterior" if posterior else "samples" if samples else "paths"
    hmm = loaded.answering("k_best", "smooth", "sample_posterior", "entropy", "emission_rows")
    generator = torch.Generator().manual_seed(seed)
    ask = _Question(hmm, kind, samples or k, entropy, generator, terminal.beginning(loaded, bos))
    shown = _Shown(kind, tokens, StateWords(hmm, loaded.tokenizer, words) if words else None)
    if not json:
        shown.print_heading(entropy)
    for group in reading.groups():
        for line, answer in _answers(ask, group):
            spelt = line.spelling(loaded.tokenizer)
            if json:
                named = {kind: [shown.named(path) for path in answer[kind]]}
                terminal.print_json({"line": line.number, "text": line.text, "tokens": spelt, **answer, **named})
            else:
                shown.print(line, spelt, answer)
        if sys.stdin.isatty():
            sys.stdout.flush()


class _Question(NamedTuple):
    model: HMM
    kind: str  # paths, posterior or samples
    number: int
    entropy: bool
    generator: torch.Generator
    begin: torch.Tensor | None


def _answers(ask: _Question, group: list[Line]) -> Iterator[tuple[Line, dict[str, Any]]]:
    """What to say of each line; an empty one has the empty path."""
    from trellis.text.lines import tensors

    found: dict[int, dict[str, Any]] = {line.number: {ask.kind: []} for line in group}
    if full := [line for line in group if line.ids]:
        ids_BT, lengths_B, missing_BT = tensors(full, ask.model.device)
        state = None if ask.begin is None else ask.begin.expand(len(full), -1)
        evidence = {"state": state, "lengths_B": lengths_B, "missing_BT": missing_BT}
        for line, paths in zip(full, _ask(ask, ids_BT, evidence, full), strict=True):
            found[line.number] = {ask.kind: paths}
        if ask.entropy:
            for line, nats in zip(full, ask.model.entropy(ids_BT, **evidence).cpu().tolist(), strict=True):
                found[line.number]["entropy"] = nats
    yield from ((line, found[line.number]) for line in group)


def _ask(
    ask: _Question, ids_BT: torch.Tensor, evidence: dict[str, Any], lines: list[Line]
) -> Iterator[list[dict[str, Any]]]:
    """Each line's paths."""
    if ask.kind == "paths":
        # More paths than there are come back as impossible ones, which are left out.
        best = ask.model.k_best(ids_BT, ask.number, **evidence)
        paths = best.log_prob_BK.cpu().tolist(), best.states_BKT.cpu().tolist()
        for line, log_probs, states in zip(lines, *paths, strict=True):
            pairs = [(p, path[: len(line.ids)]) for p, path in zip(log_probs, states, strict=True) if path[0] >= 0]
            yield [{"log_prob": p, "states": path} for p, path in pairs]
    elif ask.kind == "posterior":
        smoothed = ask.model.smooth(ids_BT, **evidence)
        probability_BT, state_BT = smoothed.most_probable()
        impossible_B = (smoothed.log_prob_BT.sum(-1) == -float("inf")).cpu().tolist()
        for row, line in enumerate(lines):
            probabilities, states = (x[row, : len(line.ids)].cpu().tolist() for x in (probability_BT, state_BT))
            yield [] if impossible_B[row] else [{"probabilities": probabilities, "states": states}]
    else:
        states_BNT = ask.model.sample_posterior(ids_BT, ask.number, **evidence, generator=ask.generator)
        for line, paths in zip(lines, states_BNT.cpu().tolist(), strict=True):
            yield [{"states": path[: len(line.ids)]} for path in paths if path[0] >= 0]


class _Shown(NamedTuple):
    """How paths are printed."""

    kind: str
    tokens: bool  # a row a token, or all of a path in one row
    names: StateWords | None

    def named(self, path: dict[str, Any]) -> dict[str, Any]:
        """The path, and the foremost words of each of its states."""
        return path if self.names is None else path | {"words": self.names.of(path["states"])}

    def print_heading(self, entropy: bool) -> None:
        cells = ["line", *HEADS[self.kind], *(["entropy"] if entropy else [])]
        if not self.tokens:
            terminal.print_row(*cells, "states")
            return
        probability, words = ["p"] * (self.kind == "posterior"), ["words"] * (self.names is not None)
        terminal.print_row(*cells, "token", "state", *probability, *words)

    def print(self, line: Line, spelt: list[str], answer: dict[str, Any]) -> None:
        entropy = [f"{answer['entropy']:.4f}"] if "entropy" in answer else []
        if not answer[self.kind] and spelt:
            said = "impossible: no path of states can emit this line; trellis score says which token"
            terminal.print_row(line.number, said)
        for draw, path in enumerate(answer[self.kind], start=1):
            head = [f"{path['log_prob']:.4f}"] if self.kind == "paths" else [str(draw)] * (self.kind == "samples")
            places = list(self._places(spelt, path))
            if not self.tokens:
                terminal.print_row(line.number, *head, *entropy, " ".join(map(_compact, places)))
                continue
            for place in places:
                terminal.print_row(line.number, *head, *entropy, *(cell for cell in place if cell is not None))

    def _places(self, spelt: list[str], path: dict[str, Any]) -> Iterator[_Place]:
        words = [None] * len(spelt) if self.names is None else map(" ".join, self.names.of(path["states"]))
        marks = path.get("probabilities") or [None] * len(spelt)
        for token, state, mark, name in zip(spelt, path["states"], marks, words, strict=True):
            yield _Place(token, state, None if mark is None else f"{mark:.2f}", name)


class _Place(NamedTuple):
    """A token of a line, as it is printed."""

    token: str
    state: int
    probability: str | None
    words: str | None


def _compact(place: _Place) -> str:
    name = "" if place.words is None else f"[{place.words}]"
    return f"{place.token}/{place.state}{name}" + ("" if place.probability is None else f":{place.probability}")
