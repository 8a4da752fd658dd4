"""Blocked models against the same models held densely: values and gradients, with dropout and across pieces."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError, kernels
from trellis.models import blocked, blocked_batches
from trellis.models.blocked import BlockedConfig, BlockedHMM
from trellis.models.groups import Groups, partition, uniform_subsets
from trellis.text import MemoryCorpus, WordTokenizer, prepare

from .makers import random_ids
from .scoring import assert_it_survives_the_disk, assert_padding_does_not_matter, assert_pieces_make_the_whole
from .slow_blocks import slow_score

VOCABULARY, STATES, BLOCKS = 11, 24, 3
GROUP_V = torch.tensor([0, 0, 1, 2, 1, 2, 0, 1, 2, 2, 1])


def make(dtype=torch.float64, **changes):
    settings = {"states": STATES, "blocks": BLOCKS, "width": 6} | changes
    if settings.get("clusters") == "words":
        settings["states"] = 2 * VOCABULARY
        groups = None
    elif settings.get("clusters") == "uniform":
        groups = uniform_subsets(VOCABULARY, STATES, STATES // BLOCKS, seed=3)
    else:
        groups = partition(GROUP_V, STATES, BLOCKS)
    model = BlockedHMM(BlockedConfig(VOCABULARY, **settings), seed=1, groups=groups)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # further from uniform, where mistakes would hide
    return model.to(dtype)


KINDS = {
    f"{transition} {parameters} {embeddings} {clusters}": {
        "transition": transition, "parameters": parameters, "embeddings": embeddings, "clusters": clusters,
    }
    for transition, parameters, embeddings, clusters in itertools.product(
        ("hierarchical", "flat"), ("neural", "low_rank", "scalar"), ("independent", "factored"),
        ("brown", "words", "uniform"),
    )
    if not (clusters == "uniform" and (transition == "hierarchical" or embeddings == "factored"))
    and not (embeddings == "factored" and parameters != "neural")
}  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
LENGTHS = torch.tensor([9, 1, 5, 0, 8])


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}


@kinds
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_scores_and_gradients_are_those_of_the_dense_model(kind, dropout):
    model = make(**kind, dropout=dropout)
    ids, weight = random_ids(5, 9, VOCABULARY), torch.rand(5, 9, dtype=torch.float64)
    torch.manual_seed(4)
    kept = model._keep()
    torch.manual_seed(4)
    found, state = model.score(ids, None, LENGTHS)
    slow, slow_state = slow_score(model, ids, None, LENGTHS, kept)
    assert_close(found, slow, rtol=1e-9, atol=1e-10)
    assert_close(state[LENGTHS > 0], slow_state[LENGTHS > 0], rtol=1e-9, atol=1e-10)
    want = gradients(model, (slow * weight).sum())
    for name, grad in gradients(model, (found * weight).sum()).items():
        assert_close(grad, want[name], rtol=1e-7, atol=1e-9, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("parameters", ["neural", "low_rank", "scalar"])
@pytest.mark.parametrize("dropout", [0.3, 0.5, 0.7])
def test_long_lists_are_cut_to_the_states_alive(parameters, dropout):
    config = BlockedConfig(
        VOCABULARY, states=120, blocks=3, width=6, parameters=parameters, transition="flat", clusters="uniform",
        dropout=dropout,
    )  # fmt: skip
    model = BlockedHMM(config, seed=1, groups=uniform_subsets(VOCABULARY, 120, 40, seed=3)).double()
    ids, state = random_ids(5, 9, VOCABULARY), None
    for seed in (4, 5):
        torch.manual_seed(seed)
        kept = model._keep()
        torch.manual_seed(seed)
        found, after = model.score(ids, state, LENGTHS)
        slow, slow_after = slow_score(model, ids, state, LENGTHS, kept)
        assert_close(found, slow, rtol=1e-9, atol=1e-10)
        assert_close(after[LENGTHS > 0], slow_after[LENGTHS > 0], rtol=1e-9, atol=1e-10)
        want = gradients(model, slow.sum())
        for name, grad in gradients(model, found.sum()).items():
            assert_close(grad, want[name], rtol=1e-7, atol=1e-9, msg=lambda said, name=name: f"{name}: {said}")
        state = after.detach()


@kinds
def test_a_belief_is_carried_from_one_mask_to_the_next(kind):
    model = make(**kind, dropout=0.5)
    ids = random_ids(4, 10, VOCABULARY)
    losses = []
    for score in (model.score, None):
        torch.manual_seed(9)
        total, state = torch.zeros((), dtype=torch.float64), None
        for piece in ids.split(3, 1):
            if score is None:
                kept = model._keep()
                log_prob, state = slow_score(model, piece, state, None, kept)
            else:
                log_prob, state = score(piece, state)
            total = total + log_prob.sum()
        losses.append(total)
    assert_close(losses[0], losses[1], rtol=1e-10, atol=0)
    want = gradients(model, losses[1])
    for name, grad in gradients(model, losses[0]).items():
        assert_close(grad, want[name], rtol=1e-7, atol=1e-9, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("transition", ["hierarchical", "flat"])
@pytest.mark.parametrize("shape", [(32, 4, 8), (30, 3, 17), (5, 5, 16), (400, 2, 5)])
def test_native_kernels_say_what_pytorch_says(transition, shape):
    states, blocks, width = shape
    config = BlockedConfig(VOCABULARY, states=states, blocks=blocks, width=width, transition=transition)
    model = BlockedHMM(config, 0, partition(torch.arange(VOCABULARY) % blocks, states, blocks))
    ids = random_ids(5, 9, VOCABULARY)
    with kernels.using(None):
        slow, state = model.score(ids, None, LENGTHS)
        slow, _ = model.score(ids, state.detach(), LENGTHS)
        want = gradients(model, slow.sum())
    found, state = model.score(ids, None, LENGTHS)
    found, _ = model.score(ids, state.detach(), LENGTHS)
    assert_close(found, slow, rtol=1e-5, atol=1e-6)
    for name, grad in gradients(model, found.sum()).items():
        assert_close(grad, want[name], rtol=1e-3, atol=2e-5, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("states", [32, 34, 96])
def test_native_kernels_say_what_pytorch_says_of_lists_that_overlap(states, dropout):
    config = BlockedConfig(
        VOCABULARY, states, blocks=2, width=17, transition="flat", clusters="uniform", dropout=dropout
    )  # fmt: skip
    model, ids, found = BlockedHMM(config, 0), random_ids(5, 9, VOCABULARY), []
    for level in (None, kernels.status().level):
        torch.manual_seed(2)
        with kernels.using(level):
            first, state = model.score(ids, None, LENGTHS)
            second, _ = model.score(ids, state.detach(), LENGTHS)
            found.append((first, second, gradients(model, (first + second).sum())))
    (*slow, want), (*fast, grads) = found
    assert_close(fast, slow, rtol=1e-5, atol=1e-6)
    for name, grad in grads.items():
        assert_close(grad, want[name], rtol=1e-3, atol=2e-5, msg=lambda said, name=name: f"{name}: {said}")


@kinds
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_pairs_are_what_their_slow_twin_says_in_log_space(kind, dropout, monkeypatch):
    model, ids, seen = make(**kind, dropout=dropout), random_ids(3, 7, VOCABULARY), []
    into = model.transition.into

    def watched(vectors, lists):
        seen.append((lists, into(vectors, lists)))
        return seen[-1][1]

    monkeypatch.setattr(model.transition, "into", watched)
    _, state = model.score(ids)
    model.score(ids, state)
    assert len(seen) == 3  # the first batch's, those that a belief is carried over, the second batch's
    for lists, into_PJK in seen:
        everything_P = torch.arange(len(into_PJK))
        assert_close(model.transition.log_into(model.vectors, lists, everything_P).exp(), into_PJK)
        assert model.transition.log_into(model.vectors, lists, everything_P[:0]).shape == (0, *into_PJK.shape[1:])


@kinds
def test_gradients_are_whole_tables_also_where_a_belief_is_carried(kind):
    model, ids = make(**kind, dropout=0.5), random_ids(3, 1, VOCABULARY)
    _, state = model.score(ids)
    model.score(ids, state.detach())[0].sum().backward()
    assert all(p.grad is None or not p.grad.is_sparse for p in model.parameters())


@pytest.mark.parametrize("clusters", ["brown", "uniform"])
def test_networks_see_each_state_of_a_batch_once(clusters, monkeypatch):
    model, asked = make(transition="flat", clusters=clusters), []
    look_up, leaving = model.vectors.look_up, model.vectors.leaving
    monkeypatch.setattr(model.vectors, "look_up", lambda states_N: (states_N, look_up(states_N)))
    monkeypatch.setattr(model.vectors, "leaving", lambda found: asked.append(found[0]) or leaving(found[1]))
    for role in ("entering", "emitting", "start_logits"):
        plain = getattr(model.vectors, role)
        monkeypatch.setattr(model.vectors, role, lambda found, plain=plain: plain(found[1]))
    ids = random_ids(4, 9, VOCABULARY)
    model.score(ids)
    assert len(asked) == 1
    assert sorted(asked[0].tolist()) == model.states_GK[model.group_V[ids.unique()]].unique().tolist()


@pytest.mark.parametrize("level", [*kernels.levels(), None])
@pytest.mark.parametrize("transition", ["hierarchical", "flat"])
def test_products_in_bf16_stay_near(transition, level):
    config = BlockedConfig(VOCABULARY, states=96, blocks=2, width=40, transition=transition)
    model = BlockedHMM(config, 0, partition(GROUP_V % 2, 96, 2))
    ids = random_ids(5, 9, VOCABULARY)
    with torch.autocast("cpu", torch.bfloat16), kernels.using(level):
        near = model.score(ids, None, LENGTHS)[0]
        assert near.dtype == torch.float32
        found = gradients(model, near.sum())
    model.double()
    exact = model.score(ids, None, LENGTHS)[0]
    want = gradients(model, exact.sum())
    assert not torch.equal(near.double(), exact)
    assert (near.double() - exact).detach().sum().abs() < 1e-3 * LENGTHS.sum()
    error = torch.cat([(found[name].double() - want[name]).flatten() for name in want])
    assert error.norm() < 1e-2 * torch.cat([grad.flatten() for grad in want.values()]).norm()


@kinds
def test_every_question_is_answered_as_the_dense_model_answers(kind):
    model = make(**kind).eval()
    dense, ids, lengths = model.dense(), random_ids(4, 6, VOCABULARY), torch.tensor([6, 2, 1, 5])
    _, state = model.score(random_ids(4, 3, VOCABULARY, seed=5))
    told = {"state": state.detach(), "lengths_B": lengths}
    for question in ("filter", "smooth"):
        found, want = getattr(model, question)(ids, **told), getattr(dense, question)(ids, **told)
        belief = torch.zeros(4, 6, model.config.states, dtype=torch.float64)
        belief.scatter_(2, found.states_BTK, found.belief_BTK)
        inside = torch.arange(6) < lengths[:, None]
        assert_close(belief[inside], want[1 if question == "filter" else 2][inside], rtol=1e-8, atol=1e-10)
        assert_close(found.log_prob_BT, want.log_prob_BT, rtol=1e-8, atol=1e-10)
        assert_close(found.final_BS, want.final_BS, rtol=1e-8, atol=1e-10)
    paths, want = model.k_best(ids, 3, **told), dense.k_best(ids, 3, **told)
    assert_close(paths.log_prob_BK, want.log_prob_BK)
    assert torch.equal(paths.states_BKT, want.states_BKT)
    assert torch.equal(model.viterbi(ids, **told).states_BT, dense.viterbi(ids, **told).states_BT)
    assert_close(model.entropy(ids, **told), dense.entropy(ids, **told))
    assert_close(model.next_token(state), dense.next_token(state))
    assert_close(model.next_token(), dense.next_token())


def test_drawn_paths_have_the_posterior_of_the_dense_model():
    model, ids = make().eval(), random_ids(1, 4, VOCABULARY)
    drawn = model.sample_posterior(ids, 4000, generator=torch.Generator().manual_seed(0))
    share = torch.nn.functional.one_hot(drawn[0], STATES).double().mean(0)
    assert_close(share, model.dense().smooth(ids).posterior_BTS[0], rtol=0, atol=0.03)


def test_samples_have_the_words_and_states_of_the_model():
    model = make().eval()
    drawn = model.sample(3000, 2, generator=torch.Generator().manual_seed(0))
    assert (model.group_V[drawn.tokens_BT] == drawn.states_BT // (STATES // BLOCKS)).all()
    share = torch.bincount(drawn.tokens_BT[:, 0], minlength=VOCABULARY) / 3000
    assert_close(share.double(), model.next_token()[0].exp(), rtol=0, atol=0.03)
    word = int(share.argmax())
    first = drawn.tokens_BT[:, 0] == word
    assert first.sum() > 400
    share = torch.bincount(drawn.tokens_BT[first, 1], minlength=VOCABULARY) / first.sum()
    _, state = model.score(torch.tensor([[word]]))
    assert_close(share.double(), model.next_token(state)[0].exp(), rtol=0, atol=0.06)
    ended = model.sample(50, 6, end=2, generator=torch.Generator().manual_seed(1))
    for row, length in zip(ended.tokens_BT.tolist(), ended.lengths_B.tolist(), strict=True):
        assert 2 not in row[: length - 1]
        assert length == 6 or row[length - 1] == 2
        assert set(row[length:]) <= {-1}


@kinds
def test_missing_tokens_are_summed_over(kind):
    model = make(**kind).eval()
    ids, missing = random_ids(2, 4, VOCABULARY), torch.zeros(2, 4, dtype=torch.bool)
    missing[0, 1] = missing[1, 3] = True
    found = model.score(ids, missing_BT=missing)[0].sum(1)
    for row, gap in ((0, 1), (1, 3)):
        filled = ids[row].repeat(VOCABULARY, 1)
        filled[:, gap] = torch.arange(VOCABULARY)
        total = model.score(filled)[0].sum(1).logsumexp(0)
        assert_close(found[row], total)


def test_a_belief_spread_by_a_gap_goes_on():
    model = make().eval()
    ids, missing = random_ids(1, 5, VOCABULARY), torch.tensor([[False, False, False, True, False]])
    whole = model.score(ids, missing_BT=missing)[0]
    _, state = model.score(ids[:, :4], missing_BT=missing[:, :4])
    assert_close(model.score(ids[:, 4:], state)[0][0, 0], whole[0, 4])


def test_a_text_too_long_for_memory_goes_in_pieces(monkeypatch):
    model, ids = make().eval(), random_ids(3, 20, VOCABULARY)
    lengths = torch.tensor([20, 7, 0])
    with torch.no_grad():
        whole, state = model.score(ids, None, lengths)
        monkeypatch.setattr(blocked_batches, "PIECE", (STATES // BLOCKS) ** 2 * 3 * 2)
        assert [part.shape[1] for part, _ in model._pieces(ids, lengths)] == [2] * 10
        pieces, after = model.score(ids, None, lengths)
        monkeypatch.setattr(blocked_batches, "PIECE", (STATES // BLOCKS) ** 2 * BLOCKS**2)  # all pairs, so any text
        assert len(list(model._pieces(ids, lengths))) == 1
    assert_close(pieces, whole)
    assert_close(after, state)


def test_state_in_state_out_padding_and_files(tmp_path):
    model = make(torch.float32).eval()
    assert_pieces_make_the_whole(model, VOCABULARY)
    assert_padding_does_not_matter(model, VOCABULARY)
    assert_it_survives_the_disk(model, VOCABULARY, tmp_path)


def test_an_improbable_text_is_scored_in_log_space():
    model = make(torch.float32, parameters="scalar", transition="flat").eval()
    with torch.no_grad():
        model.transition.table[:, :8] = -150.0  # the first block is all but closed
    ids = torch.tensor([[2, 0, 2, 0, 3]])
    found = model.score(ids)[0]
    slow = slow_score(model.double(), ids, None, None, model._keep())[0]
    assert slow.sum() < -250
    assert_close(found.double(), slow, rtol=1e-5, atol=1e-5)


def test_parameter_counts_are_the_published_ones():
    def millions(vocab_size, states, embeddings="independent"):
        model = BlockedHMM(BlockedConfig(vocab_size, states=states, transition="flat", embeddings=embeddings), seed=0)
        return round(sum(p.numel() for p in model.parameters()) / 1e6, 1)

    assert millions(10_000, 2**15) == 11.4
    assert millions(33_278, 2**15) == 17.3
    assert millions(10_000, 2**14) == 7.2
    assert millions(10_000, 2**14, "factored") == 5.6


def test_evaluation_uses_every_state_and_training_another_choice_each_batch():
    model, ids = make(dropout=0.5), random_ids(2, 6, VOCABULARY)
    model.train()
    assert not torch.equal(model.score(ids)[0], model.score(ids)[0])
    model.eval()
    assert torch.equal(model.score(ids)[0], model.score(ids)[0])
    kept = make(dropout=0.5)._keep()
    assert kept.states_GJ.shape == (BLOCKS, 4)
    assert (kept.states_GJ // 8 == torch.arange(BLOCKS)[:, None]).all()
    assert (kept.states_GJ.diff(dim=1) > 0).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"states": 100, "blocks": 3}, "multiple of model.blocks, such as 99"),
        ({"states": 24, "blocks": 12}, "12 blocks are more than the vocabulary's 11 types"),
        ({"states": 8, "blocks": 4, "dropout": 0.9}, "would leave no state of the 2 in a block"),
        ({"dropout": 1.0}, "below 1"),
        ({"clusters": "uniform"}, "transition=flat"),
        ({"parameters": "low_rank", "embeddings": "factored"}, "parameters=neural"),
        ({"unclustered": "the"}, "for clusters of a file"),
        ({"states": 0}, "at least 1"),
    ],
)
def test_shapes_that_cannot_be_are_refused(settings, sentence):
    with pytest.raises(TrellisError, match=sentence):
        BlockedConfig(VOCABULARY, **({"states": STATES, "blocks": BLOCKS} | settings))


def test_words_cannot_share_a_number_of_states_they_do_not_divide():
    with pytest.raises(TrellisError, match="such as 22"):
        BlockedHMM(BlockedConfig(VOCABULARY, states=25, blocks=1, clusters="words"))


def test_one_block_a_word_has_no_use_for_a_number_of_blocks():
    config = BlockedConfig(VOCABULARY, states=2 * VOCABULARY, blocks=128, width=6, clusters="words")
    assert BlockedHMM(config).states_GK.shape == (VOCABULARY, 2)
    with pytest.raises(TrellisError, match="would leave no state of the 1 in a block"):
        BlockedHMM(BlockedConfig(VOCABULARY, states=VOCABULARY, width=6, clusters="words", dropout=0.6))


def test_a_word_of_overlapping_groups_keeps_a_state():
    """Whatever dropout draws; the states that it keeps for others stay as many."""
    config = BlockedConfig(VOCABULARY, STATES, BLOCKS, width=6, clusters="uniform", transition="flat", dropout=0.9)
    model = BlockedHMM(config, seed=1, groups=uniform_subsets(VOCABULARY, STATES, 1, seed=3))
    for seed in range(20):
        torch.manual_seed(seed)
        kept = model._keep()
        assert kept.alive_S[model.states_GK].any(1).all()
        assert torch.equal(kept.alive_S.nonzero().flatten(), kept.all_S)
        assert config.kept(STATES) <= len(kept.all_S) <= config.kept(STATES) + VOCABULARY
        assert torch.isfinite(model.score(torch.arange(VOCABULARY)[None])[0]).all()


def test_too_many_states_for_tables_is_said(monkeypatch):
    monkeypatch.setattr(blocked, "LARGEST_DENSE", 8)
    with pytest.raises(TrellisError, match="do not fit in memory"):
        make().tables()


@pytest.fixture
def text():
    words = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d"])
    return prepare(MemoryCorpus("little", ["a b c d a", "b c a d d", "c c a b"] * 5), words), words


def test_groups_come_from_the_text_or_from_a_file(text, tmp_path):
    ids, words = text
    model = BlockedHMM.for_text(BlockedConfig(6, states=8, blocks=4), ids, words, seed=0)
    assert sorted(set(model.group_V.tolist())) == [0, 1, 2, 3]
    path = tmp_path / "paths"
    path.write_text("".join(f"{bits}\t{words.token(word)}\t1\n" for word, bits in enumerate("001010")))
    config = BlockedConfig(6, states=8, blocks=2, clusters=str(path))
    assert BlockedHMM.for_text(config, ids, words, seed=0).group_V.tolist() == [0, 0, 1, 0, 1, 0]
    with pytest.raises(TrellisError, match="neither brown, words, uniform nor a file that is there: 'bronw'"):
        BlockedHMM.for_text(BlockedConfig(6, states=8, blocks=4, clusters="bronw"), ids, words, seed=0)
    with pytest.raises(TrellisError, match=r"set model\.blocks=2"):
        BlockedHMM.for_text(BlockedConfig(6, states=8, blocks=4, clusters=str(path)), ids, words, seed=0)


def test_a_file_that_misses_words_stops_or_puts_them_where_asked(text, tmp_path):
    ids, words = text
    path = tmp_path / "paths"
    path.write_text("0\t<unk>\t1\n0\t<eos>\t1\n1\ta\t1\n")
    config = {"states": 8, "blocks": 2, "clusters": str(path)}
    with pytest.raises(TrellisError, match="no cluster for 3 of the vocabulary's 6 words"):
        BlockedHMM.for_text(BlockedConfig(6, **config), ids, words, seed=0)
    model = BlockedHMM.for_text(BlockedConfig(6, **config, unclustered="a"), ids, words, seed=0)
    assert model.group_V.tolist() == [0, 0, 1, 1, 1, 1]
    with pytest.raises(TrellisError, match="no cluster for 'z' either"):
        BlockedHMM.for_text(BlockedConfig(6, **config, unclustered="z"), ids, words, seed=0)


def test_a_state_in_no_subset_is_refused(text):
    config = BlockedConfig(6, states=40, blocks=5, width=6, clusters="uniform", transition="flat")
    with pytest.raises(TrellisError, match="of the 40 states are in no word's subset"):
        BlockedHMM.for_text(config, *text, seed=0)


def test_uniform_subsets_have_their_size_and_no_state_twice():
    groups = uniform_subsets(50, 40, 7, seed=1)
    assert isinstance(groups, Groups)
    assert groups.states_GK.shape == (50, 7)
    assert (groups.states_GK.diff(dim=1) > 0).all()
    assert not torch.equal(groups.states_GK[0], groups.states_GK[1])


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_of_nothing(kind, dtype):
    model = make(**kind, dropout=0.5, dtype=dtype)
    for shape in ((2, 0), (0, 3), (0, 0)):
        _, before = model.score(random_ids(shape[0], 3, VOCABULARY))
        for state in (None, before.detach()):
            log_prob, after = model.score(torch.zeros(shape, dtype=torch.int64), state)
            assert log_prob.shape == shape
            assert not any(grad.any() for grad in gradients(model, log_prob.sum() + 0 * after.sum()).values())
    model.eval()
    for shape in ((2, 0), (0, 3), (1, 1)):
        log_prob, state = model.score(torch.zeros(shape, dtype=torch.int64))
        assert log_prob.shape == shape
        assert state.shape == (shape[0], model.config.states)
    _, before = model.score(random_ids(2, 3, VOCABULARY))
    _, after = model.score(torch.zeros(2, 0, dtype=torch.int64), before)
    assert torch.equal(after, before)
    assert model.sample(2, 9, end=int(model.next_token()[0].argmax())).lengths_B.max() <= 9
