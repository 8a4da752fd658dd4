"""`trellis cluster` on a tiny text."""

import json

from .commands import LINES, done


def test_cluster_writes_every_type_under_a_path(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(LINES))
    out = json.loads(done(capsys, "cluster", text, "--clusters", 4, "--out", tmp_path / "paths", "--json"))
    entries = [line.split("\t") for line in (tmp_path / "paths").read_text().splitlines()]
    assert out["types"] == len(entries) == len({word for line in LINES for word in line.split()}) + 2
    assert len({path for path, _, _ in entries}) == 4
    path_of = {word: path for path, word, _ in entries}
    assert path_of["saw"] == path_of["likes"] == path_of["heard"]
