from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trellis.errors import TrellisError
from trellis.text import BATCHINGS, Batch, MemoryCorpus, Sequences, Streams, Windows, WordTokenizer, prepare

from ..pretend_device import pretend_device

KINDS = list(BATCHINGS.values())


@st.composite
def settings(draw, world: int = 1):
    """A corpus whose ids are all different, so that a lost or doubled token cannot hide."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda lengths: sum(lengths) >= world))
    ends = np.cumsum(lengths)
    options = {
        "batch_size": draw(st.integers(world, int(ends[-1]))),
        "length": draw(st.integers(1, 12)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
    }
    return np.arange(ends[-1], dtype=np.uint16) + 1, ends, options


def rows(batch: Batch) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(batch.ids, batch.lengths.tolist(), strict=True)]


def same(one: Batch, other: Batch) -> bool:
    equal = torch.equal(one.ids, other.ids) and torch.equal(one.lengths, other.lengths)
    if one.labels is None or other.labels is None:
        return equal and one.carried == other.carried and one.labels is other.labels
    return equal and one.carried == other.carried and torch.equal(one.labels, other.labels)


def label_of(ids):
    """A label that tells every token from all others, and some that are unknown."""
    return np.where(np.asarray(ids) % 5 == 0, -1, np.asarray(ids, dtype=np.int64) * 7)


def labelled(batch: Batch) -> bool:
    """Whether every token has its own label, and padding none."""
    padding = torch.arange(batch.ids.shape[1]) >= batch.lengths[:, None]
    want = torch.from_numpy(label_of(batch.ids)).masked_fill(padding, -1)
    return batch.labels is not None and torch.equal(batch.labels, want)


@pytest.mark.parametrize("kind", KINDS)
@given(case=settings(), epoch=st.integers(0, 3))
def test_every_token_comes_once_an_epoch(kind, case, epoch):
    ids, ends, options = case
    loader = kind(ids, ends, **options)
    batches = list(loader.epoch(epoch))
    tokens = [token for batch in batches for row in rows(batch) for token in row]
    assert Counter(tokens) == Counter(ids.tolist())
    assert len(batches) == loader.steps_per_epoch
    assert sum(batch.tokens for batch in batches) == loader.tokens_per_epoch == len(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(case=settings())
def test_batches_are_well_formed(kind, case):
    ids, ends, options = case
    for step, batch in enumerate(kind(ids, ends, **options).epoch(0)):
        assert batch.ids.dtype == batch.lengths.dtype == torch.int64
        assert batch.ids.shape == (len(batch.lengths), int(batch.lengths.max()))
        assert int(batch.lengths.min()) >= 1
        if kind is Sequences:
            assert len(batch.ids) == 1 or batch.ids.numel() <= options["batch_size"] * options["length"]
        else:
            assert 1 <= len(batch.ids) <= options["batch_size"]
            assert int(batch.lengths.max()) <= options["length"]
        padding = torch.arange(batch.ids.shape[1]) >= batch.lengths[:, None]
        assert torch.equal(batch.ids == 0, padding)
        assert batch.carried == (kind is Streams and step > 0)


@pytest.mark.parametrize("kind", KINDS)
@given(case=settings(), start=st.integers(0, 40))
def test_starting_at_a_step_is_the_same_as_skipping_to_it(kind, case, start):
    ids, ends, options = case
    loader = kind(ids, ends, **options)
    skipped = islice(loader.batches(), start, start + 4)
    resumed = islice(kind(ids, ends, **options).batches(start_step=start), 4)
    assert all(same(*pair) for pair in zip(skipped, resumed, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3])
@given(data=st.data())
def test_processes_together_see_the_rows_of_one(kind, world, data):
    ids, ends, options = data.draw(settings(world))
    whole = kind(ids, ends, **options)
    parts = [kind(ids, ends, **options, rank=rank, world=world) for rank in range(world)]
    assert {part.steps_per_epoch for part in parts} == {whole.steps_per_epoch}
    for batch, *shares in zip(whole.epoch(1), *(part.epoch(1) for part in parts), strict=True):
        assert rows(batch) == [row for share in shares for row in rows(share)]
        assert {share.carried for share in shares} == {batch.carried}


@pytest.mark.parametrize("kind", KINDS)
@given(case=settings(), epoch=st.integers(0, 3))
def test_labels_go_with_their_tokens(kind, case, epoch):
    ids, ends, options = case
    batches = list(kind(ids, ends, **options, labels=label_of(ids)).epoch(epoch))
    bare = list(kind(ids, ends, **options).epoch(epoch))
    assert all(labelled(batch) and batch.labels.dtype == torch.int64 for batch in batches)
    assert all(batch.labels is None for batch in bare)
    assert [rows(batch) for batch in batches] == [rows(batch) for batch in bare]


@pytest.mark.parametrize("kind", KINDS)
@given(case=settings(), start=st.integers(0, 40))
def test_labels_go_with_their_tokens_when_resumed(kind, case, start):
    ids, ends, options = case
    skipped = islice(kind(ids, ends, **options, labels=label_of(ids)).batches(), start, start + 4)
    resumed = list(islice(kind(ids, ends, **options, labels=label_of(ids)).batches(start_step=start), 4))
    assert all(same(*pair) for pair in zip(skipped, resumed, strict=True))
    assert all(labelled(batch) for batch in resumed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3])
@given(data=st.data())
def test_labels_go_with_their_tokens_to_every_process(kind, world, data):
    ids, ends, options = data.draw(settings(world))
    parts = [kind(ids, ends, **options, rank=rank, world=world, labels=label_of(ids)) for rank in range(world)]
    for shares in zip(*(part.epoch(1) for part in parts), strict=True):
        assert all(labelled(share) for share in shares)


@pytest.mark.parametrize("shuffle", [True, False])
def test_labelled_windows_come_first_in_the_first_epoch(shuffle):
    """Also one that is labelled only in part; each half in the order that it has without labels."""
    ids, labels = np.arange(100), np.full(100, -1)
    labels[[3, 40, 41, 42, 43, 99]] = 7
    first, plain = (
        Windows(ids, batch_size=3, length=4, seed=5, shuffle=shuffle, labels=labels, labelled_first=wanted)
        for wanted in (True, False)
    )
    for epoch in range(2):
        ours, theirs = ([row for batch in some.epoch(epoch) for row in rows(batch)] for some in (first, plain))
        halves = [[row for row in theirs if bool((labels[row] >= 0).any()) is wanted] for wanted in (True, False)]
        assert len(halves[0]) == 3
        assert ours == (halves[0] + halves[1] if epoch == 0 else theirs)
        assert shuffle is (theirs != sorted(theirs))


def test_every_stream_begins_with_its_share_of_labelled_documents():
    """A hundred documents of ten tokens, a fifth of them labelled: four in each of five streams."""
    ids, ends = np.arange(1000), np.arange(10, 1001, 10)
    labels = np.where(np.arange(1000) < 200, 3, -1)
    batching = Streams(ids, ends, batch_size=5, length=20, seed=1, labels=labels, labelled_first=True)
    for epoch in range(2):
        given_BT = torch.cat([batch.labels >= 0 for batch in batching.epoch(epoch)], 1)
        assert int(given_BT.sum()) == 200
        assert (int(given_BT[:, :40].sum()) == 200) is (epoch == 0)
    whole = torch.cat([batch.ids for batch in batching.epoch(0)], 1)
    assert (whole.view(-1, 10).diff() == 1).all()  # documents stay whole
    assert whole[:, ::10].flatten().tolist() != sorted(whole[:, ::10].flatten().tolist())  # and are shuffled


@given(settings(), st.integers(0, 2), st.integers(0, 2**31))
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_first_changes_the_order_alone(kind, case, epoch, seed):
    ids, ends, options = case
    labels = np.where(np.random.default_rng(seed).random(len(ids)) < 0.2, label_of(ids), -1)
    ours, theirs = (
        list(kind(ids, ends, **options, labels=labels, labelled_first=wanted).epoch(epoch)) for wanted in (True, False)
    )
    found = [sorted(token for batch in some for row in rows(batch) for token in row) for some in (ours, theirs)]
    assert found[0] == found[1]
    if epoch > 0:
        assert all(map(same, ours, theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_labelled_ones_first_resume_and_are_shared_as_any_others(kind):
    ids, ends, labels = np.arange(97), np.array([0, 5, 5, 30, 31, 60, 97]), np.where(np.arange(97) % 9 < 2, 1, -1)

    def made(**options):
        return kind(ids, ends, batch_size=4, length=5, seed=3, labels=labels, labelled_first=True, **options)

    everything = list(islice(made().batches(), 12))
    assert all(map(same, everything[3:], islice(made().batches(3), 9)))
    parts = [list(islice(made(rank=rank, world=2).batches(), 12)) for rank in range(2)]
    for whole, *shares in zip(everything, *parts, strict=True):
        assert rows(whole) == [row for share in shares for row in rows(share)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_moves_with_everything_it_has(kind):
    with pretend_device() as device:
        for labels in (None, np.arange(10)):
            batch = next(kind(np.arange(10), batch_size=3, length=3, labels=labels).batches())
            moved = batch.to(device)
            assert {t.device for t in (moved.ids, moved.lengths, moved.labels) if t is not None} == {device}
            assert (moved.tokens, moved.carried) == (batch.tokens, batch.carried)
            assert same(moved.to(torch.device("cpu")), batch)


@given(case=settings())
def test_streams_joined_are_the_documents_each_whole(case):
    ids, ends, options = case
    streams: list[list[int]] = [[] for _ in range(options["batch_size"])]
    for batch in Streams(ids, ends, **options).epoch(0):
        for stream, row in zip(streams, rows(batch), strict=False):
            stream += row
    assert {len(stream) for stream in streams} <= {len(ids) // len(streams), len(ids) // len(streams) + 1}
    joined = [token for stream in streams for token in stream]
    if not options["shuffle"]:
        assert joined == ids.tolist()
    for document in np.split(ids, ends[:-1]):
        if len(document):
            begin = joined.index(document[0])
            assert joined[begin : begin + len(document)] == document.tolist()


@given(case=settings())
def test_windows_are_pieces_of_the_text(case):
    ids, ends, options = case
    expected = [ids[at : at + options["length"]].tolist() for at in range(0, len(ids), options["length"])]
    found = [row for batch in Windows(ids, ends, **options).epoch(0) for row in rows(batch)]
    assert sorted(found) == expected
    if not options["shuffle"]:
        assert found == expected


@given(case=settings(), epoch=st.integers(0, 3))
def test_sequences_are_the_documents_each_whole_and_like_with_like(case, epoch):
    ids, ends, options = case
    batches = [rows(batch) for batch in Sequences(ids, ends, **options).epoch(epoch)]
    documents = [part.tolist() for part in np.split(ids, ends[:-1]) if len(part)]
    assert sorted(row for batch in batches for row in batch) == sorted(documents)
    spans = sorted((len(batch[-1]), len(batch[0])) for batch in batches)  # shortest and longest of each
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_sequences_by_hand():
    ids, ends = np.arange(1, 16), np.array([2, 4, 4, 10, 11, 15])  # documents of 2, 2, 0, 6, 1 and 4
    batches = [rows(batch) for batch in Sequences(ids, ends, batch_size=2, length=2, shuffle=False).epoch(0)]
    assert batches == [[[5, 6, 7, 8, 9, 10]], [[12, 13, 14, 15]], [[1, 2], [3, 4]], [[11]]]


def test_documents_of_one_length_meet_others_every_epoch():
    loader = Sequences(np.arange(1, 101), np.arange(5, 101, 5), batch_size=4, length=5)
    together = [{tuple(sorted(map(tuple, rows(batch)))) for batch in loader.epoch(epoch)} for epoch in (0, 1)]
    assert together[0] != together[1]


def test_batches_with_labelled_sequences_come_first():
    labels = np.where(np.arange(100) == 77, 3, -1)
    loader = Sequences(
        np.arange(1, 101), np.arange(5, 101, 5), batch_size=2, length=5, labels=labels, labelled_first=True
    )
    assert int(next(loader.epoch(0)).labels.max()) == 3


def test_sequences_need_not_fill_rows():
    (batch,) = Sequences(np.arange(1, 6), np.array([2, 5]), batch_size=200, length=64, shuffle=False).epoch(0)
    assert rows(batch) == [[3, 4, 5], [1, 2]]


@pytest.mark.parametrize("kind", KINDS)
@given(case=settings())
def test_rows_begin_where_they_say(kind, case):
    ids, ends, options = case
    loader = kind(ids, ends, **{**options, "shuffle": False})
    for step, batch in enumerate(loader.epoch(0)):
        assert loader.begins(step).tolist() == [row[0] - 1 for row in rows(batch)]  # the first id is 1


def test_streams_by_hand():
    ids = np.arange(1, 12)
    batches = list(Streams(ids, batch_size=3, length=3, shuffle=False).epoch(0))
    assert [rows(batch) for batch in batches] == [[[1, 2, 3], [5, 6, 7], [9, 10, 11]], [[4], [8]]]
    assert [batch.carried for batch in batches] == [False, True]


def test_windows_by_hand():
    batches = list(Windows(np.arange(1, 12), batch_size=2, length=4, shuffle=False).epoch(0))
    assert [rows(batch) for batch in batches] == [[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10, 11]]]
    assert batches[0].ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_process_may_have_no_rows_at_the_end():
    last = list(Windows(np.arange(1, 10), batch_size=4, length=2, shuffle=False, rank=0, world=2).epoch(0))[-1]
    assert last.ids.shape == (0, 0)
    assert last.tokens == 0


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_and_seeds_differ_and_repeat(kind):
    ids, ends = np.arange(1, 101), np.arange(5, 101, 5)

    def order(seed: int, epoch: int) -> list[list[int]]:
        loader = kind(ids, ends, batch_size=4, length=5, seed=seed)
        return [row for batch in loader.epoch(epoch) for row in rows(batch)]

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(one != other for number, one in enumerate(orders) for other in orders[:number])
    assert order(1, 1) == orders[3]


def test_resuming_far_ahead_does_not_replay():
    loader = Windows(np.arange(1, 1001), batch_size=10, length=10)
    assert same(next(loader.batches(10**12 + 3)), list(loader.epoch(10**11))[3])


def test_an_id_file_brings_its_documents(tmp_path):
    corpus = MemoryCorpus("x", tuple(f"w{number} w{number}" for number in range(20)))
    file = prepare(corpus, WordTokenizer.train(corpus), tmp_path)
    batch = next(Streams(file, batch_size=1, length=60).epoch(0))
    text = batch.ids[0].reshape(20, 3)
    assert torch.equal(text[:, 0], text[:, 1])
    assert text[:, 2].tolist() == [1] * 20
    assert text[:, 0].tolist() != file.ids[::3].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 11}, "10 tokens cannot fill 11 rows"),
        ({"batch_size": 0}, "set batch_size to 1"),
        ({"length": 0}, "set length to 1"),
        ({"seed": -1}, "seed -1 is negative"),
        ({"rank": 2, "world": 2}, "ranks go from 0"),
        ({"rank": -1, "world": 2}, "ranks go from 0"),
        ({"world": 3}, "3 processes cannot share 2 rows"),
        ({"documents": np.array([3, 9])}, "documents' ends"),
        ({"documents": np.array([7, 3, 10])}, "documents' ends"),
        ({"documents": np.array([], dtype=int)}, "documents' ends"),
        ({"ids": np.array([], dtype=int)}, "no tokens"),
        ({"labels": np.arange(9)}, "There are 9 labels for 10 tokens"),
        ({"labels": np.zeros((2, 5), dtype=int)}, "There are 2 × 5 labels for 10 tokens"),
        ({"labels": np.zeros(10)}, "Labels of type float64 are no states"),
    ],
)
def test_bad_settings(kind, options, message):
    if kind is Sequences and "cannot fill" in message:
        return  # documents fill rows of any number
    with pytest.raises(TrellisError, match=message):
        kind(**{"ids": np.arange(10), "batch_size": 2, "length": 3, **options})


def test_there_is_no_step_before_the_first():
    with pytest.raises(TrellisError, match="no step -1"):
        next(Windows(np.arange(10), batch_size=2, length=3).batches(-1))
