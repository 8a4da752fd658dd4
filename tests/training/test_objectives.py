import itertools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.models.supports import partition, uniform_subsets
from trellis.text import BATCHINGS, Batch
from trellis.training import TrainingSettings, train
from trellis.training.learners import BaumWelchLearner, GradientLearner
from trellis.training.objectives import OBJECTIVES, joint, marginal
from trellis.training.settings import CompleteSettings

from .. import reference
from .runs import BLOCK_V, STATES, WORDS, blocked, make_model, run, settings, some_labels, text

V = WORDS.vocab_size
SUPPORTS = {"dense": None, "blocks": partition(BLOCK_V, 6, 2), "overlapping": uniform_subsets(V, 6, 3, seed=1)}
KINDS = [("dense", "scalar"), ("blocks", "scalar"), ("blocks", "hierarchical_scalar"), ("overlapping", "scalar")]
NAMES = {"dense": "dense", "blocks": "brown", "overlapping": "uniform"}


def model_of(support, transition="scalar", seed=0, **changes):
    config = HMMConfig(V, 6, NAMES[support], 2, transition=transition, **changes)
    return HMM(config, seed, SUPPORTS[support]).double()


def a_batch(support="dense", share=1.0, rows=12, time=30, seed=0):
    """Random words, each labelled by a state that may emit it; of these labels a share is given."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(V, (rows, time), generator=generator)
    lists_VK = torch.arange(6).expand(V, -1) if support == "dense" else SUPPORTS[support].lists()
    labels = lists_VK[ids].gather(2, torch.randint(lists_VK.shape[1], (rows, time, 1), generator=generator))[..., 0]
    given = torch.rand(rows, time, generator=generator) < share
    lengths = torch.randint(1, time + 1, (rows,), generator=generator)
    return Batch(ids, lengths, False, torch.where(given, labels, -1))


def counted(batches, states):
    """Starts, transitions and emissions of labelled batches; a carried row goes on from its last label."""
    start, transition = torch.zeros(states).double(), torch.zeros(states, states).double()
    emission, last = torch.zeros(states, V).double(), {}
    for batch in batches:
        for row, (ids, labels, length) in enumerate(zip(batch.ids, batch.labels, batch.lengths.tolist(), strict=True)):
            path = labels[:length].tolist()
            if batch.carried:
                transition[last[row], path[0]] += 1
            else:
                start[path[0]] += 1
            for a, b in itertools.pairwise(path):
                transition[a, b] += 1
            for word, state in zip(ids[:length].tolist(), path, strict=True):
                emission[state, word] += 1
            last[row] = path[-1]
    return start, transition, emission


def relative(count, smoothing=0.0):
    return (count + smoothing) / (count + smoothing).sum(-1, keepdim=True)


def nats_of(counts):
    """What labelled text costs at least: its entropy under relative counts."""
    return -sum(float(torch.special.xlogy(count, relative(count).nan_to_num()).sum()) for count in counts)


def learn(model, batches, **changes):
    """What a learner finds the batches to cost, before each of some updates from all of them."""
    settings = CompleteSettings(**({"objective": "joint"} | changes))
    learner = (BaumWelchLearner if settings.method == "baum_welch" else GradientLearner)(model, settings)
    while True:
        learnt = [learner.learn(batch, None) for batch in batches]
        yield sum(one.nats for one in learnt)
        learner.update(sum(one.tokens for one in learnt), 1.0)


# What it is


def test_marginal_is_the_score_of_the_tokens():
    model, batch = model_of("dense"), a_batch(share=0.5)
    found, want = marginal(model, batch, None), model.score(batch.ids, None, batch.lengths)
    assert_close(found, want, rtol=0, atol=0)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_joint_sums_over_the_paths_that_have_the_given_states(kind, share):
    model, batch = model_of(*kind).eval(), a_batch(kind[0], share, rows=4, time=5)
    log_start, log_transition, log_emission = (table.log() for table in model.tables())
    found = joint(model, batch, None)[0].detach()
    for row, length in enumerate(batch.lengths.tolist()):
        listed = reference.enumerate_paths(log_start, log_transition, log_emission.T[batch.ids[row, :length]])
        given = batch.labels[row, :length]
        agrees = ((given < 0) | (listed.paths_NT == given)).all(1)
        want = listed.log_joint_N[agrees].logsumexp(0)
        assert float(found[row].sum()) == pytest.approx(float(want))
        assert found[row, length:].eq(0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_label_more_costs_and_no_label_costs_nothing(kind):
    model, batch = model_of(*kind), a_batch(kind[0])
    order = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(3))
    shares = (0.0, 0.2, 0.5, 0.8, 1.0)
    partly = [Batch(batch.ids, batch.lengths, False, torch.where(order < s, batch.labels, -1)) for s in shares]
    found = [float(joint(model, part, None)[0].detach().sum()) for part in partly]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    assert found[0] == pytest.approx(float(marginal(model, batch, None)[0].detach().sum()), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_two_pieces_costs_what_it_does_whole(kind):
    model, whole = model_of(*kind), a_batch(kind[0], share=0.5)
    full = torch.full_like(whole.lengths, 12)
    pieces = [Batch(whole.ids[:, some], full, False, whole.labels[:, some]) for some in (slice(12), slice(12, 24))]
    first, state = joint(model, pieces[0], None)
    second, _ = joint(model, pieces[1], state.detach())
    want, _ = joint(model, Batch(whole.ids[:, :24], 2 * full, False, whole.labels[:, :24]), None)
    assert_close(torch.cat([first, second], 1), want)


# What is learnt by it


def take_counts(model, counts):
    """Make relative counts the parameters of a model of free logits."""
    start, transition, emission = counts
    with torch.no_grad():
        model.start.table.copy_(relative(start).log())
        model.transition.table.copy_(relative(transition).log())
        if model.config.transition == "hierarchical_scalar":
            model.transition.blocks.copy_(relative(transition.view(6, 2, 3).sum(2)).log())
        emission_VS = relative(emission).T.log()
        if model.support is not None:
            emission_VS = emission_VS.gather(1, model.support.lists())
        model.emission.table.copy_(emission_VS)


@pytest.mark.parametrize("kind", KINDS)
def test_where_all_states_are_given_counting_is_the_optimum(kind):
    """The joint likelihood is concave in free logits: a point without a gradient is the highest."""
    model, batch = model_of(*kind), a_batch(kind[0], rows=40, time=60)
    counts = counted([batch], 6)
    take_counts(model, counts)
    nats = -joint(model, batch, None)[0].sum()
    assert float(nats.detach()) == pytest.approx(nats_of(counts), rel=1e-12)
    for gradient in torch.autograd.grad(nats, list(model.parameters())):
        assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_what_counting_gives(kind):
    model, batch = model_of(*kind), a_batch(kind[0], rows=40, time=60)
    counts = counted([batch], 6)
    *_, nats = itertools.islice(learn(model, [batch], lr=0.1), 200)
    assert nats_of(counts) <= nats <= nats_of(counts) * (1 + 1e-4)
    for table, count in zip(model.eval().tables(), counts, strict=True):
        assert_close(table, relative(count), rtol=0, atol=0.02)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_baum_welch_has_the_smoothed_counts_after_one_update(smoothing):
    model, batches = model_of("dense"), [a_batch(seed=1), a_batch(seed=2)]
    counts = counted(batches, 6)
    found = learn(model, batches, method="baum_welch", smoothing=smoothing)
    next(found)
    nats = next(found)
    for table, count in zip(model.tables(), counts, strict=True):
        assert_close(table, relative(count, smoothing))
    assert (nats == pytest.approx(nats_of(counts))) == (smoothing == 0.0)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_run_of_baum_welch_has_the_smoothed_counts_after_one_update(batching, tmp_path):
    """Transitions from one batch into the next count as well, where streams carry their state."""
    labels = np.random.default_rng(0).integers(STATES, size=len(text(tmp_path / "cache")))
    chosen = settings(
        method="baum_welch", full_batch=True, epochs=1.0, objective="joint", batching=batching, smoothing=0.2
    )
    found = HMM.from_pretrained(run(tmp_path, chosen, labels=labels, valid=False).best)
    kind = BATCHINGS[batching]
    batches = list(kind(text(tmp_path / "cache"), batch_size=4, length=6, labels=labels).epoch(0))
    assert any(batch.carried for batch in batches) is (batching == "streams")
    for table, count in zip(found.tables(), counted(batches, STATES), strict=True):
        assert_close(table, relative(count, 0.2).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{"method": "baum_welch"}, {"method": "adamw", "lr": 0.1}], ids=["counts", "adamw"])
def test_partly_labelled_text_teaches_what_lies_between(changes):
    """By how improbable all labels are in the end: most without any, least with all of them."""
    whole, found = a_batch(rows=40, time=40), []
    for share in (0.0, 0.3, 0.7, 1.0):
        model, order = model_of("dense"), torch.rand(whole.ids.shape, generator=torch.Generator().manual_seed(8))
        partly = Batch(whole.ids, whole.lengths, False, torch.where(order < share, whole.labels, -1))
        list(itertools.islice(learn(model, [partly], **changes), 40))
        found.append(-float(joint(model, whole, None)[0].detach().sum()))
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(nats_of(counted([whole], 6)), rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_partial_labels_never_make_baum_welch_or_the_gradient_worse(kind):
    """Every update raises the likelihood of tokens and given states."""
    changes = {"method": "baum_welch", "smoothing": 0.0} if kind[0] == "dense" else {"lr": 0.02}
    found = list(itertools.islice(learn(model_of(*kind), [a_batch(kind[0], share=0.5)], **changes), 15))
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(found))
    assert found[-1] < found[0] - 1.0


def test_labelled_states_are_never_dropped(tmp_path):
    """A label names a state of the whole block, also where dropout leaves half of it."""
    labels = some_labels(text(tmp_path / "cache"), 16, BLOCK_V)
    chosen = settings(objective="joint", batching="streams", lr=0.01)
    found = run(tmp_path / "dropout", chosen, make=blocked, labels=labels)
    whole = run(tmp_path / "whole", chosen, make=lambda seed: blocked(seed, dropout=0.0), labels=labels)
    assert found.perplexity == pytest.approx(whole.perplexity, rel=1e-6)


# What does not go together


def refused(folder, sentence, chosen, **arguments):
    """Nothing is begun, and a run that is there already stays as it is."""
    with pytest.raises(TrellisError, match=sentence) as caught:
        run(folder, chosen, **arguments)
    assert str(caught.value).count(". ") == 0
    assert not (folder / "run").exists()
    run(folder, chosen if chosen.objective == "marginal" else settings())
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    with pytest.raises(TrellisError):
        run(folder, chosen, resume=True, **arguments)
    assert {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()} == before


TOGETHER = r"labels and training\.objective=joint belong together: give both or neither"


def test_labels_without_their_objective_are_refused(tmp_path):
    with pytest.raises(TrellisError, match=TOGETHER):
        run(tmp_path, settings(), labels=some_labels(text(tmp_path / "cache")))
    assert not (tmp_path / "run").exists()


def test_the_objective_without_its_labels_is_refused(tmp_path):
    with pytest.raises(TrellisError, match=TOGETHER):
        train(make_model, WORDS, text(tmp_path / "cache"), None, settings(objective="joint"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    model, batch = make_model(0), a_batch()
    with pytest.raises(TrellisError, match=r"needs states: give the text's labels, or set training.objective=marginal"):
        joint(model, Batch(batch.ids, batch.lengths, False), None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda labels: labels[:-1], r"There are \d+ labels for \d+ tokens; give one state a token, -1 if unknown\.$"),
        (lambda labels: np.append(labels, 0), r"There are \d+ labels for \d+ tokens; give one state a token"),
        (lambda labels: labels[None], r"There are 1 × \d+ labels for \d+ tokens; give one state a token"),
        (lambda labels: labels.astype(np.float32), r"Labels of type float32 are no states; give whole numbers\.$"),
        (lambda labels: np.append(labels[:-1], STATES), r"the label of token \d+, 4, is none of the 4 states: give 0 "),
        (
            lambda labels: np.append(labels[:-1], -2),
            r"the label of token \d+, -2, is none of the 4 states: give 0 to 3",
        ),
    ],
    ids=["short", "long", "rows", "floats", "above", "below"],
)
@pytest.mark.parametrize(
    "changes", [{}, {"method": "baum_welch"}, {"init": "restarts"}], ids=["adamw", "bw", "restarts"]
)
def test_labels_that_do_not_fit_are_refused_before_anything_is_written(change, sentence, changes, tmp_path):
    labels = change(some_labels(text(tmp_path / "cache")))
    refused(tmp_path, sentence, settings(objective="joint", **changes), labels=labels)


def test_a_state_of_another_block_is_refused_where_it_is_met(tmp_path):
    labels = some_labels(text(tmp_path / "cache"), 16, BLOCK_V)
    at = int((labels >= 0).nonzero()[0][-1])
    labels[at] = (labels[at] + 8) % 16
    with pytest.raises(
        TrellisError, match=rf"^state {labels[at]} cannot emit the word at row \d+, position \d+: label a"
    ):
        run(tmp_path, settings(objective="joint"), labels=labels, make=blocked)
    assert not (tmp_path / "run" / "best").exists()


def test_a_model_without_states_has_no_joint_likelihood(tmp_path):
    def make(seed):
        return LSTM(LSTMConfig(V, width=6), seed)

    sentence = "for models with hidden states, not lstm: set training.objective=marginal"
    refused(tmp_path, sentence, settings(objective="joint"), make=make)
    with pytest.raises(TrellisError, match=sentence):
        joint(make(0), a_batch(), None)


def test_a_run_goes_on_with_its_own_labels_alone(tmp_path):
    labels = some_labels(text(tmp_path / "cache"))
    chosen = settings(objective="joint")
    first = run(tmp_path, chosen, labels=labels)
    assert run(tmp_path, chosen, labels=labels.astype(np.int16), resume=True) == first  # the same, kept otherwise
    other = labels.copy()
    other[7] = (other[7] + 2) % STATES
    with pytest.raises(TrellisError, match="belongs to a run with other settings, text or vocabulary"):
        run(tmp_path, chosen, labels=other, resume=True)


@pytest.mark.parametrize(
    ("name", "near"), [("join", "did you mean 'joint'"), ("marginall", "did you mean 'marginal'"), ("x", "choose from")]
)
def test_an_unknown_objective_names_the_nearest(name, near):
    with pytest.raises(TrellisError, match=f"'training.objective' cannot be '{name}': {near}"):
        TrainingSettings(objective=name)
    assert sorted(OBJECTIVES) == ["joint", "marginal"]
