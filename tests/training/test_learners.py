import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.text import Batch
from trellis.training.learners import BaumWelchLearner, GradientLearner
from trellis.training.objectives import OBJECTIVES
from trellis.training.settings import CompleteSettings

from .. import reference

V, S = 7, 3
LOW = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 2, "shared": True}


def a_batch(rows=4, time=5, seed=0, lengths=None):
    ids = torch.randint(V, (rows, time), generator=torch.Generator().manual_seed(seed))
    lengths = torch.full((rows,), time) if lengths is None else torch.tensor(lengths)
    return Batch(ids, lengths, False)


def model_of(seed=0, **parts):
    return HMM(HMMConfig(V, S, **parts), seed=seed).double()


def logits_of(model):
    """Of start, transition [from, to] and emission [word, state]: free, or products of vectors."""
    if model.scalar:
        return model.start.table, model.transition.table, model.emission.table
    states_SR = model.encoder.tables["states"]
    return states_SR @ model.start.first, states_SR @ states_SR.T, model.emission.words @ states_SR.T


def mean_loss(model, batches):
    """Negative mean log-likelihood a token, by autograd through the log-space reference."""
    start_S, transition_SS, emission_VS = logits_of(model)
    log_start, log_transition = start_S.log_softmax(-1), transition_SS.log_softmax(-1)
    log_emission_VS = emission_VS.log_softmax(0)
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        for row, length in zip(batch.ids, batch.lengths.tolist(), strict=True):
            total = total - reference.log_likelihood(log_start, log_transition, log_emission_VS[row[:length]])
            tokens += length
    return total / tokens


@pytest.mark.parametrize("parts", [{}, LOW], ids=["scalar", "low_rank"])
@pytest.mark.parametrize("clip", [0.05, 5.0])  # always clipped, and never
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_is_adamw_on_the_mean_loss_with_a_clipped_gradient(parts, clip, accumulate):
    settings = CompleteSettings(lr=0.1, clip=clip, weight_decay=0.03, betas=(0.8, 0.9))
    ours, theirs = model_of(**parts), model_of(**parts)
    learner = GradientLearner(ours, settings)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=0.03)
    clipped = []
    for update, multiplier in enumerate([0.2, 1.0, 0.6, 0.1]):
        batches = [a_batch(seed=10 * update + n, lengths=[5, 2, 4, 1 + n]) for n in range(accumulate)]
        learnt = [learner.learn(batch, None) for batch in batches]
        loss = mean_loss(theirs, batches)
        assert sum(one.nats for one in learnt) / sum(one.tokens for one in learnt) == pytest.approx(loss.item())
        learner.update(sum(one.tokens for one in learnt), multiplier)
        optimizer.param_groups[0]["lr"] = 0.1 * multiplier
        loss.backward()
        clipped.append(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)) > clip)
        optimizer.step()
        optimizer.zero_grad()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_close(a, b, rtol=1e-5, atol=1e-6)  # torch adds 1e-6 to the norm it divides by
    assert set(clipped) == {clip == 0.05}


@pytest.mark.parametrize("clip", [1e-3, 5.0])
def test_an_update_in_float32_is_that_of_torch_from_the_same_gradients(clip):
    settings = CompleteSettings(lr=0.1, clip=clip, weight_decay=0.03)
    ours, theirs = model_of().float(), model_of().float()
    learner = GradientLearner(ours, settings)
    optimizer = torch.optim.AdamW(theirs.parameters(), betas=(0.9, 0.95), weight_decay=0.03)
    for update, multiplier in enumerate([0.2, 1.0, 0.6, 0.1]):
        tokens = learner.learn(a_batch(seed=update, lengths=[5, 2, 4, 1]), None).tokens
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            b.grad = a.grad * (200 * 64 / tokens)  # what the usual batch's mean lacks to that of this one
        learner.update(tokens, multiplier)
        assert all(parameter.grad is None for parameter in ours.parameters())
        assert (float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)) > clip) is (clip == 1e-3)
        optimizer.param_groups[0]["lr"] = 0.1 * multiplier
        optimizer.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["adamw", "sgd"])
def test_networks_learn_at_a_rate_of_their_own(method):
    parts = LOW | {"encoder": "residual", "shared": False}
    ours, theirs = model_of(**parts), model_of(**parts)
    learner = GradientLearner(ours, CompleteSettings(method=method, lr=0.1, network_lr=0.02))
    networks, others = [], []
    for name, parameter in theirs.named_parameters():
        (networks if "networks" in name else others).append(parameter)
    kind = torch.optim.AdamW if method == "adamw" else torch.optim.SGD
    betas = {"betas": (0.9, 0.95)} if method == "adamw" else {}
    optimizer = kind([{"params": networks}, {"params": others}], weight_decay=0.0, **betas)
    for update, multiplier in enumerate([0.2, 1.0, 0.6]):
        batch = a_batch(seed=update)
        learner.update(learner.learn(batch, None).tokens, multiplier)
        (-theirs.score(batch.ids)[0].mean()).backward()
        for group, rate in zip(optimizer.param_groups, (0.02, 0.1), strict=True):
            group["lr"] = rate * multiplier
        optimizer.step()
        optimizer.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_rate_of_networks_needs_networks():
    with pytest.raises(TrellisError, match="network_lr is for an encoder with networks: leave it out"):
        GradientLearner(model_of(), CompleteSettings(network_lr=0.1))


def test_two_batches_accumulated_are_one_of_both():
    first, second = a_batch(seed=1), a_batch(seed=2)
    both = Batch(torch.cat([first.ids, second.ids]), torch.cat([first.lengths, second.lengths]), False)
    models = []
    for batches in ([first, second], [both]):
        model = model_of()
        learner = GradientLearner(model, CompleteSettings(lr=0.1))
        for _ in range(3):
            learner.update(sum(learner.learn(batch, None).tokens for batch in batches), 1.0)
        models.append(model)
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert_close(a, b)


def test_a_restored_learner_goes_on_to_the_bit():
    settings = CompleteSettings(lr=0.1)
    whole, stopped = model_of(), model_of()
    one, two = GradientLearner(whole, settings), GradientLearner(stopped, settings)
    for update in range(6):
        if update == 3:
            remembered = {name: tensor.clone() for name, tensor in two.tensors().items()}
            two = GradientLearner(stopped, settings)
            two.restore(remembered)
        for learner in (one, two):
            learner.update(learner.learn(a_batch(seed=update), None).tokens, 0.5)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), stopped.parameters(), strict=True))


@pytest.mark.parametrize("learner", [GradientLearner, BaumWelchLearner])
def test_a_batch_goes_on_from_the_state_it_is_given(learner):
    model, batch = model_of(), a_batch()
    _, state = model.score(a_batch(seed=5).ids)
    learnt = learner(model, CompleteSettings()).learn(batch, state.detach())
    log_prob, final = model.score(batch.ids, state)
    assert learnt.nats == pytest.approx(-float(log_prob.detach().sum()))
    assert_close(learnt.state, final.detach())
    assert not learnt.state.requires_grad


def counts_by_hand(model, batch):
    """Expected starts, transitions and emissions, from a list of all paths."""
    log_start, log_transition, log_emission = (table.log() for table in model.tables())
    start, transition = torch.zeros(S, dtype=torch.float64), torch.zeros(S, S, dtype=torch.float64)
    emission = torch.zeros(S, V, dtype=torch.float64)
    for row, length in zip(batch.ids, batch.lengths.tolist(), strict=True):
        listed = reference.enumerate_paths(log_start, log_transition, log_emission.T[row[:length]])
        start += listed.posterior()[0]
        transition += listed.pairs().sum(0)
        for token, posterior in zip(row.tolist(), listed.posterior(), strict=False):
            emission[:, token] += posterior
    return start, transition, emission


def normalised(table):
    return table / table.sum(-1, keepdim=True)


@pytest.mark.parametrize(("step", "multiplier"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.25), (0.5, 0.5)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_update_moves_towards_the_normalised_counts(step, multiplier, smoothing):
    model, batch = model_of(), a_batch(lengths=[5, 3, 4, 1])
    old = tuple(table.clone() for table in model.tables())
    new = tuple(normalised(count + smoothing) for count in counts_by_hand(model, batch))
    learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", step_size=step, smoothing=smoothing))
    learner.update(learner.learn(batch, None).tokens, multiplier)
    rate = step * multiplier
    assert_close(tuple(model.tables()), tuple(rate * n + (1 - rate) * o for n, o in zip(new, old, strict=True)))


def test_counts_of_several_batches_add_up():
    batches = [a_batch(seed=1), a_batch(seed=2, lengths=[5, 1, 2, 3])]
    model = model_of()
    found = [counts_by_hand(model, batch) for batch in batches]
    learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=0.0))
    learner.update(sum(learner.learn(batch, None).tokens for batch in batches), 1.0)
    assert_close(tuple(model.tables()), tuple(normalised(a + b) for a, b in zip(*found, strict=True)))


def test_one_step_on_everything_is_hmmlearns():
    from hmmlearn.hmm import CategoricalHMM

    model, batch = model_of(), a_batch(rows=6, time=30)
    theirs = CategoricalHMM(S, n_features=V, n_iter=1, init_params="", params="ste", tol=-math.inf)
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = (table.numpy() for table in model.tables())
    lengths = batch.lengths.tolist()
    for _ in range(3):
        theirs.fit(batch.ids.numpy().reshape(-1, 1), lengths)
        learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=0.0))
        learner.update(learner.learn(batch, None).tokens, 1.0)
        start, transition, emission = model.tables()
        np.testing.assert_allclose(start, theirs.startprob_, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(transition, theirs.transmat_, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(emission, theirs.emissionprob_, rtol=1e-9, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 12))
@hypothesis_settings(max_examples=40)
def test_the_likelihood_never_falls_over_full_steps(seed, rows, time):
    model, batch = model_of(seed), a_batch(rows, time, seed)
    learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=0.0))
    nats = []
    for _ in range(8):
        learnt = learner.learn(batch, None)
        learner.update(learnt.tokens, 1.0)
        nats.append(learnt.nats)
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(nats))
    assert nats[-1] < nats[0]


def test_counts_of_next_to_impossible_states_do_not_turn_negative():
    """Where beliefs sharpen from step to step, rounding once made a posterior −6e-72, and its logarithm NaN."""
    model, batch = model_of(1024), a_batch(1, 5, 1024)
    learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=0.0))
    for _ in range(8):
        counts = model.expected_counts(batch.ids)
        assert all(float(count.min()) >= 0 for count in (counts.start_S, counts.transition_SS, counts.emission_VS))
        learner.update(learner.learn(batch, None).tokens, 1.0)


def test_smoothing_leaves_no_zero_and_none_of_it_does():
    batch = Batch(torch.tensor([[0, 1, 0, 1]]), torch.tensor([4]), False)
    for smoothing, zeros in ((1e-3, False), (0.0, True)):
        model = model_of()
        learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=smoothing))
        learner.update(learner.learn(batch, None).tokens, 1.0)
        assert bool((model.tables().emission_SV[:, 2:] == 0).any()) is zeros


def test_a_state_never_visited_becomes_indifferent():
    model = model_of()
    start, transition, emission = model.tables()
    start, transition = torch.tensor([1.0, 0, 0]).double(), torch.eye(S).double()
    model.set_tables(start, transition, emission)
    learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=0.0))
    learner.update(learner.learn(a_batch(), None).tokens, 1.0)
    assert_close(model.tables().transition_SS[1:], torch.full((2, S), 1 / S).double())
    assert_close(model.tables().emission_SV[1:], torch.full((2, V), 1 / V).double())


@pytest.mark.parametrize("smoothing", [0.0, 1e-3])
def test_rows_that_all_go_on_from_earlier_ones_leave_the_start_alone(smoothing):
    model = model_of()
    before = model.tables()
    learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=smoothing))
    learner.update(learner.learn(a_batch(), torch.full((4, S), 1 / S).double()).tokens, 1.0)
    assert_close(model.tables().start_S, before.start_S)
    assert not torch.allclose(model.tables().transition_SS, before.transition_SS)


def test_a_process_without_rows_counts_nothing():
    model = model_of()
    before = model.tables()
    learner = BaumWelchLearner(model, CompleteSettings(method="baum_welch", smoothing=0.0, step_size=0.5))
    learner.update(1.0, 1.0)
    uniform = torch.full((S, S), 1 / S).double()
    assert_close(model.tables().transition_SS, 0.5 * before.transition_SS + 0.5 * uniform)


def test_baum_welch_refuses_an_objective_that_it_would_ignore(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "other", OBJECTIVES["marginal"])
    with pytest.raises(TrellisError, match=r"Baum–Welch cannot learn by training.objective=other"):
        BaumWelchLearner(model_of(), CompleteSettings(method="baum_welch", objective="other"))


@pytest.mark.parametrize("part", ["start", "transition", "emission"])
def test_baum_welch_refuses_low_rank(part):
    with pytest.raises(TrellisError, match=r"make model\.support dense, start, transition and emission scalar"):
        BaumWelchLearner(model_of(**{part: "low_rank", "width": 2}), CompleteSettings(method="baum_welch"))


@pytest.mark.parametrize("learner", [GradientLearner, BaumWelchLearner])
def test_an_impossible_token_and_a_diverged_model_are_said_clearly(learner):
    model = model_of()
    start, transition, emission = model.tables()
    emission[:, 3] = 0.0
    model.set_tables(start, transition, normalised(emission))
    batch = Batch(torch.tensor([[0, 1, 2], [0, 3, 1]]), torch.tensor([3, 3]), False)
    with pytest.raises(TrellisError, match=r"row 1, position 1 of the batch is impossible: raise training.smoothing"):
        learner(model, CompleteSettings()).learn(batch, None)
    with torch.no_grad():
        model.transition.table[0, 0] = torch.nan
    with pytest.raises(TrellisError, match=r"diverged: lower training.lr"):
        learner(model, CompleteSettings()).learn(a_batch(), None)


def test_a_batch_that_costs_too_much_has_no_gradient():
    model, batch = model_of(), a_batch()
    learner = GradientLearner(model, CompleteSettings())
    cost = learner.learn(batch, None).nats / batch.tokens
    before = [parameter.grad.clone() for parameter in model.parameters()]
    learner.bearable = cost * 0.99
    with pytest.raises(TrellisError, match=r"training has diverged, at \d+ nats a token: lower training.lr"):
        learner.learn(batch, None)
    assert all(torch.equal(a, b.grad) for a, b in zip(before, model.parameters(), strict=True))
    learner.bearable = cost * 1.01
    assert learner.learn(batch, None).nats / batch.tokens == cost


def test_a_diverged_gradient_never_reaches_the_parameters():
    model = model_of()
    learner = GradientLearner(model, CompleteSettings())
    learner.learn(a_batch(), None)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model.transition.table.grad[1, 1] = torch.inf
    with pytest.raises(TrellisError, match=r"the gradient of this update has diverged: lower training.lr"):
        learner.update(20, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
