from trellis.notebook import html_table


def test_a_table_whose_words_are_no_markup():
    shown = html_table(("a<b", "1 & 2"), ("c", "3"))
    assert shown.count("<tr>") == 2
    assert "a&lt;b</th><td>1 &amp; 2</td>" in shown
    assert html_table() == "<table></table>"
