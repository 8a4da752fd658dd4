import dataclasses

import pytest
import torch
from torch.testing import assert_close

from trellis import inference, ops
from trellis.errors import TrellisError
from trellis.inference import Chain
from trellis.models import HMM, HMMConfig, hmm, load_model, questions
from trellis.models.asking import Asked

from .. import reference
from .makers import (
    BLOCKS,
    CONFIGS,
    DENSE,
    FLAT,
    STATES,
    VOCABULARY,
    every_config,
    every_kind,
    every_kind_with_blocks,
    make,
    make_kind,
    random_ids,
)
from .scoring import assert_it_survives_the_disk, assert_padding_does_not_matter, assert_pieces_make_the_whole

V, S = 7, 4  # of every configuration in CONFIGS
LENGTHS = torch.tensor([5, 2, 4])


def logs(model):
    """log start, transition and emission S×V, from the tables."""
    return tuple(table.log() for table in model.tables())


def listed(model, ids_T):
    """Every state path of a row, with its probability."""
    log_start, log_transition, log_emission = logs(model)
    return reference.enumerate_paths(log_start, log_transition, log_emission.T[ids_T])


def rows(ids_BT, lengths_B=LENGTHS):
    return [row[:length] for row, length in zip(ids_BT, lengths_B.tolist(), strict=True)]


# A dense model.


@every_config
def test_score_is_the_sum_over_all_paths(config):
    model, ids = make(config), random_ids(3, 5, V)
    log_prob_BT, _ = model.score(ids, lengths_B=LENGTHS)
    for found, row in zip(log_prob_BT, rows(ids), strict=True):
        assert_close(found.sum(), listed(model, row).log_likelihood())
        assert_close(found[0], listed(model, row[:1]).log_likelihood())
        assert not found[len(row) :].any()


@every_config
def test_score_has_the_gradients_of_finite_differences(config):
    model, ids = make(config), random_ids(3, 5, V)
    names, tensors = zip(*model.named_parameters(), strict=True)
    weight_BT = torch.linspace(0.5, 1.5, 15, dtype=torch.float64).view(3, 5)

    def loss(*parameters):
        found, state = torch.func.functional_call(
            model, dict(zip(names, parameters, strict=True)), (ids, None, LENGTHS), tie_weights=True
        )
        return (found * weight_BT).sum() + (state[:, 0] ** 2).sum()

    model.forward = model.score
    assert torch.autograd.gradcheck(loss, tensors, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [DENSE["dense scalar"], {}], ids=["dense", "blocks"])
def test_score_passes_gradients_to_a_carried_state(kind):
    model, ids = make_kind(**kind), random_ids(2, 3, VOCABULARY)
    state = torch.rand(2, STATES, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda state: model.score(ids, state / state.sum(1, keepdim=True))[0], (state,))


@every_config
def test_streaming_in_chunks_is_one_pass(config):
    model, ids = make(config), random_ids(3, 12, V)
    whole, last = model.score(ids)
    parts, state = [], None
    for chunk in ids.split([1, 4, 7], 1):
        part, state = model.score(chunk, state)
        parts.append(part)
    assert_close(torch.cat(parts, 1), whole)
    assert_close(state, last)


def test_every_question_hands_the_same_evidence_to_its_algorithm():
    """With lengths, a carried state and missing tokens all at once, so that a swapped argument cannot hide."""
    model, ids = make(CONFIGS[1]), random_ids(3, 5, V)
    state = torch.rand(3, S, dtype=torch.float64)
    state /= state.sum(1, keepdim=True)
    missing = torch.tensor([[0, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    log_start, log_transition, log_emission_SV = logs(model)
    log_emission_BTS = log_emission_SV.T[ids].masked_fill(missing[..., None], 0.0)
    chain = Chain.dense(log_start, log_transition, log_emission_BTS, LENGTHS, state)
    asked = {"state": state, "lengths_B": LENGTHS, "missing_BT": missing}
    assert_close(model.score(ids, **asked), inference.score(chain))
    assert_close(model.filter(ids, **asked), inference.filter(chain))
    assert_close(model.smooth(ids, **asked), inference.smooth(chain))
    assert_close(model.viterbi(ids, **asked), inference.viterbi(chain))
    assert_close(model.k_best(ids, 3, **asked), inference.k_best(chain, 3))
    assert_close(model.entropy(ids, **asked), inference.entropy(chain))
    seeded = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    drawn = inference.sample_posterior(chain, 50, seeded[0])
    assert torch.equal(model.sample_posterior(ids, 50, **asked, generator=seeded[1]), drawn)


def test_the_answers_are_those_of_a_list_of_all_paths():
    model, ids = make(CONFIGS[0]), random_ids(3, 5, V)
    smoothed, paths = model.smooth(ids, lengths_B=LENGTHS), model.viterbi(ids, lengths_B=LENGTHS)
    entropy, ranked = model.entropy(ids, lengths_B=LENGTHS), model.k_best(ids, 3, lengths_B=LENGTHS)
    for b, row in enumerate(rows(ids)):
        truth = listed(model, row)
        assert_close(smoothed.posterior_BTS[b, : len(row)], truth.posterior())
        assert_close(entropy[b], truth.entropy())
        assert tuple(paths.states_BT[b, : len(row)].tolist()) == truth.best()[0].states
        assert [tuple(p[: len(row)].tolist()) for p in ranked.states_BKT[b]] == [p.states for p in truth.best(3)]


def test_a_missing_token_is_the_sum_over_the_vocabulary():
    model, ids = make(CONFIGS[3]), random_ids(1, 5, V)
    missing = torch.tensor([[0, 1, 0, 0, 0]]).bool()
    every_BT = ids.repeat(V, 1)
    every_BT[:, 1] = torch.arange(V)
    summed = model.score(every_BT)[0].sum(1).logsumexp(0)
    found, _ = model.score(ids, missing_BT=missing)
    assert_close(found.sum(), summed)
    assert_close(found[0, 1], torch.zeros((), dtype=torch.float64))


@every_config
def test_next_token_is_the_score_of_every_candidate(config):
    model = make(config)
    _, state = model.score(random_ids(2, 4, V))
    found = model.next_token(state)
    assert_close(found.exp().sum(1), torch.ones(2, dtype=torch.float64))
    for row in range(2):
        candidates, _ = model.score(torch.arange(V)[:, None], state[row].expand(V, S))
        assert_close(found[row], candidates[:, 0])
    first, _ = model.score(torch.arange(V)[:, None])
    assert_close(model.next_token(), first.T)


def test_expected_counts_are_those_of_a_list_of_all_paths():
    model, ids = make(CONFIGS[0]), random_ids(3, 5, V)
    counts = model.expected_counts(ids, lengths_B=LENGTHS)
    start, transition = torch.zeros(S, dtype=torch.float64), torch.zeros(S, S, dtype=torch.float64)
    emission = torch.zeros(V, S, dtype=torch.float64)
    for row in rows(ids):
        truth = listed(model, row)
        start += truth.posterior()[0]
        transition += truth.pairs().sum(0)
        for token, posterior in zip(row.tolist(), truth.posterior(), strict=True):
            emission[token] += posterior
    assert_close(counts.start_S, start)
    assert_close(counts.transition_SS, transition)
    assert_close(counts.emission_VS, emission)
    assert_close(counts[:2], model.score(ids, lengths_B=LENGTHS))


def test_counts_from_a_carried_state_count_its_step_and_no_start():
    model, ids = make(CONFIGS[0]), random_ids(3, 5, V)
    _, state = model.score(random_ids(3, 2, V, seed=1))
    counts = model.expected_counts(ids, state, LENGTHS)
    assert not counts.start_S.any()
    assert float(counts.transition_SS.sum()) == pytest.approx(int(LENGTHS.sum()))
    assert float(counts.emission_VS.sum()) == pytest.approx(int(LENGTHS.sum()))


def test_only_a_plain_dense_model_counts():
    for kind in (FLAT["scalar"] | {"support": "brown"}, DENSE["dense table"]):
        model = make_kind(**kind)
        assert not model.scalar
        with pytest.raises(TrellisError, match="expected counts are for a dense model of scalar parameters: make"):
            model.expected_counts(random_ids(2, 3, VOCABULARY))
    assert make_kind(**DENSE["dense scalar"]).scalar


@pytest.mark.parametrize(("bad", "ids"), [(V, [[0, V]]), (-1, [[0, 1], [2, -1]])])
def test_ids_outside_the_vocabulary_are_refused(bad, ids):
    model = make(CONFIGS[0])
    questions = [model.score, model.smooth, model.viterbi, model.expected_counts]
    for question in (*questions, make(CONFIGS[-1]).score):
        with pytest.raises(TrellisError, match=f"token id {bad} is outside the model's vocabulary of {V}"):
            question(torch.tensor(ids))


def test_padding_and_missing_tokens_may_hold_any_id():
    """So that what `sample` gives, −1 past each end, can be scored as it is."""
    model = HMM(HMMConfig(vocab_size=7, states=3), seed=1)
    ids_BT, lengths_B = torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1])
    dirty_BT = torch.tensor([[1, 2, 3], [4, -1, 99]])
    assert torch.equal(model.score(dirty_BT, lengths_B=lengths_B)[0], model.score(ids_BT, lengths_B=lengths_B)[0])
    clean, dirty = (model.expected_counts(x, lengths_B=lengths_B) for x in (ids_BT, dirty_BT))
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))
    missing_BT = torch.tensor([[False, True, False]])
    gaps = [model.score(torch.tensor([[1, id, 3]]), missing_BT=missing_BT)[0] for id in (-1, 5)]
    assert torch.equal(*gaps)


def test_every_question_has_an_answer_for_no_tokens():
    model, nothing_BT = HMM(HMMConfig(vocab_size=5, states=3), seed=1), torch.empty(2, 0, dtype=torch.int64)
    assert model.score(nothing_BT)[0].shape == (2, 0)
    assert model.smooth(nothing_BT).posterior_BTS.shape == (2, 0, 3)
    assert model.viterbi(nothing_BT).log_prob_B.tolist() == [0.0, 0.0]
    assert model.entropy(nothing_BT).tolist() == [0.0, 0.0]
    assert model.sample_posterior(nothing_BT, 4).shape == (2, 4, 0)


@pytest.mark.parametrize("native", [True, False])
@every_config
def test_products_in_bf16_leave_everything_else_in_float32(config, native):
    model, ids = make(config).float(), random_ids(3, 8, config.vocab_size)
    exact, state = model.score(ids)
    with torch.autocast("cpu", torch.bfloat16), ops.using(ops.status().level if native else None):
        near, _ = model.score(ids, state.detach())
        near.sum().backward()
    exact, _ = model.score(ids, state.detach())
    assert near.dtype == torch.float32
    assert (near - exact).abs().max() < 0.1
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters() if parameter.grad is not None)


# Every kind of model.


@every_config
def test_every_combination_normalises(config):
    model = make(config)
    tables = model.tables()
    assert [table.shape for table in tables] == [(4,), (4, 4), (4, 7)]
    for table in tables:
        assert bool((table > 0).all())
        assert_close(table.sum(-1), torch.ones_like(table.sum(-1)))


@every_kind
def test_rows_of_some_states_are_those_of_the_tables(kind):
    model, some = make_kind(**kind).eval(), torch.tensor([5, 0, 17])
    next_NS, emission_NV = model.rows(some)
    tables = model.tables()
    assert_close(next_NS, tables.transition_SS[some])
    assert_close(emission_NV, tables.emission_SV[some])
    assert_close(tables.rows(some), (next_NS, emission_NV))


@every_kind
def test_every_question_is_answered_as_the_dense_model_answers(kind):
    model = make_kind(**kind).eval()
    dense, ids, lengths = model.dense(), random_ids(4, 6, VOCABULARY), torch.tensor([6, 2, 1, 5])
    _, state = model.score(random_ids(4, 3, VOCABULARY, seed=5))
    state = state.detach()
    told = {"state": state, "lengths_B": lengths}
    for question in ("filter", "smooth"):
        found, want = getattr(model, question)(ids, **told), getattr(dense, question)(ids, **told)
        belief = torch.zeros(4, 6, model.config.states, dtype=torch.float64)
        belief.scatter_(2, found.states_BTS, found[1])
        inside = torch.arange(6) < lengths[:, None]
        assert_close(belief[inside], want[1][inside], rtol=1e-8, atol=1e-10)
        assert_close(found.log_prob_BT, want.log_prob_BT, rtol=1e-8, atol=1e-10)
        assert_close(found.state, want.state, rtol=1e-8, atol=1e-10)
    paths, want = model.k_best(ids, 3, **told), dense.k_best(ids, 3, **told)
    assert_close(paths.log_prob_BK, want.log_prob_BK)
    assert torch.equal(paths.states_BKT, want.states_BKT)
    assert torch.equal(model.viterbi(ids, **told).states_BT, dense.viterbi(ids, **told).states_BT)
    assert_close(model.entropy(ids, **told), dense.entropy(ids, **told))
    assert_close(model.next_token(state), dense.next_token(state))
    assert_close(model.next_token(), dense.next_token())


def test_drawn_paths_have_the_posterior_of_the_dense_model():
    model, ids = make_kind().eval(), random_ids(1, 4, VOCABULARY)
    drawn = model.sample_posterior(ids, 4000, generator=torch.Generator().manual_seed(0))
    share = torch.nn.functional.one_hot(drawn[0], STATES).double().mean(0)
    assert_close(share, model.dense().smooth(ids).posterior_BTS[0], rtol=0, atol=0.03)


@every_kind_with_blocks
def test_a_text_too_long_for_memory_goes_in_pieces(kind, monkeypatch):
    model, ids = make_kind(**kind).eval(), random_ids(3, 20, VOCABULARY)
    lengths, size, blocks = torch.tensor([20, 7, 0]), model.block_size, len(model.states_MK)
    with torch.no_grad():
        whole, state = model.score(ids, None, lengths)
        monkeypatch.setattr(questions, "PIECE", size**2 * 3 * 2)
        asked = Asked.of(model, ids, lengths)
        assert [piece.ids_BT.shape[1] for piece in model._pieces(asked)] == [2] * 10
        pieces, after = model.score(ids, None, lengths)
        monkeypatch.setattr(questions, "PIECE", size**2 * blocks**2)  # all pairs, so any text
        assert len(list(model._pieces(asked))) == 1
    assert_close(pieces, whole)
    assert_close(after, state)


@pytest.mark.parametrize("kind", [{}, DENSE["dense residual"], FLAT["table"] | {"support": "uniform"}])
def test_state_in_state_out_padding_and_files(kind, tmp_path):
    model = make_kind(torch.float32, **kind).eval()
    assert_pieces_make_the_whole(model, VOCABULARY)
    assert_padding_does_not_matter(model, VOCABULARY)
    assert_it_survives_the_disk(model, VOCABULARY, tmp_path)


def test_too_many_states_for_tables_is_said(monkeypatch):
    model = make_kind()
    monkeypatch.setattr(hmm, "LARGEST_DENSE", 8)
    for ask in (model.tables, model.dense, model.plain):
        with pytest.raises(TrellisError, match="do not fit in memory"):
            ask()


# A plain model of the same distributions.


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_model_says_the_same(kind, dtype, tmp_path):
    model, ids, lengths = (
        make_kind(dtype, **kind, dropout=0.5).eval(),
        random_ids(4, 6, VOCABULARY),
        torch.tensor([6, 0, 1, 5]),
    )
    plain = model.plain()
    assert {plain.config.start, plain.config.transition, plain.config.emission} == {"scalar"}
    assert (plain.config.support, plain.config.states) == (model.config.support, model.config.states)
    assert plain.config.dropout == 0
    assert not plain.training
    assert next(plain.parameters()).dtype == dtype
    missing = torch.tensor([[False, True, False, False, False, True]]).expand(4, -1)
    near = {"rtol": 1e-6, "atol": 1e-6 if dtype == torch.float64 else 5e-6}
    with torch.no_grad():
        for told in ({}, {"lengths_B": lengths}, {"missing_BT": missing}):
            found, want = plain.score(ids, **told), model.score(ids, **told)
            assert_close(found, want, **near)
            assert_close(plain.score(ids, want[1], **told), model.score(ids, want[1], **told), **near)
        assert_close(plain.next_token(), model.next_token(), **near)
        plain.save_pretrained(tmp_path / "plain")
        again = load_model(tmp_path / "plain")
        assert again.config == plain.config
        assert torch.equal(again.score(ids, None, lengths)[0], plain.score(ids, None, lengths)[0])
        assert_close(again.plain().score(ids)[0], model.score(ids)[0], **near)


def test_a_plain_model_of_a_file_of_clusters_needs_the_file_no_more(tmp_path):
    model = make_kind(torch.float32).eval()
    model.config = dataclasses.replace(model.config, support=str(tmp_path / "gone"))
    model.plain().save_pretrained(tmp_path / "plain")
    ids, again = random_ids(4, 6, VOCABULARY), load_model(tmp_path / "plain")
    assert again.config.support == str(tmp_path / "gone")
    assert_close(again.score(ids)[0], model.score(ids)[0], rtol=1e-6, atol=5e-6)


# Its parameters.

R = 2


def numbers(**settings):
    return sum(p.numel() for p in HMM(HMMConfig(11, 6, width=R, **settings)).parameters())


def test_parameter_counts():
    states, words = 6, 11
    assert numbers() == states + states * states + states * words
    low = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank"}
    assert numbers(**low) == R + 3 * states * R + words * R  # s, H_in, H_out, H_emit, V: ablation B
    assert numbers(**low, shared=True) == R + states * R + words * R  # s, H, V: ablation A
    assert numbers(emission="low_rank") == states + states * states + states * R + words * R
    # Both end in H_out.
    assert numbers(start="low_rank", transition="low_rank") == R + 2 * states * R + states * words
    assert numbers(start="low_rank") == R + states * R + states * states + states * words


def test_parameter_counts_are_the_published_ones():
    def millions(vocab_size, states, encoder="residual"):
        made = FLAT["residual"] | {"encoder": encoder, "width": 256}
        model = HMM(HMMConfig(vocab_size, states, "brown", **made), seed=0)
        return round(sum(p.numel() for p in model.parameters()) / 1e6, 1)

    assert millions(10_000, 2**15) == 11.4
    assert millions(33_278, 2**15) == 17.3
    assert millions(10_000, 2**14) == 7.2
    assert millions(10_000, 2**14, "factored") == 5.6


def test_a_seed_decides_the_parameters_and_leaves_the_generator_alone():
    config = CONFIGS[-1]
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = HMM(config, seed=1), HMM(config, seed=1), HMM(config, seed=2)
    assert torch.equal(torch.rand(3), undisturbed)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_blocks_are_numbered_in_the_model():
    model = make_kind()
    assert model.states_MK.shape == (BLOCKS, STATES // BLOCKS)
    assert model.block_size == STATES // BLOCKS
    assert torch.equal(model.everything(), torch.arange(STATES))


def test_tables_are_the_callers_own():
    """In use, distributions are kept; what is done to the tables that were given away must not reach them."""
    model = HMM(HMMConfig(7, 4), seed=0).eval()
    before = model.next_token()
    for table in model.tables():
        table.zero_()
    assert torch.equal(model.next_token(), before)
