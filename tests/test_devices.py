"""Everything that models and runs do, on a device that is not the processor: the same answers, no tensor left behind.

The device is a pretended one (pretend_device.py): it computes as the processor does without native code, and refuses
to mix its tensors with the processor's.
"""

import json
import re
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from trellis import inference, ops
from trellis.cli import main
from trellis.evaluation import PROTOCOLS, evaluate
from trellis.inference.recursion import walk
from trellis.inspection import explained, inspect_states, stationary
from trellis.models import HMM, HMMConfig, load_model
from trellis.models.feed_forward import FeedForward, FeedForwardConfig
from trellis.models.hmm_rnn import HMMRNN, HMMRNNConfig
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import AWDLSTM, LSTM, AWDLSTMConfig, LSTMConfig
from trellis.models.supports import partition, uniform_subsets
from trellis.models.transformer import TransformerLM, TransformerLMConfig
from trellis.text import BATCHINGS
from trellis.training import checkpoints, loop

from . import pretend_device as pretended
from .pretend_device import PretendTensor, pretend_device
from .training.runs import (
    BLOCK_V,
    NEURAL,
    SCALAR,
    STATES,
    WORDS,
    diary,
    make_model,
    run,
    settings,
    some_labels,
    tensors,
    text,
)

V, MORE = WORDS.vocab_size, 16
LOW = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
FLAT = NEURAL | {"transition": "low_rank"}


def dense(seed, **shape):
    return HMM(HMMConfig(V, STATES, **shape), seed)


def blocks(seed, **shape):
    return HMM(HMMConfig(V, MORE, "brown", 2, **({"width": 6} | shape)), seed, partition(BLOCK_V, MORE, 2))


def uniform(seed, **shape):
    return HMM(HMMConfig(V, MORE, "uniform", 2, **({"width": 6} | shape)), seed, uniform_subsets(V, MORE, 8, seed=2))


HMMS = {
    "dense scalar": dense,
    "dense low-rank": partial(dense, **LOW),
    "neural hierarchical": partial(blocks, **NEURAL),
    "neural flat": partial(blocks, **FLAT),
    "factored hierarchical": partial(blocks, **(NEURAL | {"encoder": "factored"})),
    "hierarchical scalar": partial(blocks, **SCALAR),
    "flat scalar": blocks,
    "uniform neural": partial(uniform, **FLAT),
    "uniform scalar": uniform,
}
BASELINES = {
    "lstm": lambda seed: LSTM(LSTMConfig(V, width=6), seed),
    "awd_lstm": lambda seed: AWDLSTM(AWDLSTMConfig(V, width=6, hidden=8, layers=2), seed),
    "feed_forward": lambda seed: FeedForward(FeedForwardConfig(V, width=6), seed),
    "transformer": lambda seed: TransformerLM(TransformerLMConfig(V, width=8, layers=2, heads=2, context=4), seed),
    "hmm_rnn": lambda seed: HMMRNN(HMMRNNConfig(V, states=5, width=6), seed),
}


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


def there(thing, device):
    """Tensors on the device, in whatever they are held."""
    if isinstance(thing, Tensor):
        return thing.to(device)
    return {name: there(value, device) for name, value in thing.items()} if isinstance(thing, dict) else thing


def answers(found):
    """All tensors of an answer, by name."""
    if isinstance(found, HMM):
        return {name: tensor.detach() for name, tensor in found.state_dict().items()}
    if isinstance(found, Tensor):
        return {"answer": found.detach()}
    names = getattr(found, "_fields", range(len(found)))
    return {name: part.detach() for name, part in zip(names, found, strict=True)}


def assert_same_there(ask, model, told, device, **near):
    """Ask here, of PyTorch alone, then there; what is found there stays there."""
    with ops.using(None):
        want = answers(ask(model, **told))
        model.zero_grad()
        found = answers(ask(model.to(device), **there(told, device)))
    model.to("cpu")
    assert {name: tensor.device for name, tensor in found.items()} == dict.fromkeys(want, device)
    for name in want:
        assert_close(found[name].cpu(), want[name], **near, msg=lambda said, name=name: f"{name}: {said}")


# Questions


def situations(model):
    """The same text asked about in every way there is."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(V, (3, 4), generator=generator)
    lengths = torch.tensor([4, 0, 2])
    missing = torch.rand(3, 4, generator=generator) < 0.4
    lists_VK = torch.arange(STATES).expand(V, -1) if model.support is None else model.support.lists()
    labels = lists_VK[ids][..., 1].masked_fill(torch.rand(3, 4, generator=generator) < 0.4, -1)
    state = torch.rand(3, model.config.states, generator=generator)
    state[:, 1:] *= torch.rand(3, model.config.states - 1, generator=generator) < 0.5
    carried = {"state": state / state.sum(1, keepdim=True)}
    spread = {"state": torch.full((3, model.config.states), 1 / model.config.states)}
    everything = {"labels_BT": lists_VK[ids][..., 2]}
    gaps, ragged, labels = {"missing_BT": missing}, {"lengths_B": lengths}, {"labels_BT": labels}
    ways = [
        {}, ragged, carried, ragged | carried, spread, gaps, gaps | ragged | carried, labels, labels | ragged | carried,
        everything, everything | ragged | carried, gaps | labels,
    ]  # fmt: skip
    return [*({"ids_BT": ids} | told for told in ways), {"ids_BT": ids[:, :0]} | carried, {"ids_BT": ids[:0]}]


QUESTIONS = {
    "score": (),
    "filter": (),
    "smooth": (),
    "viterbi": (),
    "k_best": (3,),
    "sample_posterior": (4,),
    "entropy": (),
}


@torch.no_grad()
def ask(question, model, ids_BT, **told):
    """A question of a model; with states given, of its chain."""
    drawn = {"generator": torch.Generator().manual_seed(1)} if question == "sample_posterior" else {}
    if "labels_BT" in told and question != "score":
        return getattr(inference, question)(model.chain(ids_BT, **told), *QUESTIONS[question], **drawn)
    return getattr(model, question)(ids_BT, *QUESTIONS[question], **told, **drawn)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", HMMS)
def test_every_question_has_the_processors_answer(name, question, device):
    model = HMMS[name](0).eval()
    for told in situations(model):
        assert_same_there(partial(ask, question), model, told, device)


@pytest.mark.parametrize("name", ["dense scalar", "neural hierarchical", "flat scalar", "uniform neural"])
def test_rows_too_improbable_for_float32_have_the_processors_answer(name, device):
    """Which are done again in float64, one by one."""
    model = HMMS[name](0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 40.0
    ids = torch.randint(V, (4, 6), generator=torch.Generator().manual_seed(3))
    told = {"ids_BT": ids, "lengths_B": torch.tensor([6, 5, 4, 3])}
    assert rescued(model, **told)
    for question in QUESTIONS:
        assert_same_there(partial(ask, question), model, told, device)
    with torch.random.fork_rng(devices=[]):
        assert_same_there(seeded(gradients), model, told, device, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def rescued(model, **told):
    """Whether the walk in scaled probabilities fails for some row."""
    chain = model.chain(**told)
    return walk(chain, *chain.columns()).rescued


def gradients(model, **told):
    log_prob_BT, state = model.train().score(**told)
    model.zero_grad()
    log_prob_BT.sum().backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [log_prob_BT, state, *found]


@pytest.mark.parametrize("name", HMMS)
def test_gradients_are_the_processors(name, device):
    model = HMMS[name](0, dropout=0.5)
    for told in situations(model):
        if "missing_BT" not in told or model.support is None:
            with torch.random.fork_rng(devices=[]):
                assert_same_there(seeded(gradients), model, told, device, rtol=1e-5, atol=1e-6)


def seeded(ask):
    def asked(model, **told):
        torch.manual_seed(4)
        return ask(model, **told)

    return asked


OTHER_QUESTIONS = {
    "next_token": lambda model, state: model.next_token(state),
    "first token": lambda model, state: model.next_token(),
    "sample": lambda model, state: model.sample(3, 9, generator=torch.Generator().manual_seed(2)),
    "sample, carried": lambda model, state: model.sample(3, 9, state, 1, torch.Generator().manual_seed(2)),
    "sample, of the global generator": seeded(lambda model, state: model.sample(2, 5)),
    "predicted": lambda model, state: model.predicted(3, state),
    "tables": lambda model, state: model.tables(),
    "rows": lambda model, state: model.rows(torch.tensor([2, 0], device=model.device)),
    "plain": lambda model, state: model.plain(),
    "dense": lambda model, state: model.dense(),
    "usage": lambda model, state: model.smooth(torch.tensor([[2, 3, 2]], device=model.device)).usage(
        model.config.states
    ),
    "most probable": lambda model, state: model.smooth(torch.tensor([[2, 3, 2]], device=model.device)).most_probable(),
}


@pytest.mark.parametrize("question", OTHER_QUESTIONS)
@pytest.mark.parametrize("name", HMMS)
def test_every_other_question_has_the_processors_answer(name, question, device):
    model = HMMS[name](0).eval()
    with torch.no_grad():
        _, state = model.score(torch.tensor([[2, 3], [0, 6], [4, 4]]))
    with torch.random.fork_rng(devices=[]):
        assert_same_there(OTHER_QUESTIONS[question], model, {"state": state}, device)


def test_expected_counts_are_the_processors(device):
    model = make_model(0)
    for told in situations(model):
        if "missing_BT" not in told:
            assert_same_there(HMM.expected_counts, model, told, device)


@pytest.fixture
def draws(monkeypatch):
    """Operations of the device that draw random numbers, of which a real one has its own."""
    found, compute = [], pretended._run

    def noted(func, *arguments, **more):
        if torch.Tag.nondeterministic_seeded in func.tags:
            found.append(func)
        return compute(func, *arguments, **more)

    monkeypatch.setattr(pretended, "_run", noted)
    return found


@pytest.mark.parametrize("name", HMMS)
def test_an_hmm_draws_on_the_processor_so_that_a_seed_means_the_same_everywhere(name, draws):
    with pretend_device() as device:
        model, ids = HMMS[name](0, dropout=0.5).to(device), torch.tensor([[2, 3, 4], [5, 6, 2]], device=device)
        _, state = model.score(ids)
        model.score(ids, state.detach())
        model.eval().sample(2, 3)
        model.sample_posterior(ids, 3)
        assert draws == []
        torch.rand(3, device=device)
        assert draws != []  # otherwise this says nothing


# Learning

LEARNT = {
    "dense scalar": (dense, {}),
    "dense scalar, SGD": (dense, {"method": "sgd", "lr": 1.0, "weight_decay": 0.01}),
    "dense scalar, dropout": (partial(dense, dropout=0.5), {}),
    "dense low-rank": (partial(dense, **LOW, shared=True), {}),
    "Baum-Welch": (dense, {"method": "baum_welch", "step_size": 0.5}),
    "Baum-Welch, full batch": (dense, {"method": "baum_welch", "full_batch": True, "epochs": 2.0}),
    "joint": (dense, {"objective": "joint"}),
    "joint, Baum-Welch": (dense, {"objective": "joint", "method": "baum_welch"}),
    "joint, blocks": (partial(blocks, **NEURAL, dropout=0.5), {"objective": "joint", "lr": 0.01}),
    "neural hierarchical, dropout": (partial(blocks, **NEURAL, dropout=0.5), {"lr": 0.01, "accumulate": 2}),
    "neural hierarchical, SGD": (partial(blocks, **NEURAL, dropout=0.5), {"method": "sgd", "lr": 0.5}),
    "neural flat, dropout": (partial(blocks, **FLAT, dropout=0.5), {"lr": 0.01}),
    "factored hierarchical": (partial(blocks, **(NEURAL | {"encoder": "factored"})), {"lr": 0.01}),
    "hierarchical scalar, dropout": (partial(blocks, **SCALAR, dropout=0.5), {}),
    "flat scalar": (blocks, {}),
    "uniform neural, dropout": (partial(uniform, **FLAT, dropout=0.5), {"lr": 0.01}),
    "uniform scalar": (uniform, {}),
    "restarts": (dense, {"init": "restarts", "restarts": 2, "restart_steps": 2}),
    **{name: (make, {"lr": 0.01}) for name, make in BASELINES.items()},
}


def few(**changes):
    """Half the updates of other tests: here each of them takes longer."""
    return settings(**({"epochs": 1.0, "checkpoint_every": 4} | changes))


def labels_of(folder, make):
    """Labels for a model, if it is to learn from any."""
    model = make(0)
    states, block_V = model.config.states, None if model.support is None else BLOCK_V
    return some_labels(text(folder / "cache"), states, block_V)


def learn(folder, make, device, *, resume=False, **changes):
    labels = labels_of(folder, make) if changes.get("objective") == "joint" else None
    with ops.using(None):
        return run(folder, few(device=str(device), **changes), make=make, labels=labels, resume=resume)


def assert_near_runs(here, there):
    """Every number of the diary, and all that the newest checkpoint and the best model remember."""
    ours, theirs = diary(here), diary(there)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert other == pytest.approx(one, rel=1e-6)
    ours, theirs = tensors(here), tensors(there)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if re.search(r"(starting|entering)\.norm\.bias", name):  # moves all logits alike: no matter but to rounding
            continue
        assert_close(theirs[name], tensor, rtol=1e-5, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("name", LEARNT)
def test_a_run_there_is_the_processors(name, batching, device, tmp_path):
    make, changes = LEARNT[name]
    learn(tmp_path / "here", make, "cpu", batching=batching, **changes)
    learn(tmp_path / "there", make, device, batching=batching, **changes)
    assert_near_runs(tmp_path / "here", tmp_path / "there")


class CrashError(Exception):
    pass


@pytest.fixture
def crashing(monkeypatch):
    """Runs that crash after their fifth update, with a checkpoint of the fourth."""
    write = loop.Metrics.write

    def noted(self, update, **numbers):
        write(self, update, **numbers)
        if update == 5:
            raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(loop.Metrics, "write", noted)
        yield patch


@pytest.mark.parametrize("begun_here", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "dense scalar",
        "Baum-Welch",
        "joint",
        "neural hierarchical, SGD",
        "neural flat, dropout",
        "uniform scalar",
        "lstm",
    ],
)
def test_a_run_goes_on_on_another_device(name, begun_here, crashing, device, tmp_path):
    """And ends with the weights of one that was never disturbed."""
    make, changes = LEARNT[name]
    changes = {"batching": "streams"} | changes
    places = ("cpu", device) if begun_here else (device, "cpu")
    with pytest.raises(CrashError):
        learn(tmp_path / "moved", make, places[0], **changes)
    crashing.undo()
    learn(tmp_path / "moved", make, places[1], resume=True, **changes)
    learn(tmp_path / "undisturbed", make, "cpu", **changes)
    assert_near_runs(tmp_path / "undisturbed", tmp_path / "moved")


def test_carried_states_and_moments_go_on_where_the_model_is(crashing, device, tmp_path):
    make, changes = LEARNT["neural hierarchical, dropout"]
    with pytest.raises(CrashError):
        learn(tmp_path, make, "cpu", batching="streams", **(changes | {"accumulate": 1}))
    found = []

    def noted(self, batch, state):
        found.extend([batch.ids, batch.lengths, state, *self.model.parameters(), *self.model.buffers()])
        found.extend(tensor for name, tensor in self.tensors().items() if not name.endswith("step"))
        raise CrashError

    crashing.setattr(loop.GradientLearner, "learn", noted)
    with pytest.raises(CrashError):
        learn(tmp_path, make, device, batching="streams", resume=True, **(changes | {"accumulate": 1}))
    assert all(isinstance(tensor, PretendTensor) for tensor in found)


# Measuring


def counting(folder):
    return KneserNey.for_text(KneserNeyConfig(V, order=3), text(folder / "cache"), WORDS, 0)


@pytest.mark.parametrize("name", ["dense scalar", "neural hierarchical", "uniform neural", "kneser_ney", *BASELINES])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_perplexity_there_is_the_processors(name, protocol, device, tmp_path):
    held_out = text(tmp_path / "cache", 8, seed=1)
    model = counting(tmp_path) if name == "kneser_ney" else (HMMS | BASELINES)[name](0)
    with ops.using(None):
        want = evaluate(model, held_out, protocol, quiet=True)
        found = evaluate(model.to(device), held_out, protocol, quiet=True)
    assert found.nats == pytest.approx(want.nats, rel=1e-6)
    assert (found.protocol, found.tokens, found.impossible_at) == (want.protocol, want.tokens, None)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_impossible_token_there_is_found_where_it_is(protocol, device, tmp_path):
    model, held_out = make_model(0), text(tmp_path / "cache", 8, seed=1)
    start, transition, emission = model.tables()
    emission[:, WORDS.id("c")] = 0.0
    model.set_tables(start, transition, emission / emission.sum(1, keepdim=True))
    found = evaluate(model.to(device), held_out, protocol, quiet=True)
    assert found.impossible_at == held_out.ids.tolist().index(WORDS.id("c"))


def test_a_model_that_counts_is_measured_there(device, tmp_path):
    for name, where in (("here", "cpu"), ("there", device)):
        learn(tmp_path / name, lambda seed: counting(tmp_path), where)
    assert_near_runs(tmp_path / "here", tmp_path / "there")


def test_a_model_saved_there_is_the_same_here(device, tmp_path):
    model = HMMS["neural hierarchical"](0).eval()
    model.save_pretrained(tmp_path / "here", WORDS)
    model.to(device).save_pretrained(tmp_path / "there", WORDS)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert load_model(tmp_path / "there").device == torch.device("cpu")


@pytest.mark.parametrize("name", ["dense scalar", "neural hierarchical", "uniform scalar"])
def test_what_states_mean_there_is_what_they_mean_here(name, device, tmp_path):
    model, ids = HMMS[name](0).eval(), text(tmp_path / "cache")
    with ops.using(None):
        want = inspect_states(model, explained(model, ids, quiet=True), distinct=True), stationary(model.tables())
        model.to(device)
        found = inspect_states(model, explained(model, ids, quiet=True), distinct=True), stationary(model.tables())
        tables = model.tables()
        in_the_long_run = inspect_states(tables, stationary(tables))
    assert_close(found[1].cpu(), want[1], rtol=1e-6, atol=1e-9)
    assert [state.state for state in found[0].states] == [state.state for state in want[0].states]
    for a, b in zip(found[0].states, want[0].states, strict=True):
        assert [word.id for word in a.words] == [word.id for word in b.words]
        assert a.usage == pytest.approx(b.usage, rel=1e-5)
    assert len(in_the_long_run.states) == model.config.states


# A tensor that is left behind


def test_a_support_that_stays_on_the_processor_is_noticed(device):
    model = HMMS["flat scalar"](0).eval()
    left = model.states_MK
    model.to(device)
    model.states_MK = left
    with pytest.raises(RuntimeError, match=r"got .* from the cpu"):
        model.score(torch.tensor([[2, 3]], device=device))


def test_a_carried_state_that_stays_on_the_processor_is_noticed(device, monkeypatch, tmp_path):
    for name in ("dense scalar", "neural hierarchical"):
        model = HMMS[name](0).to(device)
        with pytest.raises(RuntimeError, match=r"got .* from the cpu"):
            model.score(torch.tensor([[2, 3]], device=device), torch.full((1, model.config.states), 0.1))
    monkeypatch.setattr(loop, "carry", lambda state, carried, rows: state.cpu()[:rows] if carried else None)
    with pytest.raises(RuntimeError, match=r"got .* from the cpu"):
        learn(tmp_path, dense, device, batching="streams")


@pytest.mark.parametrize("name", [*HMMS, *BASELINES])
def test_ids_that_stay_on_the_processor_are_noticed(name, device):
    model = (HMMS | BASELINES)[name](0).to(device)
    with pytest.raises(RuntimeError, match="from the cpu"):
        model.score(torch.tensor([[2, 3]]))


# The command line


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`trellis train` of a small text: exit code and what it said."""
    lines = [" ".join("abcde"[(start + i) % 5] for i in range(6)) for start in range(5)] * 8
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    told = {"data.corpus": tmp_path / "text.txt", "data.valid": tmp_path / "text.txt", "out": tmp_path / "run"}
    told |= {"model.states": 4, "training.batch_size": 4, "training.length": 8, "training.checkpoint_every": 2}

    def call(*more):
        code = main(["train", *(f"{name}={value}" for name, value in told.items()), *more])
        return code, capsys.readouterr().err

    return call


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_gpu_that_is_full_is_one_sentence_and_the_run_goes_on_from_its_checkpoint(
    error, command, device, monkeypatch, tmp_path
):
    score, left = HMM.score, iter(range(5))

    def scarce(self, *arguments, **more):
        if self.training and next(left, None) is None:
            raise error("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB")
        return score(self, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(HMM, "score", scarce)
        code, said = command(f"training.device={device}")
    assert code == 2
    assert said.splitlines()[-1].startswith("error: the GPU has not enough memory: ask for fewer states, a smaller")
    assert "Traceback" not in said
    assert [path.name for path in checkpoints.found(tmp_path / "run")] == ["checkpoint-2", "checkpoint-4"]
    assert said.splitlines()[-1].endswith("or compute on the processor (--device cpu).")
    code, said = command("--device", "cpu", "--resume")
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "loss" in line] == list(range(1, 1 + lines[-1]["update"]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["training.device=cudda"], r"training\.device cannot be 'cudda': did you mean 'cuda'\?"),
        (["training.device=lazy:0", "training.precision=bf16"], r"there are no bf16 products on lazy:0: set "),
    ],
)
def test_a_device_that_will_not_do_is_one_sentence_before_anything_is_written(
    settings, sentence, command, device, tmp_path
):
    code, said = command(*settings)
    assert code == 2
    assert re.search(f"error: {sentence}", said)
    assert not (tmp_path / "run").exists()
