import dataclasses
import re
from pathlib import Path

import pytest

from trellis.config import ANY_VOCABULARY, OLD, RunConfig, as_dict, differences, load, run_of, save
from trellis.errors import TrellisError
from trellis.models import HMMConfig
from trellis.models.hmm_config import budget_of
from trellis.models.registry import KINDS
from trellis.text.sources import DataSettings
from trellis.training import TrainingSettings


def written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_given_is_every_default():
    assert load() == RunConfig(DataSettings(), HMMConfig(ANY_VOCABULARY), TrainingSettings())


def test_overrides_go_over_the_file_and_the_file_over_defaults(tmp_path):
    path = written(tmp_path, "model: {states: 7}\ntraining: {lr: 1e-3, epochs: 2}\ndata:\n")
    config = load(path, ["training.epochs=3", "data.corpus=[a.txt, b.txt]", "model.emission=low_rank", "model.width=2"])
    assert (config.model.states, config.model.emission, config.model.width) == (7, "low_rank", 2)
    assert (config.training.lr, config.training.epochs) == (0.001, 3.0)
    assert config.data.corpus == ["a.txt", "b.txt"]


def test_a_dash_is_standard_input():
    assert load(None, ["data.corpus=-"]).data.corpus == "-"


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        ([], "runs/pydocs-512"),
        (["data.corpus=/some/where/text.v2.txt.gz", "model.states=3"], "runs/text-3"),
        (["data.corpus=-"], "runs/stdin-512"),
        (["data.corpus=ptb", "model.kind=lstm"], "runs/ptb-lstm"),
        (["data.corpus=ptb", "model.kind=hmm_rnn", "model.states=7"], "runs/ptb-hmm_rnn-7"),
        (["out=there"], "there"),
    ],
)
def test_a_run_has_a_sensible_folder(overrides, folder):
    assert load(None, overrides).folder == Path(folder)


def test_what_is_saved_loads_as_the_same(tmp_path):
    config = load(None, ["training.lr=1e-5", "training.betas=[0.8, 0.9]", "data.corpus=[ä.txt]", "out=x y"])
    save(config, tmp_path / "new" / "config.yaml")
    assert load(tmp_path / "new" / "config.yaml") == config
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["config.yaml"]
    assert "vocab_size" not in as_dict(config)["model"]


def test_a_model_gets_its_vocabulary_later():
    config = load(None, ["model.states=5", "model.transition=low_rank", "model.width=4"])
    assert config.with_vocabulary(9) == HMMConfig(9, states=5, transition="low_rank", width=4)


def test_differences_are_those_that_matter():
    a = load(None, ["training.lr=0.1", "training.keep=3", "out=a"])
    assert differences(a, load(None, ["training.lr=0.2", "out=b"])) == [("training.lr", 0.1, 0.2)]
    assert differences(a, load(None, ["training.lr=0.1"])) == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.lrr=1", "unknown setting 'training.lrr': did you mean 'training.lr'?"),
        ("trainig.lr=1", "unknown setting 'trainig': did you mean 'training'?"),
        ("lr=1", "unknown setting 'lr': did you mean 'training.lr'?"),
        ("model.state=1", "unknown setting 'model.state': did you mean 'model.states'?"),
        ("data.xyzzy=1", "unknown setting 'data.xyzzy': choose from data.corpus, data.valid,"),
        ("model.vocab_size=9", "model.vocab_size comes from the tokenizer: set data.vocab_size."),
        ("model.states=0", "an HMM needs at least one state, not 0"),
        ("model.states=many", "'model.states' must be a whole number, not 'many'."),
        ("model.start=dense", "'model.start' cannot be 'dense'"),
        ("model.kind=hmmm", "there is no kind of model 'hmmm': did you mean 'hmm'?"),
        ("model=3", "'model' must be a group of settings, not 3."),
        ("training.lr.x=3", "unknown setting 'training.lr.x'"),
        ("training.lr", "'training.lr' is not an override: write it as training.lr=0.1."),
        ("=3", "'=3' is not an override"),
        ("data..corpus=3", "'data..corpus=3' is not an override"),
        ("data.corpus=[a", "the value of 'data.corpus=[a' is not sound YAML"),
        ("data.corpus=", "'data.corpus' must be text, not None."),
        ("data.corpus=[]", "data.corpus names no text"),
        ("data.max_tokens=0", "data.max_tokens must be at least 1, not 0."),
        ("training.batch_size=0", "training.batch_size must be at least 1"),
    ],
)
def test_what_does_not_fit_is_explained(override, said):
    with pytest.raises(TrellisError) as caught:
        load(None, [override])
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.emission=low_rank", "model.width=9", "model.states=4"], "model.width is 9"),
        (["model.kind=lstm", "model.states=9"], "unknown setting 'model.states': choose from model.width,"),
        (["model.kind=lstm", "model.witdh=9"], "unknown setting 'model.witdh': did you mean 'model.width'?"),
        (["model.lr=9"], "unknown setting 'model.lr': did you mean 'training.lr'?"),
        (["model.kind=lstm", "model.width=0"], "model.width must be at least 1, not 0."),
        (["data.tokenizer=somewhere", "data.vocab_size=9"], "data.vocab_size is for tokenizers learnt"),
        (["data.tokenizer=bpe", "data.min_count=2"], "data.min_count is for words"),
        (["training.lr=1", "training.lr.x=1"], "'training.lr.x=1' does not fit: training.lr is one value"),
    ],
)
def test_settings_that_contradict_each_other(overrides, said):
    with pytest.raises(TrellisError) as caught:
        load(None, overrides)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n  states: 3\n bad: [", "line 3 is not sound YAML"),
        ("- 1\n- 2\n", "must hold groups of settings"),
        ("a: !!python/object:os.system {}\n", "is not sound YAML"),
        ("model: {kind: [2001-01-01]}\n", "there is no kind of model '\\['2001-01-01'\\]'"),
        ("training:\n  epochs: " + "9" * 5000, "a number of too many digits"),
        ("model:\n  states: 0x" + "f" * 5000, "a number of too many digits"),
        ("[" * 20_000, "nested deeper than any settings"),
        ("data: &a {corpus: x}\ntraining: *a\n", "line 2 is not sound YAML: aliases are not read"),
        ("training: &a {lr: *a}\n", "aliases are not read"),
        ("#" * 2**20 + "\n", "larger than any file of settings"),
    ],
    ids=["cut", "list", "object", "date", "digits", "hexadecimal", "deep", "alias", "itself", "large"],
)
def test_files_that_are_not_a_config(tmp_path, text, said):
    with pytest.raises(TrellisError, match=said):
        load(written(tmp_path, text))


def test_aliases_that_stand_for_gigabytes_are_not_expanded(tmp_path):
    doubled = "".join(f"x{i + 1}: &x{i + 1} [*x{i}, *x{i}]\n" for i in range(40))
    with pytest.raises(TrellisError, match="line 2 is not sound YAML: aliases are not read, write the value out"):
        load(written(tmp_path, f"x0: &x0 [z]\n{doubled}model: {{kind: *x40}}\n"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('out="\\0"', "'out' holds a zero byte"),
        ('data.corpus="a\\0b"', "'data.corpus' holds a zero byte"),
        ("training.epochs=1e308", "training.epochs=1e\\+308 cannot be meant: give a number from 1e-06 to 1e\\+06"),
        ("training.epochs=1e-300", "cannot be meant"),
        ("training.validations=1e-300", "cannot be meant"),
        ("training.accumulate=99999999999999", "cannot be meant"),
        ("training.length=99999999999999", "cannot be meant"),
        ("training.batch_size=99999999999999", "cannot be meant"),
        ("training.keep=1" + "0" * 30, "'training.keep' is too large a number: give one below 2\\^63"),
        ("training.keep=1.0e+30", "'training.keep' is too large a number"),
        ("training.lr=1" + "0" * 400, "'training.lr' is too large a number"),
        ("model.states=1" + "0" * 30, "'model.states' is too large a number"),
        ("data.vocab_size=99999999999", "data.vocab_size=99,999,999,999 is more than 16,777,216"),
        ("training.lr=2001-01-01", "'training.lr' must be a number, not '2001-01-01'"),
    ],
    ids=lambda value: value[:30].strip(),
)
def test_what_cannot_be_meant_is_refused_at_once(override, said):
    with pytest.raises(TrellisError, match=said):
        load(None, [override])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TrellisError, match="there is no config file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(TrellisError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(TrellisError, match="larger than any file of settings"):
        load(Path("/dev/zero"))
    (tmp_path / "latin.yaml").write_bytes(b"out: caf\xe9\n")
    with pytest.raises(TrellisError, match="not UTF-8 at byte 8"):
        load(tmp_path / "latin.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_saves_and_loads_as_the_same(kind, tmp_path):
    config = load(None, [f"model.kind={kind}"])
    save(config, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml").model == config.model
    assert as_dict(config)["model"]["kind"] == kind


def test_every_model_setting_is_open():
    names = {field.name for field in dataclasses.fields(HMMConfig)} - {"vocab_size", "architecture"} | {"kind"}
    assert set(as_dict(RunConfig())["model"]) == names


def test_the_shape_of_a_network_is_no_setting():
    with pytest.raises(TrellisError, match=r"model\.architecture is found in the network's folder: set model\.network"):
        load(None, ["model.architecture=llama"])


@pytest.mark.parametrize("said", ["4194304", "2^22"])
def test_a_budget_of_parameters_is_a_number(said, tmp_path):
    config = load(None, ["model.emission=low_rank", f"model.parameters={said}"])
    assert budget_of(config.model.parameters) == 2**22
    save(config, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml").model == config.model


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.rank=4"], "model.rank is of an older layout of Trellis: write model.width."),
        (["model.clusters=words"], "model.clusters is of an older layout of Trellis: write model.support."),
        (["model.parameters=low_rank"], "model.parameters is of an older layout of Trellis: write model.encoder with"),
        (
            ["model.embeddings=factored"],
            "model.embeddings is of an older layout of Trellis: write model.encoder (resid",
        ),
        (["model.start_scale=1"], "model.start_scale is of an older layout of Trellis: write model.init_scale."),
        (
            ["model.transition=flat"],
            "model.transition=flat is of an older layout of Trellis: write model.transition=lo",
        ),
        (["model.kind=blocked", "model.clusters=words"], "model.kind=blocked is of an older layout of Trellis: write"),
        (["model.kind=lstm", "model.rank=4"], "unknown setting 'model.rank'"),
    ],
)
def test_settings_of_the_older_layout_say_what_to_write_now(overrides, said):
    with pytest.raises(TrellisError) as caught:
        load(None, overrides)
    assert str(caught.value).startswith(said)


def test_what_to_write_in_place_of_a_blocked_model_is_one():
    now = re.findall(r"\w+=\w+", OLD["model.kind=blocked"])
    model = load(None, [f"model.{setting}" for setting in now]).model
    assert (model.kind, model.support, model.encoder, model.bias) == ("hmm", "brown", "residual", True)
    assert (model.states, model.blocks, model.width) == (8192, 128, 256)


@pytest.mark.parametrize("model", ["kind: blocked, states: 64", "kind: hmm, states: 8, rank: 128"])
def test_a_run_of_the_older_layout_is_not_gone_on_with(model, tmp_path):
    (tmp_path / "config.yaml").write_text(f"model: {{{model}}}\n", encoding="utf-8")
    for ask in (lambda: load(tmp_path / "config.yaml", ["out=x"]), lambda: run_of(tmp_path / "best")):
        with pytest.raises(TrellisError) as caught:
            ask()
        assert str(caught.value) == (
            f"{tmp_path} was begun by an older layout of Trellis: start a new run, or go on with version 0.1.0."
        )


def test_a_models_run_is_the_folder_around_it(tmp_path):
    config = load(None, ["model.states=5", f"out={tmp_path}"])
    save(config, tmp_path / "config.yaml")
    assert run_of(tmp_path / "best") == config
    with pytest.raises(TrellisError, match="does not lie in a run that says its text: name a corpus or files"):
        run_of(tmp_path / "best" / "deeper")
