"""The study of tagging: settings are chosen on development text, and the chosen ones alone meet the test text."""

import json

import pytest

from experiments import tagging


def scores(value):
    names = ("one_to_one", "many_to_one", "v_measure", "accuracy")
    return {tags: dict.fromkeys(names, value) for tags in ("universal", "penn")}


def result(name, seed, dev, test=None, labelled=None):
    told = {"name": f"{name}-s{seed}", "seed": seed, "labelled": labelled, "commands": ["a", "trellis train"]}
    return told | {"seconds": 30.0, "dev": scores(dev)} | ({} if test is None else {"test": scores(test)})


def test_the_page_shows_what_was_tested_and_what_was_tried(tmp_path):
    found = [
        result("baum-welch-0", 0, 0.4, 0.9),  # tested, but not chosen
        result("baum-welch-1", 0, 0.5, 0.2),
        result("baum-welch-1", 1, 0.5, 0.6),
        result("counted-all-0", 0, 0.9, 0.875, "100%"),
    ]
    for one in found:
        (tmp_path / f"{one['name']}.json").write_text(json.dumps(one))
    page = tagging.page(tmp_path)
    cell = "0.400 (0.200–0.600)"
    assert f"| baum-welch | penn | {cell} | {cell} | {cell} |" in page
    assert "| all |  | 0.875 |" in page
    assert "- baum-welch-0-s0: V-measure 0.400: `trellis train`" in page
    assert "- baum-welch-1-s0: V-measure 0.500, chosen: `trellis train`" in page
    assert "- baum-welch-1-s1" not in page
    assert "- counted-all-0-s0: accuracy 0.900, chosen: `trellis train`" in page


def test_every_group_has_settings_to_choose_from():
    groups = tagging.groups()
    assert {"baum-welch", "scalar", "low-rank", "blocked", "counted-10", "baum-welch-1000", "counted-all"} < set(groups)
    assert groups["counted-all"][0] == "100%"
    assert all(len(settings) > 1 for _, settings in groups.values())
    assert next(iter(groups)) == tagging.WORDS_OF.removesuffix("-0-s0")


@pytest.mark.slow
def test_the_chosen_settings_meet_the_test_text(tmp_path, monkeypatch):
    sentences = ["".join(f"{word}\t{tag}\t{tag}\n" for word, tag in pair) for pair in
                 ([("the", "D"), ("cat", "N")], [("a", "D"), ("dog", "N"), ("sat", "V")])] * 20  # fmt: skip
    (tmp_path / "ud-ewt").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "ud-ewt" / f"{split}.tsv").write_text("\n".join(sentences))
    learn = ("training.method=baum_welch", "training.full_batch=true")
    few = {
        "baum-welch-10": ("10", [("training.init=counts", *learn, "training.epochs=1")]),
        "baum-welch": (None, [(*learn, "training.epochs=1"), (*learn, "training.epochs=9")]),
        "counted-10": ("10", [("only", "training.init=counts", *learn, "training.epochs=1")]),
    }
    monkeypatch.setattr(tagging, "groups", lambda: few)
    monkeypatch.setattr(tagging, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tagging, "SEEDS", (0, 1))
    monkeypatch.setattr(tagging, "STATES", 4)
    monkeypatch.setattr(tagging, "commit_of", lambda root: "abc1234")
    tagging.tagging(str(tmp_path), tmp_path / "runs", 1)
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")}
    assert len(found) == 7
    assert sorted(one["seed"] for name, one in found.items() if "test" in one and "counted" in name) == [0, 1]
    assert sum("test" in one for name, one in found.items() if one["labelled"] is None) == 2
    best, other = ("baum-welch-1-s0", "baum-welch-0-s0")
    if "test" in found[other]:
        best, other = other, best
    assert found[best]["dev"]["universal"]["v_measure"] >= found[other]["dev"]["universal"]["v_measure"]
    assert found["counted-10-0-s0"]["test"]["universal"]["accuracy"] == 1.0
    assert (
        found["counted-10-0-s0"]["commands"][0]
        == "trellis untag train.tsv text-10-only-0 --labelled 10 --seed 0 --only"
    )
    assert str(tmp_path) not in json.dumps(found)
