"""`trellis sample` on a tiny model."""

from .commands import call, done, records


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
    assert "1 word is unknown: 'The' (known as 'the')" in call(capsys, "sample", run, "--prompt", "The cat")[2]


def test_the_same_command_draws_the_same(capsys, run):
    assert done(capsys, "sample", run) == done(capsys, "sample", run, "--seed", 0)
    assert done(capsys, "sample", run) != done(capsys, "sample", run, "--seed", 1)
