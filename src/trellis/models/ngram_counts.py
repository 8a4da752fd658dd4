"""How often the n-grams of a text were seen, and after how many different words: what Kneser–Ney is made of.

N-grams are numbered, each length for itself. The number of h w is found by that of h and the word w, so the numbers of
all n-grams that end at a token come from those at the token before it: one look-up a length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.progress import Progress

NOTHING = -1  # a word where a text has not begun, and the number of an n-gram that was never seen
FALLBACK = (0.5, 1.0, 1.5)  # discounts of a length with too few n-grams to estimate them from
LAST_KEY = np.iinfo(np.int64).max  # of a row after all others, where look-ups that find nothing end

Ints = NDArray[np.int64]


class Order(NamedTuple):
    """The n-grams of one length, sorted by key."""

    key_N: Ints  # number of the context · V + word
    seen_N: Ints  # how often each was seen
    before_N: Ints  # after how many different words, zero where nothing ever stood before it

    def counts(self) -> Ints:
        """What Kneser–Ney counts: words before where there are any, and times seen where a sentence begins."""
        return np.where(self.before_N > 0, self.before_N, self.seen_N)


def count(ids: Ints, vocab_size: int, order: int, end: int, bar: Progress) -> Iterator[Order]:
    """The n-grams of each length, from one word on; none reaches back over `end`, if that is a word."""
    ids = np.concatenate([[end], ids]) if end != NOTHING else ids
    key_N, seen_N = np.arange(vocab_size), np.bincount(ids[end != NOTHING :], minlength=vocab_size)
    number = context = ids  # of the n-gram that ends at each token, and the same for use as a context
    for _ in range(2, order + 1):
        places = 1 + np.flatnonzero(context[:-1] != NOTHING)
        keys = context[places - 1] * vocab_size + ids[places]
        longer_N, first_N, found, longer_seen_N = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        # Without its first word, each of these is one of the length before: one more word that stood before that.
        yield Order(key_N, seen_N, np.bincount(number[places[first_N]], minlength=len(key_N)))
        key_N, seen_N = longer_N, longer_seen_N
        number = np.full(len(ids), NOTHING)
        number[places] = found
        context = np.where(ids == end, NOTHING, number)
        bar.advance(1)
    yield Order(key_N, seen_N, np.zeros_like(seen_N))
    bar.advance(1)


def discounts(count_N: Ints) -> tuple[float, ...]:
    """Chen & Goodman's estimates for counts of 1, 2, and 3 or more, from how many there are of 1 to 4."""
    many = np.bincount(np.minimum(count_N, 5), minlength=6)[1:5].tolist()
    if 0 in many:
        return FALLBACK
    share = many[0] / (many[0] + 2 * many[1])
    found = tuple(k - (k + 1) * share * many[k] / many[k - 1] for k in (1, 2, 3))
    return found if all(0 < discount <= k for k, discount in enumerate(found, start=1)) else FALLBACK
