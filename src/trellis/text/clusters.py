"""Word clusters on disk, as other tools write them: a path, a word and its count a line, with tabs between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trellis.errors import TrellisError
from trellis.folders import disk_trouble, one_at_a_time, whole_folder, write_atomically
from trellis.manifests import check_listed
from trellis.text.brown import BrownTree, brown
from trellis.text.ids import IdFile
from trellis.text.tokenizer import Tokenizer

_CLUSTERS = "clusters.npy"


def write_paths(path: Path, tree: BrownTree, tokenizer: Tokenizer, count_V: NDArray[np.int64]) -> None:
    """Write every word under its cluster's path, the most frequent of a cluster first."""
    order = np.lexsort((-count_V, tree.cluster_V))
    lines = (f"{tree.paths[tree.cluster_V[id]]}\t{tokenizer.token(int(id))}\t{count_V[id]}\n" for id in order)
    with disk_trouble(path):
        write_atomically(path, "".join(lines))


def brown_clusters(text: IdFile, clusters: int) -> NDArray[np.int64]:
    """The Brown cluster of every type, V; found once for a text and kept in a folder beside its ids.

    Processes that want the same at the same time wait for the first one to find it.
    """
    folder = text.folder / f"brown-{clusters}"
    if (known_V := _known(folder, text, clusters)) is not None:  # before the lock: no permission to write is needed
        return known_V
    with disk_trouble(folder), one_at_a_time(folder):
        if (known_V := _known(folder, text, clusters)) is not None:
            return known_V
        cluster_V = brown(text.ids, text.meta.vocab_size, clusters).cluster_V
        with whole_folder(folder) as partial:
            np.save(partial / _CLUSTERS, cluster_V)
    return cluster_V


def _known(folder: Path, text: IdFile, clusters: int) -> NDArray[np.int64] | None:
    """Clusters found before; absent and damaged are the same, for both are mended by finding them anew."""
    try:
        check_listed(folder / _CLUSTERS)
        found = np.load(folder / _CLUSTERS, allow_pickle=False)
    except Exception:  # a damaged header can raise anything at all
        return None
    whole = isinstance(found, np.ndarray) and found.shape == (text.meta.vocab_size,) and found.dtype == np.int64
    return found if whole and np.array_equal(np.unique(found), np.arange(clusters)) else None


def read_paths(path: Path, tokenizer: Tokenizer, unclustered: str | None = None) -> BrownTree:
    """Read the cluster of every type of the vocabulary; words of the file that it lacks are passed over.

    Words of the vocabulary that the file misses join the cluster of the word `unclustered`; without one, they are
    refused.
    """
    path_of = dict(_entries(path))
    words = [tokenizer.token(id) for id in range(tokenizer.vocab_size)]
    if unclustered is not None:
        if unclustered not in path_of:
            raise TrellisError(f"{path} has no cluster for {unclustered!r} either: name a word that it holds.")
        path_of = dict.fromkeys(words, path_of[unclustered]) | path_of
    missing = [word for word in words if word not in path_of]
    if missing:
        raise TrellisError(
            f"{path} has no cluster for {len(missing):,} of the vocabulary's {len(words):,} words, {missing[0]!r} "
            "among them: cluster the same text, or name in model.unclustered a word whose cluster they may join."
        )
    paths = sorted({path_of[word] for word in words})
    number = {name: index for index, name in enumerate(paths)}
    return BrownTree(np.array([number[path_of[word]] for word in words], dtype=np.int64), tuple(paths))


def _entries(path: Path) -> list[tuple[str, str]]:
    """Each line's word and path."""
    try:
        # not splitlines(), which would end lines within words that hold rarer separators
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise TrellisError(f"there is no cluster file {path}: check the path.") from None
    except UnicodeDecodeError as error:
        raise TrellisError(f"{path} is not UTF-8 at byte {error.start}: convert it.") from None
    found = []
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if len(cells) not in (2, 3) or not cells[1]:
            raise TrellisError(f"{path}, line {number} is not a path, a word and a count with tabs between: mend it.")
        found.append((cells[1], cells[0]))
    return found
