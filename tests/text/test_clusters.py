from pathlib import Path

import numpy as np
import pytest

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST
from trellis.text import BrownTree, MemoryCorpus, WordTokenizer, brown_clusters, prepare, read_paths, write_paths

WORDS = WordTokenizer(["<unk>", "<eos>", "cat", "dog", "sees"])
TREE = BrownTree(np.array([0, 2, 1, 1, 2]), ("00", "01", "1"))


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "paths"
    write_paths(path, TREE, WORDS, np.array([3, 9, 4, 5, 7]))
    assert path.read_text() == "00\t<unk>\t3\n01\tdog\t5\n01\tcat\t4\n1\t<eos>\t9\n1\tsees\t7\n"
    found = read_paths(path, WORDS)
    assert found.cluster_V.tolist() == TREE.cluster_V.tolist()
    assert found.paths == TREE.paths


def test_a_word_may_hold_what_elsewhere_ends_a_line(tmp_path):
    words = WordTokenizer(["<unk>", "<eos>", "a\u2028b", "c\x85", "d"])
    write_paths(tmp_path / "paths", TREE, words, np.ones(5, dtype=np.int64))
    assert read_paths(tmp_path / "paths", words).cluster_V.tolist() == TREE.cluster_V.tolist()


def test_words_outside_the_vocabulary_are_passed_over(tmp_path):
    path = tmp_path / "paths"
    write_paths(path, TREE, WORDS, np.ones(5, dtype=np.int64))
    path.write_text("11\tbird\t2\n" + path.read_text())
    assert read_paths(path, WORDS).paths == TREE.paths


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"0\tcat\t1\n1\tdog\t1\n", r"no cluster for 3 of the vocabulary's 5 words, '<unk>'"),
        (b"0\tcat\t1\nhello\n", "line 2 is not a path, a word and a count"),
        (b"0\tcat\t1\n\xff", "not UTF-8 at byte 8"),
    ],
)
def test_bad_files_are_explained(tmp_path, content, message):
    path = tmp_path / "paths"
    path.write_bytes(content)
    with pytest.raises(TrellisError, match=message):
        read_paths(path, WORDS)


def test_a_missing_file_is_said():
    with pytest.raises(TrellisError, match="there is no cluster file nowhere"):
        read_paths(Path("nowhere"), WORDS)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("damage", [b"", b"no array", b"PK", "cut", "header", "another vocabulary", "zeros", "other"])
def test_damaged_clusters_are_found_anew(tmp_path, damage, listed):
    text = prepare(MemoryCorpus("text", ("cat sees dog", "dog sees cat", "cat sees cat")), WORDS, tmp_path, quiet=True)
    found = brown_clusters(text, 2)
    path = text.folder / "brown-2" / "clusters.npy"
    whole = path.read_bytes()
    if not listed:
        (path.parent / MANIFEST).unlink()
    if damage == "other":
        np.save(path, 1 - found if listed else found)  # sound clusters, of which only the manifest knows better
    elif damage in ("another vocabulary", "zeros"):
        np.save(path, np.zeros(3 if damage != "zeros" else 5, dtype=np.int64))
    else:
        path.write_bytes({"cut": whole[:-5], "header": whole[:20] + b"([" + whole[22:]}.get(damage, damage))
    assert brown_clusters(text, 2).tolist() == found.tolist()
    assert path.read_bytes() == whole


def test_known_clusters_need_no_permission_to_write(tmp_path, monkeypatch):
    text = prepare(MemoryCorpus("text", ("cat sees dog",)), WORDS, tmp_path, quiet=True)
    found = brown_clusters(text, 2)
    monkeypatch.setattr("trellis.text.clusters.one_at_a_time", None)
    assert brown_clusters(text, 2).tolist() == found.tolist()
