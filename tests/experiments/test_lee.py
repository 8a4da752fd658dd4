"""The study's recipes are what the paper's tables say, and its verdicts follow the figures."""

import dataclasses

import pytest
import yaml

from experiments.lee import studies
from experiments.lee.budgets import SEEDS, TOKENS
from experiments.lee.claims import CLAIMS
from experiments.lee.page import TITLES, page
from experiments.recipes import HERE
from experiments.recipes import studies as every_study
from experiments.results import Results
from trellis.models.budgets import parameters_of, within_budget

PUBLISHED = yaml.safe_load((HERE / "published.yaml").read_text(encoding="utf-8"))
LLAMA = 32_000  # words of its vocabulary
TABLES = ("lee.table1", "lee.table2", "lee.table3", "lee.table4")


def rows(study, budget="laptop"):
    return {recipe.label: recipe for recipe in every_study()[study](budget)}


def test_every_study_has_a_title_and_published_rows_are_rows():
    ours = {name for name in every_study() if name.startswith("lee.")}
    assert set(TITLES) == ours
    for study in TABLES:
        assert {row["label"] for row in PUBLISHED[study]["rows"]} == set(rows(study))


def test_rows_of_tables_have_three_seeds_and_points_of_sweeps_one():
    for study in TABLES:
        for label in rows(study):
            found = [recipe.config.training.seed for recipe in every_study()[study]("laptop") if recipe.label == label]
            assert found == list(SEEDS)
    for study in ("lee.figure1", "lee.figure2", "lee.figure8"):
        assert {recipe.config.training.seed for recipe in every_study()[study]("laptop")} == {SEEDS[0]}


def test_the_papers_budget_is_its_tables_5_and_6():
    for recipe in studies.table1("paper"):
        training, data = recipe.config.training, recipe.config.data
        assert (data.corpus, data.max_tokens, data.tokenizer) == ("slimpajama", 500_000_000, "tokenizers/llama2")
        assert (training.batch_size, training.length, training.epochs, training.precision) == (200, 64, 1, "bf16")
        assert (training.betas, training.weight_decay, training.schedule) == ((0.9, 0.95), 0.1, "cosine")
        assert training.warmup * data.max_tokens == pytest.approx(25_600_000)
        assert training.final == 0.1
        assert recipe.config.model.states == 512
    taught = {label: recipe.config for label, recipe in rows("lee.figure3", "paper").items() if label != "none"}
    assert {(config.training.init, config.training.lr) for config in taught.values()} == {("distill", 0.4)}
    labelled = {(label.partition("-")[0], config.distill.tokens) for label, config in taught.items()}
    assert labelled == {("random", 10_000_000), ("TinyLlama", 10_000_000), ("Llama", 5_000_000)}
    assert [config.distill.pca for config in taught.values()] == [None, None, None, 512, 1024, 2048, 4096]
    assert rows("lee.table4", "paper")["Random Init. + LVD"].config.distill.tokens == 10_000_000
    assert {recipe.config.distill.frozen for recipe in studies.figure5("paper")} == {0, 20_000_000}
    (grid,) = {recipe.grid for recipe in studies.table1("paper") if recipe.label == "HMM"}
    assert {0.8, 0.4, 0.2, 0.08, 0.04, 0.02} < set(grid.rates)


def test_the_laptops_budget_differs_in_text_and_the_first_vectors_alone():
    for study in (studies.table1, studies.table2, studies.table3):
        for ours, theirs in zip(study("laptop"), study("paper"), strict=True):
            assert ours.name == theirs.name
            assert ours.config.training == theirs.config.training
            assert ours.config.data.max_tokens == TOKENS["laptop"]


@pytest.mark.parametrize("budget", ["laptop", "paper"])
@pytest.mark.parametrize("study", ["lee.figure2", "lee.figure11", "lee.figure12"])
def test_every_number_of_parameters_is_enough_for_a_network_of_its_kind(study, budget):
    for label, recipe in rows(study, budget).items():
        if label == "HMM":
            continue
        model = dataclasses.replace(recipe.config.model, vocab_size=LLAMA)
        power, found = int(label.rpartition("^")[2]), within_budget(model, 1, model.states)
        assert 2 ** (power - 1) < parameters_of(found, 1, model.states) <= 2**power


def test_rates_fall_with_the_width_but_for_the_papers():
    assert {recipe.share for recipe in studies.figure2("paper")} == {1.0}
    found = rows("lee.figure2", "laptop")
    shares = {power: found[f"MLP ι, 2^{power}"].share for power in range(20, 25)}
    assert shares == {20: 4.0, 21: 2.0, 22: 1.0, 23: 0.25, 24: 0.125}
    assert [found[f"MLP ψ, 2^{power}"].share for power in range(20, 25)] == [4.0, 2.0, 1.0, 0.5, 0.25]
    assert [found[f"TRF ι, 2^{power}"].share for power in range(21, 25)] == [4.0, 1.0, 0.5, 0.125]
    assert [found[f"TRF ψ, 2^{power}"].share for power in range(21, 25)] == [4.0, 1.0, 1.0, 0.5]  # 32, 96, 160, 288


def test_a_pretrained_network_has_a_rate_of_its_own_only_without_labels():
    searched = {recipe.label: recipe.grid.name for recipe in studies.table4("laptop")}
    assert searched.pop("Pretrained Init.") == "openmix-pretrained-stories15M"
    assert set(searched.values()) == {"openmix-pretrained-random-stories15M"}


def test_a_rate_is_searched_once_for_a_kind_of_parameters_on_less_text():
    searched = {}
    for study in every_study():
        for recipe in every_study()[study]("laptop") if study.startswith("lee.") else ():
            if recipe.grid:
                searched.setdefault(recipe.grid.name, recipe.grid)
                assert searched[recipe.grid.name] == recipe.grid
    assert len(searched) == 18
    for grid in searched.values():
        assert grid.rates == (4e-1, 4e-2, 4e-3, 4e-4)
        assert grid.config.data.max_tokens < grid.around.config.data.max_tokens == TOKENS["laptop"]
    (own,) = [recipe for recipe in studies.table1("laptop") if recipe.name == searched["openmix-scalar"].around.name]
    assert own.config == searched["openmix-scalar"].around.config  # so that its run need not be made again


def test_table_3s_flags_are_settings():
    split, monolithic, layers, skip, relu, norm = studies.VARIANTS[5]
    model = rows("lee.table3")[studies._said(studies.VARIANTS[5])].config.model
    assert (not model.shared, model.monolithic, model.layers, model.skip) == (split, monolithic, layers, "input")
    assert (model.relu, model.norm, skip) == (relu, norm, True)


def test_what_a_run_needs_comes_before_it():
    for recipe in studies.figure7("laptop")[1:-1]:
        (checkpoint,) = recipe.needs
        assert recipe.config.model.network == f"{checkpoint.name}/best"
    for recipe in studies.figure3("laptop")[2:-1]:
        (teacher,) = recipe.needs
        assert recipe.config.distill.teacher == f"{teacher.name}/best"


# What the paper found, as validation perplexities of every row that a claim looks at.
LIKE_THE_PAPER = {
    "lee.table1": {"Ablation A (single H)": 711, "Ablation B (split H)": 348, "HMM": 540, "Chiu and Rush": 357},
    "lee.table2": {row["label"]: row["mean"] for row in PUBLISHED["lee.table2"]["rows"]}
    | {"False, False, False": 540, "True, True, True": 348},
    "lee.table4": {row["label"]: row["mean"] for row in PUBLISHED["lee.table4"]["rows"]},
    "lee.figure1": {f"HMM, {2**n}": 540 + 10 * (n - 9) for n in range(6, 11)}
    | {f"best, {2**n}": 256 - 20 * (n - 9) for n in range(6, 11)},
}


def result(perplexity):
    return {"evaluation": {"valid": {"windows": {"perplexity": perplexity}}}, "parameters": 4_000_000, "seconds": 60.0}


@pytest.fixture
def found():
    """Results of every run that a claim looks at, such that all of them agree."""
    made = {}
    for study, known in LIKE_THE_PAPER.items():
        for recipe in every_study()[study]("laptop"):
            made[recipe.name] = result(known[recipe.label])
    levels = {"MLP ψ": 310, "MLP ι": 335, "TRF ι": 350, "TRF ψ": 375}
    for recipe in studies.figure2("laptop"):
        name, _, at = recipe.label.partition(", ")
        if at:
            made[recipe.name] = result(levels[name] + 30 * max(0, 22 - int(at[2:])))
    for number, recipe in enumerate(studies.figure3("laptop")):
        made.setdefault(recipe.name, result({1: 500, 2: 450}.get(number, 448)))
    for recipe in studies.figure4("laptop"):
        spread = recipe.config.training.seed / (100 if "LVD" in recipe.label else 10)
        level = {"HMM": 540, "split H": 348, "MLP ψ": 357, "TRF ι": 365}[recipe.label.removesuffix(" + LVD")]
        made[recipe.name] = result(level - (92 if "LVD" in recipe.label else 0) + spread)
    for recipe in studies.figure5("laptop"):
        made[recipe.name] = result(300 if recipe.label == "LVD" else 310)
    for recipe in studies.figure6("laptop"):
        made[recipe.name] = result(330 if recipe.label == "pretrained, 0.0004" else 365)
    for recipe in studies.figure8("laptop"):
        known = {"none": None, "1%": 535, "5%": 460, "10%": 448.4, "25%": 449, "50%": 448, "100%": 600}[recipe.label]
        if known:
            made[recipe.name] = result(known)
    return made


def verdicts(found):
    return {claim.text: claim.verdict(Results("laptop", found))[0] for claim in CLAIMS}


def test_the_papers_own_figures_agree_with_the_paper(found):
    assert {text: said for text, said in verdicts(found).items() if said != "agrees"} == {}


FLIPS = [
    ("Any reparameterisation", "lee.figure2", "TRF ι, 2^22", 600),
    ("Any reparameterisation", "lee.figure2", "MLP ψ, 2^20", 600),
    ("Split-H", "lee.table1", "Chiu and Rush", 330),
    ("Returns stop", "lee.figure2", "MLP ψ, 2^24", 290),
    ("Returns stop", "lee.figure2", "MLP ψ, 2^20", 290),
    ("Distillation adds", "lee.figure4", "split H + LVD", 500),
    ("The teacher's strength", "lee.figure3", "language model, 0.3M tokens", 480),
    ("Pretrained weights", "lee.table4", "Pretrained Init.", 700),
    ("Pretrained weights", "lee.figure6", "pretrained, 0.0004", 400),
    ("Pretrained weights", "lee.figure6", "pretrained, 0.004", 330),
    ("More states", "lee.figure1", "HMM, 1024", 400),
    ("Single-H", "lee.table1", "Ablation A (single H)", 400),
    ("Factoring emissions", "lee.table2", "False, True, False", 500),
    ("The non-monolithic MLP", "lee.figure2", "MLP ι, 2^22", 290),
    ("The non-monolithic transformer", "lee.figure2", "TRF ι, 2^22", 480),
    ("Distillation helps", "lee.figure4", "TRF ι + LVD", 500),
    ("A random teacher", "lee.figure3", "random", 700),
    ("5 million labelled", "lee.figure8", "100%", 500),
    ("5 million labelled", "lee.figure8", "10%", 500),
    ("5 million labelled", "lee.figure8", "1%", 410),
    ("Centroids", "lee.figure5", "head", 285),
    ("With distillation, pretrained", "lee.table4", "Random Init. + LVD", 340),
    ("More states", "lee.figure1", "best, 1024", 390),
]


@pytest.mark.parametrize(("claim", "study", "label", "perplexity"), FLIPS, ids=lambda value: str(value)[:20])
def test_a_verdict_flips_with_its_figures(claim, study, label, perplexity, found):
    for recipe in every_study()[study]("laptop"):
        if recipe.label == label:
            found[recipe.name] = result(perplexity)
    told = verdicts(found)
    assert [said for text, said in told.items() if text.startswith(claim)] == ["**disagrees**"]


def test_what_chance_could_do_is_no_verdict(found):
    found["openmix-scalar-from-random-stories15M-512-s42"] = result(530)  # one seed, 540 without
    assert verdicts(found)["A random teacher helps."] == "too close to tell"
    for seed, perplexity in zip(SEEDS, (250, 300, 340), strict=True):  # about 256 with labels
        found[f"openmix-linear-split-512-s{seed}"] = result(perplexity)
    assert verdicts(found)["Distillation helps, whatever the parameters."] == "agrees, 1 too close to tell"


def test_a_sum_of_comparisons_is_too_close_to_tell_where_one_of_them_is(found):
    found["openmix-mlp-psi-2-20-512-s42"] = result(320)  # 310 with four times as many parameters
    assert verdicts(found)["Returns stop near 2^22 parameters."] == "agrees, 1 too close to tell"


def test_a_spread_that_grows_with_labels_speaks_against_the_claim(found):
    for seed, perplexity in zip(SEEDS, (448, 470, 440), strict=True):
        found[f"openmix-scalar-from-stories15M-512-s{seed}"] = result(perplexity)
    assert verdicts(found)["Distillation lowers the variance of runs."] == "**disagrees**"


def test_two_teachers_are_enough_to_say_that_strength_matters(found):
    del found["openmix-scalar-from-openmix-language-model-3000k-512-s42"]
    assert verdicts(found)["The teacher's strength matters little."] == "not measured yet"
    found["openmix-scalar-from-openmix-language-model-300k-512-s42"] = result(480)
    assert verdicts(found)["The teacher's strength matters little."] == "**disagrees**"


def test_what_is_missing_is_said(found, tmp_path):
    assert set(verdicts({}).values()) == {"not measured yet"}
    del found["openmix-linear-split-512-s52"]
    assert verdicts(found)["Split-H linear parameters match or beat Chiu & Rush's networks."] == "not measured yet"
    text = page({"laptop": Results("laptop", found)}, PUBLISHED, tmp_path / "results-lee.md").read_text()
    assert "| Ablation B (split H) | 2 of 3 | 353.2 | 352.2 | 354.2 |" in text
    drawn = {path.name for path in (tmp_path / "results-lee").iterdir()}
    assert drawn == {f"{name}-laptop.png" for name in ("blocked", *(f"figure{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8)))}


def test_a_row_has_mean_lowest_and_highest_and_the_published_ones(found, tmp_path):
    for seed, perplexity in zip(SEEDS, (530, 550, 540), strict=True):
        found[f"openmix-scalar-512-s{seed}"] = result(perplexity)
    text = page({"laptop": Results("laptop", found)}, PUBLISHED, tmp_path / "results-lee.md").read_text()
    assert "| HMM | 3 | 540.0 | 530.0 | 550.0 |  |  |  | 4.0M | 1 | 540 | 529 | 546 |" in text
