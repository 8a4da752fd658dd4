"""`trellis sample`: sentences the model makes up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli.terminal import Bos, Device, Json, Model, Threads, load, print_json, say
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from torch import Tensor

    from trellis.models.pretrained import Pretrained

EXAMPLE = "Example:\n\ntrellis sample runs/pydocs-64 --prompt 'return the' --count 5 --seed 1"


def run(
    model: Model,
    count: Annotated[int, typer.Option(min=1, help="How many sentences.")] = 3,
    length: Annotated[int, typer.Option(min=1, help="Most tokens to draw; a sentence may end sooner.")] = 40,
    prompt: Annotated[str, typer.Option(help="Go on from these words.")] = "",
    bos: Bos = True,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Draw the same again. (default: another each time)")
    ] = None,
    json: Json = False,
    threads: Threads = None,
    device: Device = "auto",
) -> None:
    """Draw sentences from the model, each up to its end or to --length tokens."""
    import torch

    loaded = load(model, device)
    hmm = loaded.answering("sample")
    generator = torch.Generator()
    seed = generator.seed() % 2**32 if seed is None else seed
    generator.manual_seed(seed)
    given = loaded.tokenizer.encode(prompt)
    state = _belief(loaded, given, loaded.after_eos() if bos else None)
    drawn = hmm.sample(
        count, length, None if state is None else state.expand(count, -1), loaded.tokenizer.eos_id, generator
    )
    rows = zip(*(tensor.cpu().tolist() for tensor in (drawn.tokens_BT, drawn.states_BT, drawn.lengths_B)), strict=True)
    for tokens, states, size in rows:
        ids = tokens[:size]
        ended = ids[-1] == loaded.tokenizer.eos_id
        text = loaded.tokenizer.decode(given + (ids[:-1] if ended else ids))
        if json:
            print_json({"text": text, "ended": ended, "ids": ids, "states": states[:size], "seed": seed})
        else:
            print(text.replace("\n", " "))


def _belief(loaded: Pretrained, given: list[int], begin: Tensor | None) -> Tensor | None:
    """The belief after the prompt, if there is one."""
    if not given:
        return begin
    import torch

    if unknown := given.count(-1 if loaded.tokenizer.unk_id is None else loaded.tokenizer.unk_id):
        say(f"{unknown} of the prompt's {len(given)} words are unknown to the model and read as <unk>")
    with torch.no_grad():
        log_prob_BT, state = loaded.model.score(torch.tensor([given], device=loaded.model.device), begin)
    if bool((log_prob_BT == -torch.inf).any()):
        raise TrellisError("the model gives the prompt no probability, so nothing can follow it: change the prompt.")
    return state
