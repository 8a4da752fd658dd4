"""In use, what is made of the parameters is made once; whatever changes them, the next answer is a fresh model's."""

import copy

import pytest
import torch
from torch.testing import assert_close

from trellis import ops
from trellis.models import HMM, HMMConfig, distributions, storage
from trellis.models.kept import Kept
from trellis.training.adamw import AdamW

from .makers import KINDS, VOCABULARY, assert_same_gradients, every_kind, gradients, make_kind, random_ids, support_of

SOME = ("dense scalar", "dense residual", "brown hierarchical table", "brown scalar", "uniform residual")
SOME_KINDS = {name: KINDS[name] for name in SOME}
some_kinds = pytest.mark.parametrize("kind", SOME_KINDS.values(), ids=SOME_KINDS.keys())
IDS = random_ids(4, 6, VOCABULARY)


def watch(model, monkeypatch):
    """The names of what is made of the model's parameters, as it is made."""
    made = []

    def count(owner, name):
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: made.append(name) or make(*args))

    for owner, names in (
        (model.encoder, ("encode", "vectors")),
        (model.emission, ("columns", "block_columns")),
        (model.start, ("logits",)),
        (model.transition, ("between",)),
    ):
        for name in names:
            count(owner, name)
    return made


def ask_everything(model):
    log_prob, state = model.score(IDS)
    model.score(IDS[:, :3], state, torch.tensor([3, 1, 2, 3]))
    model.filter(IDS)
    model.smooth(IDS, state)
    model.viterbi(IDS)
    model.next_token(state)
    model.next_token()
    return log_prob, state


@every_kind
def test_nothing_is_made_twice(kind, monkeypatch):
    model = make_kind(torch.float32, **kind).eval()
    made = watch(model, monkeypatch)
    with torch.no_grad():
        ask_everything(model)
        assert sorted(set(made) - {"vectors"}) == sorted(name for name in made if name != "vectors")
        once = list(made)
        ask_everything(model)
    assert made == once
    assert made.count("vectors") <= 4  # a role each
    assert {"columns", "block_columns"} & set(made) == ({"columns"} if model.support is None else {"block_columns"})


@every_kind
def test_what_is_kept_says_what_is_made_anew(kind):
    model = make_kind(**kind).eval()
    with torch.no_grad():
        kept, state = ask_everything(model)
        again, again_state = model.score(IDS)
    anew, anew_state = model.score(IDS)
    assert anew.requires_grad
    assert not again.requires_grad
    for found, want in ((kept, anew), (again, anew), (state, anew_state), (again_state, anew_state)):
        assert_close(found, want.detach())


@every_kind
def test_nothing_is_kept_while_learning(kind, monkeypatch):
    model = make_kind(torch.float32, **kind, dropout=0.5)
    made = watch(model, monkeypatch)
    for mode, grad in ((True, True), (True, False), (False, True)):
        model.train(mode)
        with torch.set_grad_enabled(grad):
            made.clear()
            model.score(IDS)
            once = len(made)
            assert once > 0
            model.score(IDS)
            assert len(made) == 2 * once
            assert model._kept.found == {}


@every_kind
def test_a_model_in_training_mode_predicts_word_by_word_without_making_its_emissions_again(kind, monkeypatch):
    model = make_kind(torch.float32, **kind, dropout=0.5)
    _, state = model.score(IDS)
    made = watch(model, monkeypatch)
    first = model.next_token(state)
    assert {"columns", "block_columns"} & set(made)
    made.clear()
    assert torch.equal(model.next_token(state), first)
    model.sample(2, 5)
    assert not {"columns", "block_columns"} & set(made)
    assert_close(model.eval().next_token(state), first)


def through_data(model):
    """As PyTorch does not count it, in whatever mode the model is."""
    for parameter in model.parameters():
        parameter.data.mul_(0.5)


@some_kinds
@pytest.mark.parametrize("moved", ["adamw", "optimiser_of_pytorch", "in_place", "state_dict", "double", "through_data"])
def test_in_training_mode_a_change_of_any_kind_is_noticed(kind, moved):
    model = make_kind(torch.float32, **kind)
    with torch.no_grad():
        _, state = model.score(IDS)
        before = model.next_token(state)
        assert torch.equal(model.next_token(state), before)
    globals()[moved](model)
    state = state.to(next(model.parameters()).dtype)
    fresh = copy.deepcopy(model).train()
    assert torch.equal(model.next_token(state), fresh.next_token(state))
    assert not torch.equal(model.next_token(state).float(), before)


@every_kind
def test_after_use_there_are_still_gradients(kind):
    model = make_kind(**kind).eval()
    want = gradients(model, model.score(IDS)[0].sum())
    with torch.no_grad():
        ask_everything(model)
    scores, state = model.score(IDS)
    assert scores.requires_grad
    assert state.requires_grad
    assert_same_gradients(gradients(model, scores.sum()), want)
    assert_same_gradients(gradients(model.train(), model.score(IDS)[0].sum()), want)


def adamw(model):
    """A step of our own optimiser."""
    loss = -model.score(IDS)[0].sum()
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    moved = [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]
    AdamW(list(model.parameters()), (0.9, 0.99), 0.01).step(moved, [0.1] * len(moved))


def adamw_of_pytorch(model):
    with ops.using(None):
        adamw(model)


def optimiser_of_pytorch(model):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model.score(IDS)[0].sum().backward()
    optimiser.step()


@torch.no_grad()
def in_place(model):
    next(reversed(list(model.parameters()))).mul_(1.5)


@torch.no_grad()
def in_place_at_one_place(model):
    next(iter(model.parameters())).view(-1)[0] += 1.0


def other(model):
    return HMM(model.config, seed=77, support=model.support).to(next(model.parameters()).dtype)


def restored(model):
    tensors = {name: tensor.clone() for name, tensor in storage.tensors_of(other(model)).items()}
    storage.restore(model, tensors, "memory")


def state_dict(model):
    model.load_state_dict(other(model).state_dict())


def assigned(model):
    model.load_state_dict(other(model).state_dict(), assign=True)


def double(model):
    model.to(torch.float64)


def there_and_back(model):
    """Rounded to three digits on the way."""
    model.to(torch.bfloat16).to(torch.float32)


def learning_again(model):
    """Moved where PyTorch does not count, but in training, which drops what was kept."""
    model.train()
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    model.eval()


CHANGES = [
    adamw, adamw_of_pytorch, optimiser_of_pytorch, in_place, in_place_at_one_place, restored, state_dict, assigned,
    double, there_and_back, learning_again,
]  # fmt: skip


@some_kinds
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_after_a_change_the_next_answer_is_a_fresh_model_s(kind, change):
    model = make_kind(torch.float32, **kind).eval()
    with torch.no_grad():
        before, _ = ask_everything(model)
    change(model)
    fresh = HMM(model.config, seed=5, support=model.support)
    storage.restore(fresh, {name: tensor.detach() for name, tensor in storage.tensors_of(model).items()}, "memory")
    fresh.eval()
    with torch.no_grad():
        state = model.score(IDS)[1]
        assert torch.equal(model.score(IDS)[0], fresh.score(IDS)[0])
        assert torch.equal(model.next_token(state), fresh.next_token(state))
        assert torch.equal(model.smooth(IDS).posterior_BTS, fresh.smooth(IDS).posterior_BTS)
        assert torch.equal(model.log_emission(), fresh.log_emission())
        assert not torch.equal(model.score(IDS)[0].double(), before.double())


@pytest.mark.parametrize("training", [False, True])
def test_probabilities_that_are_set_are_those_asked_for(training):
    model = HMM(HMMConfig(7, 4), seed=0).train(training)
    other = HMM(HMMConfig(7, 4), seed=1).eval()
    _, state = other.score(random_ids(2, 3, 7))
    model.tables()
    model.next_token(state)
    model.set_tables(*other.tables())
    assert_close(tuple(model.tables()), tuple(other.tables()))
    assert_close(model.next_token(state), other.next_token(state))
    assert_close(model.next_token(), other.next_token())


def test_counting_leaves_what_is_kept_as_it_is():
    model = HMM(HMMConfig(7, 4), seed=0).eval()
    with torch.no_grad():
        want = model.log_start().clone()
        first = model.expected_counts(random_ids(2, 4, 7))
        assert not model.log_start().requires_grad
        assert torch.equal(model.log_start(), want)
        assert_close(model.expected_counts(random_ids(2, 4, 7)), first, rtol=0, atol=0)


def test_what_is_kept_belongs_to_a_precision_and_a_level_of_native_code():
    model = make_kind(torch.float32, **KINDS["dense residual"] | {"states": 96, "width": 40}).eval()
    with torch.no_grad():
        full = model.score(IDS)[0]
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model.score(IDS)[0]
        with torch.autocast("cpu", torch.bfloat16):
            fresh = copy.deepcopy(model).train().eval().score(IDS)[0]
        assert torch.equal(rounded, fresh)
        assert not torch.equal(rounded, full)
        assert torch.equal(model.score(IDS)[0], full)
        with ops.using(None):
            slow = model.score(IDS)[0]
            assert torch.equal(slow, copy.deepcopy(model).train().eval().score(IDS)[0])
        assert torch.equal(model.score(IDS)[0], full)


@some_kinds
def test_inference_mode_is_use_too(kind):
    model = make_kind(torch.float32, **kind).eval()
    with torch.no_grad():
        want = ask_everything(model)
    with torch.inference_mode():
        assert_close(ask_everything(model), want)
    with torch.no_grad():
        assert_close(ask_everything(model), want)
    assert_same_gradients(
        gradients(model, model.score(IDS)[0].sum()), gradients(model.train(), model.score(IDS)[0].sum())
    )


@some_kinds
def test_a_model_made_in_inference_mode_keeps_nothing_and_answers(kind, monkeypatch):
    """Of whose parameters PyTorch does not count the changes."""
    want = make_kind(torch.float32, **kind).eval()
    with torch.inference_mode():
        model = make_kind(torch.float32, **kind).eval()
        assert_close(ask_everything(model), ask_everything(want))
        next(model.parameters()).mul_(2.0)
        next(want.parameters()).mul_(2.0)
        assert_close(ask_everything(model), ask_everything(want))


@some_kinds
def test_tables_too_large_to_keep_are_made_in_parts(kind, monkeypatch):
    model = make_kind(torch.float32, **kind).eval()
    with torch.no_grad():
        want = ask_everything(model)
        monkeypatch.setattr(distributions, "LARGEST_KEPT", 10)
        found = ask_everything(model.train().eval())
    assert_close(found, want)
    assert ("vectors" in model._kept.found) is (model.config.emission == "scalar")  # whose vectors are nothing


def test_a_copy_keeps_its_own():
    model = make_kind(torch.float32).eval()
    with torch.no_grad():
        before = model.score(IDS)[0]
        twin = copy.deepcopy(model)
        in_place(twin)
        assert torch.equal(model.score(IDS)[0], before)
        assert not torch.equal(twin.score(IDS)[0], before)


def test_things_are_kept_by_name_until_a_number_changes():
    module, kept, made = torch.nn.Linear(2, 2), Kept(), []
    module.register_buffer("count", torch.zeros(1))

    def make(name):
        return kept.get(module, name, lambda: made.append(name) or len(made))

    assert [make("a"), make("a"), make("b"), make("a")] == [1, 1, 2, 1]
    with torch.no_grad():
        module.count += 1
    assert [make("a"), make("b"), make("a")] == [3, 4, 3]
    module.weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert make("a") == 5


def test_a_support_of_other_states_is_no_other_model_s():
    """Buffers, too, are numbers that answers are made of."""
    model = make_kind(torch.float32, **KINDS["brown scalar"]).eval()
    with torch.no_grad():
        before = model.score(IDS)[0]
        model.block_V.copy_((model.block_V + 1) % 3)
        after = model.score(IDS)[0]
    other = HMM(model.config, 0, support_of("brown")._replace(block_V=model.block_V.clone()))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(after, other.eval().score(IDS)[0])
    assert not torch.equal(after, before)
