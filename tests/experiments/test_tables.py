from experiments.tables import table, three, with_spread


def test_a_table_has_a_head_a_rule_and_rows():
    assert table(["a", "b"], [[1, "x"]]) == ["| a | b |", "| --- | --- |", "| 1 | x |"]


def test_seeds_are_told_by_mean_lowest_and_highest():
    assert three([3.0, None, 1.0, 2.75]) == (2.25, 1.0, 3.0)
    assert three([None]) is None


def test_one_number_has_no_spread():
    shown = "{:.1f}".format
    assert with_spread([120.04], shown) == "120.0"
    assert with_spread([120.0, None, 121.0, 119.0], shown) == "120.0 (119.0–121.0)"
    assert with_spread([None], shown) == ""
