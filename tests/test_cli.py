"""The commands on a tiny model, held to what the library says."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from trellis import HMM, evaluate, load_tokenizer, open_corpus, prepare
from trellis.cli import main
from trellis.inspection import inspect_states, stationary
from trellis.models import blocked, load_model

SUBJECTS, VERBS, OBJECTS = ("the cat", "a dog", "one bird"), ("saw", "likes", "heard"), ("the milk", "a bone", "seeds")
LINES = [f"{s} {v} {o}" for s in SUBJECTS for v in VERBS for o in OBJECTS]
TINY = ["model.states=8", "training.batch_size=8", "training.length=8", "training.epochs=3", "training.lr=0.2"]


def call(capsys, *arguments):
    """Run a command in this process: exit code, standard output and standard error."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def done(capsys, *arguments):
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    return out


def rows(out):
    """Tab-separated output, without its heading."""
    return [line.split("\t") for line in out.splitlines()[1:]]


def records(out):
    return [json.loads(line) for line in out.splitlines()]


def type_in(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with texts, and a cache of its own."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in LINES * 8))
    (folder / "valid.txt").write_text("".join(f"{line}\n" for line in LINES[::3]))
    (folder / "test.txt").write_text("the cat likes seeds\na dog heard a bone\n\none fish saw the milk\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(folder / "cache"))
        patch.setenv("COLUMNS", "100")
        yield folder


@pytest.fixture(scope="module")
def texts(place):
    return [
        f"data.{split}={place / name}.txt"
        for split, name in (("corpus", "train"), ("valid", "valid"), ("test", "test"))
    ]


@pytest.fixture(scope="module")
def run(place, texts):
    folder = place / "run"
    assert main(["train", *texts, *TINY, f"out={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def model(run):
    return HMM.from_pretrained(run / "best")


@pytest.fixture(scope="module")
def tokenizer(run):
    return load_tokenizer(run / "best")


def nats_of(model, tokenizer, text, state=None):
    log_prob_BT, state = model.score(torch.tensor([[*tokenizer.encode(text), tokenizer.eos_id]]), state)
    return log_prob_BT[0].tolist(), state


# prepare


def test_prepare_counts_and_says_where(capsys, place):
    found = json.loads(done(capsys, "prepare", place / "train.txt", "--json"))
    assert (found["documents"], found["vocab_size"], found["unknown"]) == (216, 2 + 12, 0)
    assert found["tokens"] == sum(len(line.split()) + 1 for line in LINES * 8)
    assert (Path(found["folder"]) / "ids.bin").exists()
    shown = done(capsys, "prepare", place / "train.txt", "--vocab-size", 6, "--max-tokens", 100)
    assert "types      6" in shown
    assert "%)" in shown


def test_prepare_learns_the_vocabulary_of_the_train_split(capsys, place, tmp_path):
    (tmp_path / "ptb").mkdir()
    for split, text in (("train", "a b c"), ("valid", "a x"), ("test", "y")):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(text)
    found = json.loads(done(capsys, "prepare", "ptb", "--split", "valid", "--data-dir", tmp_path, "--json"))
    assert (found["vocab_size"], found["unknown"], found["tokens"]) == (5, 1, 3)


def test_prepare_learns_bytes(capsys, place):
    found = json.loads(
        done(capsys, "prepare", place / "train.txt", "--tokenizer", "bpe", "--vocab-size", 300, "--json")
    )
    assert found["unknown"] == 0
    assert 257 < found["vocab_size"] <= 300


# train


def test_training_learns_and_leaves_everything(run, model, place, tokenizer):
    assert {"best", "config.yaml", "metrics.jsonl", "tensorboard"} <= {path.name for path in run.iterdir()}
    measured = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert min(line["valid_perplexity"] for line in measured if "valid_perplexity" in line) < 10
    assert model.config.states == 8


def test_the_saved_config_is_the_whole_run(run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["states"] == 8
    assert config["training"]["seed"] == 0
    assert config["out"] == str(run)


def test_training_ends_with_figures_and_what_to_try_next(capsys, place, texts, tmp_path):
    out = done(capsys, "train", *texts, *TINY, "training.epochs=0.2", f"out={tmp_path / 'r'}")
    assert "best validation perplexity" in out
    assert f"trellis evaluate {tmp_path / 'r'}" in " ".join(out.split())
    code, out, err = call(capsys, "train", tmp_path / "r" / "config.yaml", "--resume", "--json")
    assert code == 0
    assert json.loads(out)["model"] == str(tmp_path / "r" / "best")
    assert "learning from train.txt" in err


def test_what_to_try_next_works_for_models_too_large_for_tables(capsys, place, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(blocked, "LARGEST_DENSE", 8)
    shape = ["model.kind=blocked", "model.states=12", "model.blocks=3", "model.width=4", "training.epochs=0.2"]
    out = done(capsys, "train", *texts, *TINY, *shape, f"out={tmp_path / 'r'}")
    (command,) = re.findall(rf"trellis (inspect {re.escape(str(tmp_path / 'r'))} --corpus \S+)", " ".join(out.split()))
    assert "12 states" in done(capsys, *command.split())
    code, _, err = call(capsys, "inspect", tmp_path / "r")
    assert (code, "measure usage on text" in " ".join(err.split())) == (2, True)


def test_the_same_config_gives_the_same_model(capsys, run, tmp_path):
    done(capsys, "train", run / "config.yaml", f"out={tmp_path / 'again'}")
    first, second = ((folder / "best" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "again"))
    assert first == second


def test_without_validation_text_the_last_model_counts(capsys, place, tmp_path):
    out = done(capsys, "train", f"data.corpus={place / 'valid.txt'}", *TINY, f"out={tmp_path / 'r'}")
    assert "no validation text" in out
    assert (tmp_path / "r" / "best").exists()


def test_nothing_to_resume_is_a_beginning(capsys, place, texts, tmp_path):
    code, _, err = call(capsys, "train", *texts, *TINY, "training.epochs=0.1", f"out={tmp_path / 'r'}", "--resume")
    assert code == 0
    assert "nothing to resume" in err


def test_ctrl_c_stops_with_a_checkpoint_that_other_settings_cannot_take_over(capsys, run, place, tmp_path):
    folder = tmp_path / "stopped"
    command = [sys.executable, "-m", "trellis.cli", "train", run / "config.yaml", f"out={folder}", "--threads", "1"]
    process = subprocess.Popen([*map(str, command), "training.epochs=600"], stderr=subprocess.PIPE, text=True)
    while not (folder / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "--resume goes on" in err
    assert list(folder.glob("checkpoint-*"))
    code, _, err = call(capsys, "train", folder, "--resume", "training.epochs=3")
    assert code == 2
    assert "holds another run, with training.epochs=600" in err


# evaluate


@pytest.mark.parametrize("protocol", ["stream", "streams", "windows"])
def test_evaluate_says_what_the_library_says(capsys, run, model, tokenizer, place, protocol):
    found = json.loads(done(capsys, "evaluate", run, place / "test.txt", "--protocol", protocol, "--json"))
    truth = evaluate(model, prepare(open_corpus(place / "test.txt"), tokenizer), protocol)
    assert found == found | truth.as_dict()
    assert (found["unknown"], found["words"]) == (1, truth.words)


def test_evaluate_defaults_to_the_runs_own_test_text(capsys, run, place):
    named = json.loads(done(capsys, "evaluate", run, place / "test.txt", "--json"))
    assert json.loads(done(capsys, "evaluate", run, "--json")) == named
    assert json.loads(done(capsys, "evaluate", run / "best", "--json")) == named
    assert json.loads(done(capsys, "evaluate", run, "--split", "valid", "--json")) != named


def test_evaluate_takes_prepared_ids(capsys, run, place):
    ids = json.loads(done(capsys, "prepare", place / "test.txt", "--tokenizer", run / "best", "--json"))["folder"]
    named = done(capsys, "evaluate", run, place / "test.txt", "--json")
    assert done(capsys, "evaluate", run, ids, "--json") == named


def test_evaluate_shows_all_figures(capsys, run):
    out = done(capsys, "evaluate", run)
    for name in ("perplexity", "tokens", "unknown", "word perplexity", "bits per byte", "nats"):
        assert name in out


def test_evaluate_names_the_impossible_token(capsys, place, tokenizer, model, tmp_path):
    hmm = HMM(model.config)
    start_S, transition_SS, emission_SV = model.tables()
    emission_SV = emission_SV.clone()
    emission_SV[:, tokenizer.id("seeds")] = 0.0
    hmm.set_tables(start_S, transition_SS, emission_SV / emission_SV.sum(1, keepdim=True))
    hmm.save_pretrained(tmp_path / "m", tokenizer)
    code, out, err = call(capsys, "evaluate", tmp_path / "m", place / "test.txt", "--json")
    assert code == 0
    assert json.loads(out)["perplexity"] is None
    assert "'seeds', token 4 of document 1 (token 4 of the text)" in err
    code, out, _ = call(capsys, "decode", tmp_path / "m", place / "test.txt")
    assert rows(out)[0][1].startswith("impossible")
    assert (
        records(done(capsys, "decode", tmp_path / "m", place / "test.txt", "--posterior", "--json"))[0]["posterior"]
        == []
    )
    assert records(done(capsys, "score", tmp_path / "m", place / "test.txt", "--json"))[0]["log_prob"] is None


# score


def test_carried_scores_add_up_to_the_evaluation(capsys, run, place):
    nats = json.loads(done(capsys, "evaluate", run, "--json"))["nats"]
    scored = records(done(capsys, "score", run, place / "test.txt", "--carry", "--json"))
    assert -sum(line["log_prob"] for line in scored) == pytest.approx(nats, rel=1e-6)


def test_lines_are_scored_on_their_own(capsys, run, place, model, tokenizer):
    scored = rows(done(capsys, "score", run, place / "test.txt"))
    assert [line[3] for line in scored] == (place / "test.txt").read_text().splitlines()
    assert [(line[1], line[2]) for line in scored] == [("5", "0"), ("6", "0"), ("1", "0"), ("6", "1")]
    for line in scored:
        assert float(line[0]) == pytest.approx(sum(nats_of(model, tokenizer, line[3])[0]), abs=1e-3)


@pytest.mark.parametrize(("base", "unit"), [("2", math.log(2)), ("10", math.log(10))])
def test_bases(capsys, run, place, base, unit):
    natural = records(done(capsys, "score", run, place / "test.txt", "--json"))
    other = records(done(capsys, "score", run, place / "test.txt", "--json", "--base", base))
    assert [line["log_prob"] * unit for line in other] == pytest.approx([line["log_prob"] for line in natural])
    assert f"log{base} p" in done(capsys, "score", run, place / "test.txt", "--base", base).splitlines()[0]


def test_every_token_from_standard_input(capsys, monkeypatch, run, model, tokenizer):
    type_in(monkeypatch, "the cat saw\n")
    found = rows(done(capsys, "score", run, "--tokens"))
    assert [line[1] for line in found] == ["the", "cat", "saw", "<eos>"]
    assert [float(line[2]) for line in found] == pytest.approx(nats_of(model, tokenizer, "the cat saw")[0], abs=1e-3)


def test_no_eos_and_empty_lines(capsys, monkeypatch, run):
    type_in(monkeypatch, "the\n\n")
    scored = records(done(capsys, "score", run, "-", "--no-eos", "--json"))
    assert [line["tokens"] for line in scored] == [1, 0]
    assert scored[1]["log_prob"] == 0.0
    type_in(monkeypatch, "\n")
    assert records(done(capsys, "score", run, "--no-eos", "--json"))[0]["tokens"] == 0


def test_a_gap_is_summed_over(capsys, monkeypatch, run, tokenizer):
    vocabulary = [tokenizer.token(id) for id in range(tokenizer.vocab_size)]
    type_in(monkeypatch, "".join(f"the {word} saw\n" for word in ["<mask>", *vocabulary]))
    gap, *filled = (line["log_prob"] for line in records(done(capsys, "score", run, "--json", "--no-eos")))
    # The text "<eos>" is a word like any other between spaces, so that every id takes part.
    assert gap == pytest.approx(math.log(sum(map(math.exp, filled))), abs=1e-4)


def test_long_lines_and_many_lines(capsys, run, model, tokenizer, tmp_path):
    long = " ".join(LINES * 50)
    (tmp_path / "long.txt").write_text("\n".join([LINES[0], long, *LINES * 3]))
    scored = records(done(capsys, "score", run, tmp_path / "long.txt", "--json"))
    assert [line["line"] for line in scored] == list(range(1, 84))
    assert scored[1]["log_prob"] == pytest.approx(sum(nats_of(model, tokenizer, long)[0]), rel=1e-5)
    assert scored[0]["log_prob"] == pytest.approx(scored[2]["log_prob"])


def test_lines_may_begin_after_an_end(capsys, run, place, model, tokenizer):
    _, after = model.score(torch.tensor([[tokenizer.eos_id]]))
    for line in records(done(capsys, "score", run, place / "test.txt", "--bos", "--json")):
        assert line["log_prob"] == pytest.approx(sum(nats_of(model, tokenizer, line["text"], after)[0]), rel=1e-5)
    for line in records(done(capsys, "decode", run, place / "test.txt", "--bos", "--json")):
        best = model.viterbi(torch.tensor([[*tokenizer.encode(line["text"]), tokenizer.eos_id]]), after)
        assert line["paths"][0]["log_prob"] == pytest.approx(float(best.log_prob_B), rel=1e-5)


# decode


def test_the_best_path(capsys, run, place, model, tokenizer):
    found = records(done(capsys, "decode", run, place / "test.txt", "--json"))
    for line in found:
        best = model.viterbi(torch.tensor([[*tokenizer.encode(line["text"]), tokenizer.eos_id]]))
        assert line["paths"][0]["states"] == best.states_BT[0].tolist()
        assert line["paths"][0]["log_prob"] == pytest.approx(float(best.log_prob_B), rel=1e-5)
    shown = rows(done(capsys, "decode", run, place / "test.txt"))
    states = found[0]["paths"][0]["states"]
    words = ["the", "cat", "likes", "seeds", "<eos>"]
    assert shown[0][2] == " ".join(f"{word}/{state}" for word, state in zip(words, states, strict=True))


def test_several_paths_with_entropy(capsys, run, place, model, tokenizer):
    shown = rows(done(capsys, "decode", run, place / "test.txt", "--k", 3, "--entropy"))
    first = [line for line in shown if line[0] == "1"]
    assert len(first) == 3
    assert [float(line[1]) for line in first] == sorted((float(line[1]) for line in first), reverse=True)
    ids = torch.tensor([[*tokenizer.encode("the cat likes seeds"), tokenizer.eos_id]])
    assert float(first[0][2]) == pytest.approx(float(model.entropy(ids)), abs=1e-3)


def test_posteriors_and_samples(capsys, run, place, model, tokenizer):
    found = records(done(capsys, "decode", run, place / "test.txt", "--posterior", "--json"))
    ids = torch.tensor([[*tokenizer.encode("the cat likes seeds"), tokenizer.eos_id]])
    probability_T, state_T = model.smooth(ids).posterior_BTS[0].max(-1)
    assert found[0]["posterior"][0]["states"] == state_T.tolist()
    assert found[0]["posterior"][0]["probabilities"] == pytest.approx(probability_T.tolist(), abs=1e-5)
    assert ":" in rows(done(capsys, "decode", run, place / "test.txt", "--posterior"))[0][1]
    drawn = [done(capsys, "decode", run, place / "test.txt", "--samples", 2, "--seed", 5) for _ in "ab"]
    assert drawn[0] == drawn[1]
    assert [line[:2] for line in rows(drawn[0])[:3]] == [["1", "1"], ["1", "2"], ["2", "1"]]


def test_decoding_nothing(capsys, monkeypatch, run):
    type_in(monkeypatch, "\nthe\n")
    assert [len(line["tokens"]) for line in records(done(capsys, "decode", run, "--no-eos", "--json"))] == [0, 1]


# sample


def test_samples_repeat_and_go_on_from_the_prompt(capsys, run):
    first, second = (done(capsys, "sample", run, "--seed", 3, "--prompt", "the cat", "--count", 4) for _ in "ab")
    assert first == second
    assert len(first.splitlines()) == 4
    assert all(line.startswith("the cat") and "<eos>" not in line for line in first.splitlines())


def test_samples_as_records(capsys, run, tokenizer):
    found = records(done(capsys, "sample", run, "--length", 5, "--json"))
    assert len(found) == 3
    for line in found:
        assert len(line["ids"]) == len(line["states"]) <= 5
        assert line["ended"] == (line["ids"][-1] == tokenizer.eos_id)
    again = records(done(capsys, "sample", run, "--length", 5, "--json", "--seed", found[0]["seed"]))
    assert again == found


def test_samples_begin_like_sentences(capsys, run):
    found = done(capsys, "sample", run, "--seed", 0, "--count", 40).splitlines()
    assert sum(line.startswith(("the ", "a ", "one ")) for line in found) >= 36
    assert done(capsys, "sample", run, "--seed", 0, "--count", 40, "--no-bos").splitlines() != found


def test_unknown_words_of_a_prompt_are_mentioned(capsys, run):
    assert "1 of the prompt's 2 words" in call(capsys, "sample", run, "--prompt", "the fish")[2]


# inspect


def test_inspect_says_what_the_library_says(capsys, run, model, tokenizer):
    found = json.loads(done(capsys, "inspect", run, "--states", 3, "--words", 2, "--json"))
    truth = inspect_states(model.tables(), stationary(model.tables()), words=2)
    assert [state["state"] for state in found["states"]] == [state.state for state in truth.states[:3]]
    assert found["states"][0]["words"][0][0] == tokenizer.token(truth.states[0].words[0].id)
    assert (found["total"], found["dead"]) == (8, truth.dead)


def test_inspect_on_a_corpus(capsys, run, place):
    out = done(capsys, "inspect", run, "--corpus", place / "valid.txt", "--distinct")
    assert "posterior over valid.txt" in " ".join(out.split())
    assert "dead" in out


# everything


def test_help_does_not_wait_for_torch():
    code = "import sys, trellis.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("command", ["prepare", "train", "evaluate", "score", "decode", "sample", "inspect"])
def test_every_command_explains_itself_with_an_example(capsys, command):
    out = done(capsys, command, "--help")
    assert "Example" in out
    assert f"trellis {command} " in out
    assert "--json" in out
    assert "--threads" in out


def test_help_alone(capsys):
    assert "Start here" in done(capsys)


def test_a_reader_that_leaves_early_hears_no_complaint(run, place):
    (place / "many.txt").write_text("the cat saw\n" * 20_000)
    command = f"'{sys.executable}' -m trellis.cli score '{run}' '{place / 'many.txt'}' --threads 1 | head -n 1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("ln p")
    assert found.stderr == ""


@pytest.mark.slow
def test_two_processes_learn_as_one_and_only_the_first_speaks(run, tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "trellis.cli",
        "train",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [str(run / "config.yaml"), f"out={tmp_path / 'two'}", "--json"]
    found = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 1
    one, two = (HMM.from_pretrained(folder / "best").tables() for folder in (run, tmp_path / "two"))
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-5)


def test_cluster_writes_every_type_under_a_path(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(LINES))
    out = json.loads(done(capsys, "cluster", text, "--clusters", 4, "--out", tmp_path / "paths", "--json"))
    entries = [line.split("\t") for line in (tmp_path / "paths").read_text().splitlines()]
    assert out["types"] == len(entries) == len({word for line in LINES for word in line.split()}) + 2
    assert len({path for path, _, _ in entries}) == 4
    path_of = {word: path for path, word, _ in entries}
    assert path_of["saw"] == path_of["likes"] == path_of["heard"]


@pytest.fixture(scope="module")
def blocked_run(place, texts):
    folder = place / "blocked"
    shape = ["kind=blocked", "states=12", "blocks=4", "width=8", "dropout=0.5"]
    assert main(["train", *texts, *(f"model.{one}" for one in shape), *TINY[1:4], "training.lr=0.02", f"out={folder}",
                 "training.batching=streams"]) == 0  # fmt: skip
    return folder


def test_a_blocked_model_answers_every_command(capsys, monkeypatch, blocked_run):
    model = load_model(blocked_run / "best")
    assert model.config.kind == "blocked"
    assert len(set(model.group_V.tolist())) == 4
    type_in(monkeypatch, "the cat likes seeds\n")
    (best,) = records(done(capsys, "decode", blocked_run, "--json"))
    tokenizer = load_tokenizer(blocked_run / "best")
    ids = torch.tensor([[tokenizer.id(word) for word in best["tokens"]]])
    assert best["paths"][0]["states"] == model.viterbi(ids).states_BT[0].tolist()
    type_in(monkeypatch, "the <mask> likes seeds\n")
    (gap,) = records(done(capsys, "decode", blocked_run, "--posterior", "--json"))
    assert len(gap["posterior"][0]["states"]) == len(best["tokens"])
    corpus = ["--corpus", blocked_run.parent / "valid.txt", "--states", 12]
    (found,) = records(done(capsys, "inspect", blocked_run, *corpus, "--json"))
    assert sum(state["usage"] for state in found["states"]) == pytest.approx(1.0, abs=1e-6)
    shown = {state["state"]: state["words"] for state in found["states"]}
    word, probability = shown[best["paths"][0]["states"][0]][0]
    dense = model.tables().emission_SV[best["paths"][0]["states"][0]]
    assert probability == pytest.approx(float(dense[tokenizer.id(word)]), rel=1e-4)
    assert records(done(capsys, "sample", blocked_run, "--json"))[0]["text"]
