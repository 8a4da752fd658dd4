"""What a perplexity costs is read off the curves of runs, the lowest within each time."""

from experiments import costs
from experiments.memory import taught
from experiments.results import Results


def run(kind, seconds, curve, corpus="ptb", decay=0.0, **model):
    return {
        "config": {
            "data": {"corpus": corpus}, "model": {"kind": kind, **model}, "training": {"weight_decay": decay}
        },
        "seconds": seconds, "updates": curve[-1][0], "curve": curve,
    }  # fmt: skip


RUNS = {
    "ptb-kneser-ney": run("kneser_ney", 3.0, [[0, 150.0]]),
    "ptb-lstm": run("lstm", 6000.0, [[100, 200.0], [200, 90.0]]),
    "wikitext-2-kneser-ney": run("kneser_ney", 3.0, [[0, 10.0]], "wikitext-2"),
    "ptb-hierarchical-4096-m128": run("hmm", 240.0, [[10, 190.0], [20, 170.0]], memory=0),
    "ptb-hierarchical-16384-m128": run("hmm", 600.0, [[10, 185.0], [20, 140.0]], memory=0),
    "ptb-hierarchical-4096-m128-memory-1": run("hmm", 300.0, [[10, 175.0], [20, 160.0]], memory=1),
    "ptb-4096-memory-1-memory_dropout-0.5-ngrams-5-decay-0.1-4-epochs": run(
        "hmm", 290.0, [[10, 125.0], [20, 122.0]], decay=0.1, memory=1, ngrams=5, states=4096
    ),
    "ptb-32768-memory-1-memory_dropout-0.5-ngrams-5-cache-1000-decay-0.1-10-epochs": run(
        "hmm", 3600.0, [[10, 97.0], [20, 95.0]], decay=0.1, memory=1, ngrams=5, cache=1000, states=2**15
    ),
}
NGRAMS = "122.0 (5-grams, 2^12, decay 0.1)"


def rows_of(found, tmp_path):
    lines = costs.section(Results("laptop", found), tmp_path / "page" / "costs.png")
    return {line.split(" | ")[0].strip("| "): [cell.strip(" |") for cell in line.split(" | ")[1:]] for line in lines}


def test_each_time_has_the_best_of_each_kind_within_it(tmp_path):
    rows = rows_of(RUNS, tmp_path)
    assert rows["1"] == ["150.0 (KN 5-gram)", "", "", "", ""]  # the other text's is not there
    assert rows["2"] == ["150.0 (KN 5-gram)", "190.0 (hierarchical, 2^12)", "", "", ""]
    assert rows["5"] == ["150.0 (KN 5-gram)", "170.0 (hierarchical, 2^12)", "160.0 (a word, 2^12)", NGRAMS, ""]
    assert rows["10"] == ["150.0 (KN 5-gram)", "140.0 (hierarchical, 2^14)", "160.0 (a word, 2^12)", NGRAMS, ""]
    assert rows["100"][0] == "90.0 (2x256 LSTM)"
    assert rows["100"][4] == "95.0 (5-grams, cache of 1,000, 2^15, decay 0.1)"
    assert (tmp_path / "page" / "costs.png").stat().st_size > 10_000


def test_when_an_hmm_is_the_better_buy_is_said(tmp_path):
    lines = costs.section(Results("laptop", RUNS), tmp_path / "page" / "costs.png")
    (said,) = (line for line in lines if "better buy" in line and line.startswith("So"))
    # Kneser–Ney's point is at 0.05 minutes, the LSTM's 90 at 100; the plain model's 140 at 10, n-grams' 125 at 2.4
    assert "an HMM from 2.4 to 100.0, one without a cache from 2.4 to 100.0" in said
    assert "a plain one from 10.0 to 100.0" in said
    assert "an HMM at no time, one" in costs._buys({"KN": RUNS["ptb-kneser-ney"]})
    ahead = costs._buys({"KN": RUNS["ptb-kneser-ney"], "HMM": RUNS["ptb-hierarchical-16384-m128"]})
    assert "from 10.0 to 10.0" in ahead  # as far as it was run


def test_a_processors_minutes_count_where_they_are_known(tmp_path):
    slow = RUNS["ptb-hierarchical-4096-m128"] | {"seconds": 6000.0, "processor_seconds": 240.0}  # the machine was busy
    assert rows_of(RUNS | {"ptb-hierarchical-4096-m128": slow}, tmp_path) == rows_of(RUNS, tmp_path)


def test_the_minutes_of_a_teacher_come_first(tmp_path):
    (name,) = (recipe.name for recipe in taught("laptop") if recipe.label == "PTB, + states begin as the LSTM's")
    more = run("hmm", 240.0, [[10, 118.0], [20, 112.0]], decay=0.1, memory=1, ngrams=5, states=4096, dropout=0.0)
    more["config"]["distill"] = {"teacher": "ptb-lstm-10-epochs/best"}
    teacher = run("lstm", 540.0, [[100, 150.0], [200, 95.0]])
    rows = rows_of(RUNS | {name: more, "ptb-lstm-10-epochs": teacher}, tmp_path)
    assert rows["10"][0] == "95.0 (the LSTM, 10 epochs)"
    assert rows["10"][3] == NGRAMS  # nine minutes of the LSTM and four of its own
    assert rows["20"][3] == "112.0 (5-grams, 2^12, from an LSTM)"


def test_without_runs_there_is_nothing(tmp_path):
    assert costs.section(Results("laptop", {}), tmp_path / "costs.png") == []
    assert not (tmp_path / "costs.png").exists()


def test_runs_that_another_of_their_kind_had_beaten_go_without_a_name_in_the_figure():
    long = run("hmm", 900.0, [[10, 150.0], [20, 145.0]], memory=0)
    runs = {name: one for name, one in RUNS.items() if name.startswith("ptb")} | {"long": long}
    unbeaten = {name for name, one in runs.items() if costs._unbeaten(one, runs)}
    assert "long" not in unbeaten  # which 2^14 states had beaten before it ended
    assert {"ptb-hierarchical-4096-m128", "ptb-hierarchical-16384-m128", "ptb-lstm"} <= unbeaten
