"""The page has the results' figures beside the published ones, and its verdicts follow the figures."""

import json
import shutil

import pytest
import yaml

from experiments.claims import CLAIMS, SAME
from experiments.recipes import HERE, settings_of, studies
from experiments.report import report
from experiments.results import Results, names
from experiments.seeds import seeded
from trellis import TrellisError

PUBLISHED = yaml.safe_load((HERE / "published.yaml").read_text(encoding="utf-8"))


def evaluation(perplexity):
    return {"perplexity": perplexity, "nats": 1234.5, "tokens": 100, "unknown_rate": 0.05}


def result(recipe, valid, **changes):
    """A recorded run with this validation perplexity; a tenth less on test text, half on training text."""
    measured = {
        "train": {"streams": evaluation(valid / 2)},
        "valid": {"stream": evaluation(valid), "streams": evaluation(valid + 0.5)},
        "test": {"stream": evaluation(valid * 0.9), "streams": evaluation(valid * 0.9 + 0.5)},
    }
    made = {
        "name": recipe.name, "config": settings_of(recipe.config), "parameters": 7_159_313, "milliseconds": 40.0,
        "seconds": 600.0, "updates": 100, "tokens": 20_000, "evaluation": measured,
        "curve": [[50, valid * 2], [100, valid]], "command": "a command",
    }  # fmt: skip
    return made | changes


# Validation perplexities at the laptop budget that are as the paper has them; the sweep's 2^13 is Table 2's first row.
SWEEP = {10: 220, 11: 190, 12: 160, 13: 136, 14: 134, 15: 125, 16: 120}


@pytest.fixture
def found():
    made = {}
    for study in ("chiu.table1", "chiu.table3"):
        for row in PUBLISHED[study]["rows"]:
            if row["label"] in names(study, "laptop"):
                change(made, study, row["label"], valid=row["valid"] or 148.3)
    for power, valid in SWEEP.items():
        change(made, "chiu.figure3", f"hierarchical, 2^{power}", valid=valid)
    change(made, "chiu.table4", "- neural param", valid=169, train=70, parameters=423_000_000)
    change(made, "chiu.table4", "- state dropout", valid=157, milliseconds=100.0)
    change(made, "chiu.table4", "+ block emb", valid=138, parameters=5_604_881)
    change(made, "chiu.dropout", "VL-HMM", valid=134)
    return made


def change(found, study, label, *, valid, train=None, **changes):
    """Put another result in the place of a row's."""
    recipe = names(study, "laptop")[label]
    found[recipe.name] = result(recipe, valid, **changes)
    if train is not None:
        found[recipe.name]["evaluation"]["train"]["streams"]["perplexity"] = train


def verdicts(found, budget="laptop"):
    return {claim.text: claim.verdict(Results(budget, found))[0] for claim in CLAIMS}


def test_the_papers_own_figures_agree_with_the_paper(found):
    assert set(verdicts(found).values()) == {"agrees"}


FLIPS = [
    ("More states", "chiu.figure3", "hierarchical, 2^16", {"valid": 126}),
    ("Neural parameters", "chiu.table2", "- neural param", {"valid": 135, "train": 70, "parameters": 423_000_000}),
    ("Neural and scalar", "chiu.table2", "- neural param", {"valid": 169, "train": 60, "parameters": 423_000_000}),
    ("State dropout", "chiu.table2", "- state dropout", {"valid": 135, "milliseconds": 100.0}),
    ("State dropout", "chiu.table2", "- state dropout", {"valid": 157, "milliseconds": 30.0}),
    ("State dropout", "chiu.dropout", "- state dropout", {"valid": 133, "milliseconds": 100.0}),
    ("Brown clusters", "chiu.table3", "Uniform, 2^13, k=128", {"valid": 141}),
    ("At 2^14 states", "chiu.table3", "Brown, 2^14, M=256", {"valid": 134 * SAME + 0.1}),
    ("At 2^10 states", "chiu.table3", "Brown, 2^10, M=4", {"valid": 194}),
    ("At 2^10 states", "chiu.table3", "Brown, 2^10, M=8", {"valid": 179}),
    ("The VL-HMM beats n-grams", "chiu.table1", "WikiText-2, 256 FF 5-gram", {"valid": 150}),
    ("The VL-HMM beats HMM", "chiu.table1", "PTB, HMM+RNN", {"valid": 120}),
    ("The VL-HMM loses", "chiu.table1", "WikiText-2, 2x256 LSTM", {"valid": 170}),
    ("Factored", "chiu.table4", "+ block emb", {"valid": 135, "parameters": 5_000_000}),
    ("Factored", "chiu.table4", "+ block emb", {"valid": 150, "parameters": 5_000_000}),
    ("Factored", "chiu.table4", "+ block emb", {"valid": 138, "parameters": 8_000_000}),
]


@pytest.mark.parametrize(("claim", "study", "label", "figures"), FLIPS, ids=lambda value: str(value)[:30])
def test_a_verdict_flips_with_its_figures_and_no_other_does(claim, study, label, figures, found):
    change(found, study, label, **figures)
    told = verdicts(found)
    assert [text for text in told if told[text] == "**disagrees**"] == [text for text in told if text.startswith(claim)]


def test_what_is_missing_is_said(found):
    assert set(verdicts({}).values()) == {"not measured yet"}
    del found["ptb-hierarchical-65536-m128"], found["wikitext-2-lstm"], found["ptb-hierarchical-16384-m32"]
    told = verdicts(found)
    assert told["More states help, up to 2^16."] == "agrees so far, 5 of 6 compared"
    assert told["The VL-HMM loses to the LSTM."] == "agrees so far, 1 of 2 compared"
    assert told["At 2^14 states the number of blocks matters little."] == "not measured yet"


def page_of(tmp_path, found, budget="laptop"):
    """The page made of these results, and those of no study that are committed."""
    folder = tmp_path / "experiments"
    (folder / "results" / budget).mkdir(parents=True)
    shutil.copy(HERE / "published.yaml", folder)
    for path in (HERE / "results").glob("*.json"):
        shutil.copy(path, folder / "results")
    for name, one in found.items():
        (folder / "results" / budget / f"{name}.json").write_text(json.dumps(one))
    return report(folder, tmp_path / "docs" / "results.md").read_text()


@pytest.fixture(autouse=True)
def _docs(tmp_path):
    (tmp_path / "docs").mkdir()


def test_a_row_has_our_figures_and_theirs(found, tmp_path):
    change(found, "chiu.figure4", "factored, M=128", valid=139)
    page = page_of(tmp_path, found)
    assert "| PTB, VL-HMM 2^15 | 7.2M | 125.0 | 112.5 | 113.0 | 16 | 10 | 11.4M | 125.0 | 116.0 |" in page
    assert "| - neural param | 423.0M | 70.0 | 169.0 | 40 | 4 | 10 | 423.0M | 119 | 169 | 14 |" in page
    assert "| hierarchical, 2^16 | 120.0 | 4 | 10 |  |" in page
    assert "| PTB, KN 5-gram | 7.2M | 148.3 | 133.5 | 134.0 |" in page
    assert "hierarchical, 2^16 120.0 < hierarchical, 2^15 125.0" in page
    for picture in ("table1", "figure3", "figure4"):
        assert f"](results/{picture}-laptop.png)" in page
        assert (tmp_path / "docs" / "results" / f"{picture}-laptop.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_of_several_seeds_has_their_mean_lowest_and_highest(found, tmp_path):
    for study, label, numbers in (
        ("chiu.table1", "PTB, VL-HMM 2^15", {10: 127.0, 20: 120.0}),  # beside 125 of the recipe's own seed
        ("chiu.table2", "VL-HMM", {10: 137.0}),  # a point of Figure 3 too, with 136
    ):
        recipe = names(study, "laptop")[label]
        for seed, valid in numbers.items():
            other = seeded(recipe, seed)
            found[other.name] = result(other, valid, seconds=1200.0)
    page = page_of(tmp_path, found)
    ours = ["7.2M", "124.0 (120.0–127.0)", "111.6 (108.0–114.3)", "112.1 (108.5–114.8)", "16", "17"]
    assert f"| PTB, VL-HMM 2^15, 3 seeds | {' | '.join(ours)} |" in page
    assert "| VL-HMM, 2 seeds | 7.2M | 68.2 (68.0–68.5) | 136.5 (136.0–137.0) | 40 | 4 | 15 |" in page
    assert "| hierarchical, 2^13, 2 seeds | 136.5 (136.0–137.0) |" in page
    assert "hierarchical, 2^13 136.5" in page  # claims rest on the mean
    assert "| PTB, 2x256 LSTM | 7.2M |" in page  # one seed has no spread


def test_a_seed_that_another_study_asks_for_is_no_further_seed():
    table, figure = names("lee.table1", "laptop")["HMM"], names("lee.figure2", "laptop")["HMM"]
    assert (table.name, figure.name) == ("openmix-scalar-512-s62", "openmix-scalar-512-s42")
    runs = {name: result(figure, 100.0) for name in (table.name, figure.name, "openmix-scalar-512-s72")}
    results = Results("laptop", runs)
    assert len([run for run in results.rows("lee.figure2", "HMM") if run]) == 2
    assert len([run for run in results.rows("lee.table1", "HMM") if run]) == 3


def test_nothing_is_drawn_where_nothing_was_measured(tmp_path):
    page = page_of(tmp_path, {})
    assert ".png" not in page
    assert page.count("not measured yet") == len(CLAIMS)
    assert "| PTB, VL-HMM 2^15 |  |  |  |  |  |  | 11.4M | 125.0 | 116.0 |" in page
    assert "| low-rank HMM, 512 states | 1.5M | 169.7 | 159.3 | 417,987 | 159.3 |" in page
    assert "| scalar HMM, 512 states | 5.4M | 191.9 | 177.6 | 426,948 | 177.7 |" in page


def test_runs_at_the_published_settings_stand_by_themselves(tmp_path):
    recipe = names("chiu.figure3", "paper")["flat, 2^15"]
    page = page_of(tmp_path, {recipe.name: result(recipe, 126.5)}, "paper")
    assert "| flat, 2^15 | 126.5 | 50 | 10 | 125.0 |" in page
    assert "| PTB, VL-HMM 2^15 | 7.2M | 126.5 |" in page  # the same run


def test_no_results_are_no_report(tmp_path):
    (tmp_path / "published.yaml").write_text((HERE / "published.yaml").read_text())
    with pytest.raises(TrellisError, match="record a run first"):
        report(tmp_path, tmp_path / "page.md")


def test_published_rows_are_rows_of_the_recipes():
    for study in (name for name in studies() if name.startswith("chiu.")):
        labels = [row["label"] for row in PUBLISHED[study]["rows"]]
        assert set(labels) <= {*names(study, "laptop"), *names(study, "paper")}
        assert len(set(labels)) == len(labels)
        assert "Chiu & Rush 2020" in PUBLISHED[study]["cite"]
        if study.startswith("chiu.table"):
            assert set(labels) == set(names(study, "paper"))


def test_the_committed_page_is_what_the_committed_results_give(tmp_path):
    report(HERE, tmp_path / "docs" / "results.md")
    for page in ("results.md", "results-lee.md", "results-first.md"):
        assert (tmp_path / "docs" / page).read_text() == (HERE.parent / "docs" / page).read_text()


def test_runs_that_differ_in_precision_are_set_beside_the_best(tmp_path):
    (tmp_path / "results").mkdir()
    shutil.copy(HERE / "published.yaml", tmp_path)
    recipe = names("chiu.table1", "laptop")["PTB, KN 5-gram"]
    for precision, valid in (("float32", 200.0), ("bf16", 201.0)):
        made = result(recipe, valid, command=f"in {precision}")
        made["config"] = {"model": {"states": 512}, "data": {"corpus": "openmix"}, "training": {"precision": precision}}
        (tmp_path / "results" / f"{precision}.json").write_text(json.dumps(made))
    rows = report(tmp_path, tmp_path / "page.md").read_text().partition("## Precision")[2].splitlines()
    assert "| bf16 | 201.00 | 180.90 | 0.50% | 40 | `in bf16` |" in rows
    assert "| float32 | 200.00 | 180.00 | 0.00% | 40 | `in float32` |" in rows
