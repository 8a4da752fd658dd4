import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition
from trellis.text import Windows
from trellis.training import loop
from trellis.training.embeddings import begin_with_embeddings, taught_embeddings

from .runs import BLOCK_V, STATES, WORDS, run, settings, some_labels, taught, text

V = WORDS.vocab_size
LOW_RANK = {"transition": "low_rank", "emission": "low_rank", "width": 3}
ENCODERS = {
    "table": ({}, {"encoder.tables.leaving", "encoder.tables.entering", "encoder.tables.emitting"}),
    "merged": ({"shared": True}, {"encoder.tables.states"}),
    "residual": ({"encoder": "residual"}, {"encoder.states"}),
    "mlp": ({"encoder": "mlp"}, {"encoder.tables.states"}),
    "split mlp": (
        {"encoder": "mlp", "shared": False},
        {"encoder.tables.leaving", "encoder.tables.entering", "encoder.tables.emitting"},
    ),
    "transformer": ({"encoder": "transformer", "width": 6, "heads": 1}, {"encoder.tables.states"}),
    "factored": ({"encoder": "factored", "width": 6, "support": "brown", "blocks": 2}, {"encoder.states"}),
}
every_encoder = pytest.mark.parametrize(("changes", "names"), ENCODERS.values(), ids=ENCODERS.keys())


def make(seed=0, **changes):
    config = HMMConfig(V, STATES, **(LOW_RANK | changes))
    return HMM(config, seed, partition(BLOCK_V, STATES, 2) if config.support == "brown" else None)


def rms(tensor):
    return float(torch.as_tensor(tensor).square().mean().sqrt())


def given(width=3, **changes):
    distilled = taught(np.zeros(1, dtype=np.int64), **changes)
    wider = np.random.default_rng(0).normal(size=(STATES, width)).astype(np.float32)
    return distilled if width == 3 else distilled._replace(centroids_SR=wider)


@every_encoder
def test_states_begin_as_the_centres_in_the_size_of_fresh_ones(changes, names):
    model, fresh = make(**changes), make(**changes)
    distilled = given(6 if changes.get("encoder") == "transformer" else 3, centroids=True)
    begin_with_embeddings(model, distilled)
    before, after = dict(fresh.named_parameters()), dict(model.named_parameters())
    assert {name for name in after if not torch.equal(before[name], after[name])} == names
    for name in names:
        assert rms(after[name].detach()) == pytest.approx(rms(before[name].detach()), rel=1e-5)
        ratio = after[name].detach() / torch.from_numpy(distilled.centroids_SR)
        assert_close(ratio, torch.full_like(ratio, float(ratio[0, 0])))
        assert float(ratio[0, 0]) > 0


def test_words_begin_as_the_head_in_the_size_of_fresh_ones():
    model, fresh, distilled = make(bias=True), make(bias=True), given(head=True)
    begin_with_embeddings(model, distilled)
    before, after = dict(fresh.named_parameters()), dict(model.named_parameters())
    assert {name for name in after if not torch.equal(before[name], after[name])} == {"emission.words"}
    want = torch.from_numpy(distilled.head_VR) * rms(before["emission.words"].detach()) / rms(distilled.head_VR)
    assert_close(after["emission.words"].detach(), want)


def test_nothing_is_taken_unless_asked_for():
    model = make()
    begin_with_embeddings(model, given())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), make().parameters(), strict=True))
    assert taught_embeddings(model, given().settings) == ([], [])


# Frozen for a while


@pytest.mark.parametrize("method", ["adamw", "sgd"])
@pytest.mark.parametrize(("changes", "names"), [ENCODERS["table"], ENCODERS["residual"]], ids=["table", "residual"])
def test_what_is_frozen_moves_neither_with_its_moments_nor_without(changes, names, method, monkeypatch, tmp_path):
    """After each update: parameters and moments of what is frozen are as before, all others are not."""
    seen, update = [], loop._Run._update

    def noted(self, *arguments):
        found = update(self, *arguments)
        kept = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        by_name = dict(zip(kept, range(len(kept)), strict=True))
        moments = {
            name: self.learner.tensors()[f"{i}.{part}"].clone()
            for name, i in by_name.items()
            for part in (("exp_avg", "exp_avg_sq", "step") if method == "adamw" else ())
        }
        seen.append((kept, moments))
        return found

    monkeypatch.setattr(loop._Run, "_update", noted)
    labels = some_labels(text(tmp_path / "cache"))
    distilled = taught(labels, centroids=True, head=True, frozen=70)  # three updates of 24 tokens
    chosen = settings(init="distill", weight_decay=0.1, method=method, lr=0.05, warmup=0.0)
    run(tmp_path, chosen, make=lambda seed: make(seed, **changes), distilled=distilled)
    begun = make(0, **changes)
    begin_with_embeddings(begun, distilled)
    frozen = {*names, "emission.words"}
    for number, (kept, moments) in enumerate(seen[:6]):
        same = {name for name, p in begun.named_parameters() if torch.equal(p, kept[name])}
        assert same == (frozen if number < 3 else set())
        if method == "adamw":
            taken = {name: float(moments[name]) for name in moments}
            assert all(taken[name] == (max(0, number - 2) if name in frozen else number + 1) for name in taken)


def test_freezing_is_leaving_out_of_the_optimiser(tmp_path):
    """The gradient of what is frozen counts in nothing, not even in clipping: the same as without that parameter."""
    labels = some_labels(text(tmp_path / "cache"))
    chosen = settings(init="distill", clip=0.05, epochs=0.5)
    distilled = taught(labels, head=True, frozen=10**6)
    best = run(tmp_path, chosen, make=make, distilled=distilled, valid=False).best
    model, learnt = make(0), text(tmp_path / "cache")
    begin_with_embeddings(model, distilled)
    others = [p for name, p in model.named_parameters() if name != "emission.words"]
    optimizer = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    batching = Windows(learnt, batch_size=4, length=6, labels=labels, labelled_first=True)
    updates, tokens = round(0.5 * batching.steps_per_epoch), 0
    schedule = loop.Schedule(chosen, updates)
    for update, batch in zip(range(updates), batching.epoch(0), strict=False):
        loss = -model.score(batch.ids, None, batch.lengths, labels_BT=batch.labels)[0].sum() / batch.tokens
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 0.05)
        optimizer.param_groups[0]["lr"] = chosen.lr * schedule.at(update)
        optimizer.step()
        tokens += batch.tokens
    assert tokens <= distilled.settings.tokens
    found = HMM.from_pretrained(best)
    for (name, p), q in zip(model.named_parameters(), found.parameters(), strict=True):
        assert_close(q.detach(), p.detach(), rtol=1e-4, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}")


# What does not fit


@pytest.mark.parametrize(
    ("changes", "asked", "sentence"),
    [
        (
            {"transition": "scalar", "emission": "scalar"},
            {"centroids": True},
            r"^distill\.centroids needs states with embeddings: make model\.transition or model\.emission low_rank, or",
        ),
        ({"emission": "scalar"}, {"head": True}, r"^distill\.head needs words with vectors: set model\.emission=low_r"),
        (
            {"width": 2},
            {"centroids": True},
            r"^the teacher's centres have 3 dimensions and the model's embeddings 2: set distill\.pca=2, or model",
        ),
        ({"width": 4}, {"head": True}, r"^the teacher's output vectors have 3 .* 4: set distill\.pca=4, or model\.w"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(changes, asked, sentence, tmp_path):
    with pytest.raises(TrellisError, match=sentence):
        begin_with_embeddings(make(**changes), given(**asked))
    with pytest.raises(TrellisError, match=sentence):
        run(
            tmp_path, settings(init="distill"), make=lambda seed: make(seed, **changes),
            distilled=taught(some_labels(text(tmp_path / "cache")), **asked),
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_teacher_without_a_head_for_these_words_has_none_to_give():
    with pytest.raises(TrellisError, match=r"^this teacher has no output vectors for these words: leave out distill\."):
        begin_with_embeddings(make(), given(head=True)._replace(head_VR=None))


def test_centres_of_another_number_of_states_are_refused():
    distilled = given(centroids=True)
    with pytest.raises(TrellisError, match=r"^the teacher's centres are 3 vectors and the model wants 4: distil for"):
        begin_with_embeddings(make(), distilled._replace(centroids_SR=distilled.centroids_SR[1:]))
