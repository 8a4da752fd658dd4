"""`trellis score`: how probable sentences are."""

from __future__ import annotations

import math
import sys
from typing import Annotated, Literal

import typer

from trellis.cli import terminal
from trellis.progress import counted

EXAMPLE = (
    "Examples:\n\necho 'the cat sat' | trellis score runs/pydocs-64 --tokens\n\n"
    "trellis score runs/ptb-512 a.txt --base 10 --json"
)


def run(
    model: terminal.Model,
    files: terminal.Files = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Every token's log-probability.")] = False,
    base: Annotated[Literal["e", "2", "10"], typer.Option(help="Base of the logarithms.")] = "e",
    carry: Annotated[
        bool, typer.Option("--carry", help="Lines are one text, as `evaluate` reads it: remember the lines before.")
    ] = False,
    bos: terminal.Bos = None,
    eos: terminal.Eos = True,
    split: terminal.Split = "test",
    json: terminal.Json = False,
    threads: terminal.Threads = None,
    device: terminal.Device = "auto",
    data_dir: terminal.DataDir = None,
) -> None:
    """Print the log-probability of each line, its tokens and how many of them are unknown.

    Columns are separated by tabs, under a heading that says the base. A word written `<mask>` is missing: the score is
    that of the rest, summed over all it could have been.
    """
    from trellis.cli.lines import Reading, score_lines
    from trellis.evaluation import perplexity_of

    reading = Reading.open(model, files, split, data_dir, device, eos, "scoring")
    loaded = reading.loaded
    scale = 1 / {"e": 1.0, "2": math.log(2), "10": math.log(10)}[base]
    name = {"e": "ln p", "2": "log2 p", "10": "log10 p"}[base]
    if not json:
        terminal.print_row("line", "token", name) if tokens else terminal.print_row(name, "tokens", "unknown", "text")
    lines = scored = unknown = 0
    total = 0.0
    # One text begins where `evaluate` has it begin, unless told otherwise.
    begin = terminal.beginning(loaded, False if carry and bos is None else bos)
    for line, nats in score_lines(loaded.model, reading.watched(), carry, begin):
        scores = [scale * score for score in nats]
        log_prob = math.fsum(scores) if -math.inf not in scores else -math.inf
        lines, scored, unknown, total = lines + 1, scored + line.tokens, unknown + line.unknown, total + log_prob
        spelt = line.spelling(loaded.tokenizer) if tokens or log_prob == -math.inf else []
        if log_prob == -math.inf:
            first = scores.index(-math.inf)
            terminal.say(f"line {line.number}: the model gives '{spelt[first]}', token {first + 1}, no probability")
        if json:
            terminal.print_json(
                {"line": line.number, "log_prob": log_prob, "base": base, "tokens": line.tokens,
                 "unknown": line.unknown, "text": line.text}
                | ({"scores": [list(pair) for pair in zip(spelt, scores, strict=True)]} if tokens else {})
            )  # fmt: skip
        elif tokens:
            for token, score in zip(spelt, scores, strict=True):
                terminal.print_row(line.number, token, f"{score:.4f}")
        else:
            terminal.print_row(f"{log_prob:.4f}", line.tokens, line.unknown, line.text)
        if sys.stdin.isatty():
            sys.stdout.flush()
    summary = f"{counted(lines, 'line')}, {counted(scored, 'token')}, {unknown:,} unknown: {name} = {total:.4f}"
    if scored:
        summary += f", perplexity {terminal.figure(perplexity_of(-total / scale / scored))} a token"
    terminal.say(summary)
