"""`trellis sample`: sentences the model makes up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli.terminal import (
    MANY,
    Bos,
    Device,
    Json,
    Model,
    Seed,
    Threads,
    beginning,
    load,
    print_json,
    say_unknown_in,
)
from trellis.errors import TrellisError
from trellis.progress import counted, waiting

if TYPE_CHECKING:
    from torch import Tensor

    from trellis.models.pretrained import Pretrained

EXAMPLE = "Example:\n\ntrellis sample runs/pydocs-64 --prompt 'return the' --count 5 --seed 1"


def run(
    model: Model,
    count: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="How many sentences.")] = 3,
    length: Annotated[
        int, typer.Option(min=1, max=MANY, metavar="N", help="Most tokens to draw; a sentence may end sooner.")
    ] = 40,
    prompt: Annotated[str, typer.Option(help="Go on from these words.")] = "",
    bos: Bos = None,
    seed: Seed = 0,
    json: Json = False,
    threads: Threads = None,
    device: Device = "auto",
) -> None:
    """Draw sentences from the model, each up to its end or to --length tokens."""
    import torch

    loaded = load(model, device)
    generator = torch.Generator().manual_seed(seed)
    given = loaded.tokenizer.encode(prompt)
    state = _belief(loaded, prompt, given, beginning(loaded, bos))
    first = None if state is None else state.expand(count, -1)
    with waiting(f"drawing {counted(count, 'sentence')}"):
        drawn = loaded.model.sample(count, length, first, loaded.tokenizer.eos_id, generator)
    rows = zip(*(tensor.cpu().tolist() for tensor in (drawn.tokens_BT, drawn.states_BT, drawn.lengths_B)), strict=True)
    for tokens, states, size in rows:
        ids = tokens[:size]
        ended = ids[-1] == loaded.tokenizer.eos_id
        text = loaded.tokenizer.decode(given + (ids[:-1] if ended else ids))
        if json:
            known = {"states": states[:size]} if min(states[:size]) >= 0 else {}
            print_json({"text": text, "ended": ended, "ids": ids, **known, "seed": seed})
        else:
            print(text.replace("\n", " "))


def _belief(loaded: Pretrained, prompt: str, given: list[int], begin: Tensor | None) -> Tensor | None:
    """The belief after the prompt, if there is one."""
    if not given:
        return begin
    import torch

    say_unknown_in(loaded, prompt)
    with torch.no_grad():
        log_prob_BT, state = loaded.model.score(torch.tensor([given], device=loaded.model.device), begin)
    if bool((log_prob_BT == -torch.inf).any()):
        raise TrellisError("the model gives the prompt no probability, so nothing can follow it: change the prompt.")
    return state
