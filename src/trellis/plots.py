"""Pictures of what a model makes of a sentence, for notebooks: its path through the states, and its beliefs.

They need matplotlib (`pip install 'trellis-lm[plots]'`), and return its axes, so that you can change or save them:
`trellis.plots.path(model, tokenizer, "returns a list").figure.savefig("path.png")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trellis.errors import TrellisError
from trellis.inspection import state_names
from trellis.models import HMM
from trellis.text import Tokenizer
from trellis.text.lines import Line, read_lines, tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trellis.inference import Smoothed

SHOWN = 20  # states in a picture, unless told otherwise


@torch.no_grad()
def path(
    model: HMM,
    tokenizer: Tokenizer,
    text: str,
    *,
    k: int = 1,
    words: int = 3,
    eos: bool = True,
    state: torch.Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the k most probable state paths of a text, the best one boldest; `<mask>` is a missing word.

    A row is a state that a path visits, named by its foremost words; `state` is where the text goes on from.
    """
    line = _read(text, tokenizer, eos)
    ids_BT, _, missing_BT = tensors([line], model.device)
    best = model.k_best(ids_BT, k, state, missing_BT=missing_BT)
    paths = [states for states in best.states_BKT[0].cpu().tolist() if states[0] >= 0]  # fewer, if there are fewer
    if not paths:
        raise TrellisError("no path of states can emit this text: change a word, or see trellis.HMM.score.")
    visited = sorted({state for states in paths for state in states})
    axes = _axes(ax, len(line.ids), len(visited))
    for number, states in reversed(list(enumerate(paths))):
        rows = [visited.index(one) for one in states]
        log_prob = float(best.log_prob_BK[0, number])
        axes.plot(range(len(rows)), rows, marker="o", alpha=1 / (1 + number), label=f"ln p = {log_prob:.2f}")
    if len(paths) > 1:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1])  # the best first
    axes.set_ylim(len(visited) - 0.5, -0.5)
    axes.set_xlim(-0.5, len(line.ids) - 0.5)
    _name(axes, line, model, tokenizer, visited, words)
    return axes


@torch.no_grad()
def beliefs(
    model: HMM,
    tokenizer: Tokenizer,
    text: str,
    *,
    states: int = SHOWN,
    words: int = 3,
    eos: bool = True,
    state: torch.Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw p(state | the whole text) at each token as shades, of the states that take most part.

    A row is a state, named by its foremost words, those that take more part first. `<mask>` is a missing word.
    """
    line = _read(text, tokenizer, eos)
    ids_BT, _, missing_BT = tensors([line], model.device)
    found = model.smooth(ids_BT, state, missing_BT=missing_BT)
    if not bool(torch.isfinite(found.log_prob_BT.sum())):
        raise TrellisError("no path of states can emit this text: change a word, or see trellis.HMM.score.")
    usage_S = found.usage(model.config.states)
    _, states_N = usage_S.topk(min(states, int((usage_S > 0).sum())))
    axes = _axes(ax, len(line.ids), len(states_N))
    shades_NT = _posteriors(found, states_N).cpu().numpy()
    image = axes.imshow(shades_NT, aspect="auto", cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    axes.figure.colorbar(image, ax=axes, label="p(state | text)")
    _name(axes, line, model, tokenizer, states_N.cpu().tolist(), words)
    return axes


def _posteriors(found: Smoothed, states_N: torch.Tensor) -> torch.Tensor:
    """p(state | text) of some states at each token of the one row, N×T."""
    posterior_TJ, states_TJ = found.posterior_BTS[0], found.states_BTS[0]
    return torch.stack([torch.where(states_TJ == state, posterior_TJ, 0.0).sum(1) for state in states_N])


def _read(text: str, tokenizer: Tokenizer, eos: bool) -> Line:
    (line,) = read_lines([text], tokenizer, eos)
    if not line.ids:
        raise TrellisError("there is nothing to draw in an empty text: give one with a word in it.")
    return line


def _axes(ax: Axes | None, columns: int, rows: int) -> Axes:
    """These axes, or fresh ones with room for so many tokens and states."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise TrellisError("plots need matplotlib: pip install 'trellis-lm[plots]'.") from None
    size = (2.5 + 0.7 * columns, 1.2 + 0.3 * rows)
    axes: Axes = pyplot.subplots(figsize=size, layout="constrained")[1]
    return axes


def _name(axes: Axes, line: Line, model: HMM, tokenizer: Tokenizer, states: Sequence[int], words: int) -> None:
    """Tokens below, states with their foremost words at the side."""
    names = [""] * len(states) if words == 0 else state_names(model, tokenizer, states, words)
    axes.set_xticks(range(len(line.ids)), _plain(line.spelling(tokenizer)), rotation=45, ha="right")
    named = [f"{state}  {name}".rstrip() for state, name in zip(states, names, strict=True)]
    axes.set_yticks(range(len(states)), _plain(named))
    axes.set_ylabel("state")


def _plain(labels: list[str]) -> list[str]:
    """Labels in which a dollar sign is a dollar sign, and not the beginning of a formula."""
    return [label.replace("$", r"\$") for label in labels]
