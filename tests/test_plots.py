"""What is drawn: the right labels, the right numbers."""

import builtins

import numpy as np
import pytest
import torch

from trellis import TrellisError, plots
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition
from trellis.text import WordTokenizer

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  # after the backend is chosen

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "$x$"])
TEXT = "a b $x$ a"


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def dense():
    return HMM(HMMConfig(5, states=4, init_scale=2.0), seed=1).eval()


def blocked():
    support = partition(torch.tensor([0, 0, 1, 0, 1]), 6, 2)
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 4}
    return HMM(HMMConfig(5, states=6, support="brown", blocks=2, **parts), seed=1, support=support).eval()


def remembering():
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 4}
    return HMM(HMMConfig(5, states=4, memory=1, **parts), seed=1).eval()


every_model = pytest.mark.parametrize("model", [dense(), blocked(), remembering()], ids=["dense", "blocked", "memory"])


def labels(ticks):
    return [tick.get_text() for tick in ticks]


def name(model, state, words=3):
    probabilities = model.emission_rows(torch.tensor([state]))[0]
    best = [id for id in probabilities.argsort(descending=True).tolist()[:words] if probabilities[id] > 0]
    return f"{state}  {' '.join(WORDS.token(id) for id in best)}".replace("$", r"\$")


def ids():
    return torch.tensor([[*WORDS.encode(TEXT), WORDS.eos_id]])


@every_model
def test_the_path_that_viterbi_finds(model):
    axes = plots.path(model, WORDS, TEXT)
    states = model.viterbi(ids()).states_BT[0].tolist()
    visited = sorted(set(states))
    assert labels(axes.get_xticklabels()) == ["a", "b", r"\$x\$", "a", "<eos>"]
    assert labels(axes.get_yticklabels()) == [name(model, state) for state in visited]
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert [visited[int(row)] for row in line.get_ydata()] == states
    assert axes.get_ylim() == (len(visited) - 0.5, -0.5)  # the first row is on top, and nothing is cut off
    axes.figure.canvas.draw()  # labels with dollars are no formulas


def test_several_paths_the_best_last_and_boldest():
    model = dense()
    axes = plots.path(model, WORDS, TEXT, k=3, words=0)
    best = model.k_best(ids(), 3)
    visited = [int(label) for label in labels(axes.get_yticklabels())]
    lines = axes.get_lines()[::-1]
    assert [[visited[int(row)] for row in line.get_ydata()] for line in lines] == best.states_BKT[0].tolist()
    assert [line.get_alpha() for line in lines] == [1, 1 / 2, 1 / 3]
    said = [f"ln p = {log_prob:.2f}" for log_prob in best.log_prob_BK[0].tolist()]
    assert labels(axes.get_legend().get_texts()) == said


@every_model
def test_beliefs_are_the_posteriors_of_the_most_used_states(model):
    axes = plots.beliefs(model, WORDS, "a <mask> b", eos=False)
    given, gap = torch.tensor([[2, 0, 3]]), torch.tensor([[False, True, False]])
    found = model.smooth(given, missing_BT=gap)
    posterior_ST = torch.zeros(model.config.states, 3).scatter_add(0, found.states_BTS[0].T, found.posterior_BTS[0].T)
    order = posterior_ST.sum(1).argsort(descending=True)
    order = order[posterior_ST.sum(1)[order] > 0]
    (image,) = axes.get_images()
    np.testing.assert_allclose(np.asarray(image.get_array()), posterior_ST[order].numpy(), atol=1e-6)
    assert labels(axes.get_xticklabels()) == ["a", "<mask>", "b"]
    assert labels(axes.get_yticklabels()) == [name(model, int(state)) for state in order]
    assert image.get_clim() == (0.0, 1.0)


def test_fewer_states_and_axes_of_your_own():
    own = pyplot.subplots()[1]
    axes = plots.beliefs(dense(), WORDS, TEXT, states=2, ax=own)
    assert axes is own
    assert len(axes.get_yticklabels()) == 2
    assert plots.path(dense(), WORDS, TEXT, ax=own) is own


def test_a_text_that_goes_on():
    model = dense()
    _, state = model.score(torch.tensor([[1]]))
    axes = plots.beliefs(model, WORDS, "a b", eos=False, words=0, state=state)
    order = [int(label) for label in labels(axes.get_yticklabels())]
    want = model.smooth(torch.tensor([[2, 3]]), state).posterior_BTS[0].T[order]
    np.testing.assert_allclose(np.asarray(axes.get_images()[0].get_array()), want.numpy(), atol=1e-6)


@pytest.mark.parametrize("draw", [plots.path, plots.beliefs])
def test_what_cannot_be_drawn(draw, monkeypatch):
    with pytest.raises(TrellisError, match="empty text"):
        draw(dense(), WORDS, "", eos=False)
    never = HMM(HMMConfig(5, states=2))
    emission = torch.tensor([[0.25, 0.25, 0.5, 0.0, 0.0]] * 2)
    never.set_tables(torch.tensor([0.5, 0.5]), torch.full((2, 2), 0.5), emission)
    with pytest.raises(TrellisError, match="no path of states"):
        draw(never.eval(), WORDS, "a b")
    importing = builtins.__import__

    def without(module, *more):
        if module.startswith("matplotlib"):
            raise ImportError(module)
        return importing(module, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TrellisError, match=r"pip install 'trellis-lm\[plots\]'"):
        draw(dense(), WORDS, TEXT)
