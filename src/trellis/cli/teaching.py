"""Whether a teacher of our own has learnt the text that it shall label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.config import RunConfig
    from trellis.distillation.teachers import Source
    from trellis.text import IdFile
    from trellis.text.sources import DataSettings


def check_teachers_text(config: RunConfig, text: IdFile) -> None:
    """Refuse a teacher whose run learnt another text, unless that is asked for; one in no run may have learnt any."""
    from trellis.distillation.teachers import find_teacher

    if config.distill.any_text:
        return
    learnt = _data_of(find_teacher(config.distill.teacher, config.distill.seed, config.data.data_dir))
    if learnt is not None and not _same(learnt, config.data, text):
        raise TrellisError(
            f"the teacher {config.distill.teacher} learnt from {learnt.corpus}, which is another text than this run's: "
            "name a teacher of this text, or set distill.any_text=true."
        )


def _data_of(teacher: Source) -> DataSettings | None:
    """What the run that a teacher lies in learnt from; None if it is none of ours, has learnt nothing or is alone."""
    from trellis.config import run_of
    from trellis.models.storage import OURS, RUN_FILE, read_about

    run_file = teacher.path.parent / RUN_FILE
    if teacher.seed is not None or not teacher.path.is_dir() or not run_file.is_file():
        return None
    ours = str(read_about(teacher.path).get("model_type")).startswith(OURS)
    return run_of(teacher.path).data if ours else None


def _same(learnt: DataSettings, data: DataSettings, text: IdFile) -> bool:
    """Whether two runs have one text: a corpus by its name, files by what they hold now."""
    from trellis.text.corpora import NAMES
    from trellis.text.sources import open_split

    if learnt.corpus in NAMES:
        return learnt.corpus == data.corpus
    try:
        corpus = open_split(learnt, "train", data.data_dir)
    except TrellisError:  # it is no longer there
        return False
    return corpus is not None and corpus.content_hash() == text.meta.content_hash
