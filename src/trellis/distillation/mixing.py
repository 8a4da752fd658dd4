"""A run's own text and a teacher's beside it, as one."""

from __future__ import annotations

import hashlib
import json
import math

from trellis.distillation.sampling import SampleSettings, sample_text
from trellis.distillation.settings import SampledSettings
from trellis.errors import TrellisError
from trellis.folders import default_cache, disk_trouble, one_at_a_time, whole_folder
from trellis.text import IdFile, Tokenizer

_REMEDY = "set TRELLIS_CACHE to another folder"
LENGTH, BATCH = 1024, 256  # tokens of a stream, and how many streams are drawn at once where so many are wanted


def with_sampled(
    text: IdFile, tokenizer: Tokenizer, settings: SampledSettings, *, data_dir: str | None = None, quiet: bool = False
) -> IdFile:
    """The text, as often as `settings.copies` says, and a teacher's own after it; what was made before is found."""
    if settings.teacher is None:
        raise TrellisError("text can be sampled from a teacher alone: set sampled.teacher to a model's folder.")
    batch = min(BATCH, math.ceil(settings.tokens / LENGTH))
    how = SampleSettings(settings.tokens, LENGTH, batch, settings.seed, precision=settings.precision)
    drawn = sample_text(settings.teacher, how, data_dir=data_dir, quiet=quiet)
    if drawn.meta.fingerprint != tokenizer.fingerprint():
        raise TrellisError(
            f"the teacher {settings.teacher} has other words than this run: set data.tokenizer to its folder."
        )
    return mixed(text, drawn, settings.copies)


def mixed(text: IdFile, drawn: IdFile, copies: int) -> IdFile:
    """So many copies of a text and one of another, in the cache."""
    identity = json.dumps([text.meta.content_hash, text.meta.tokens, drawn.meta.content_hash, copies])
    content = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    folder = default_cache() / f"mixed-{content}"
    with disk_trouble(folder, _REMEDY), one_at_a_time(folder):
        if not IdFile.found(folder):
            with whole_folder(folder, _REMEDY) as partial:
                IdFile.joined(partial, [*[text] * copies, drawn], content)
    return IdFile.open(folder).named(f"{text.meta.corpus} and {drawn.meta.corpus}")
