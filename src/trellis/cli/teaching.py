"""What teachers give to a run of `trellis train`: labels of its text, or text of their own; and what is refused."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from trellis.cli.terminal import chief
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.config import RunConfig
    from trellis.distillation import Distilled
    from trellis.distillation.settings import DistillSettings, SampledSettings
    from trellis.distillation.teachers import Source
    from trellis.models.model import ModelConfig
    from trellis.text import IdFile
    from trellis.text.sources import DataSettings, Texts


def check_teachers(config: RunConfig) -> None:
    """Refuse, before any slow work, what teachers are asked for and cannot do."""
    _check_distillation(config)
    _check_sampled(config)


def _check_distillation(config: RunConfig) -> None:
    """Refuse, before any slow work, distillation without a teacher that is there, or a teacher without distillation."""
    from trellis.distillation import DistillSettings
    from trellis.distillation.teachers import find_teacher
    from trellis.models.hmm_config import HMMConfig

    if config.training.init != "distill":
        for field in dataclasses.fields(DistillSettings):
            if (value := getattr(config.distill, field.name)) != field.default:
                raise TrellisError(
                    f"distill.{field.name}={value} is for distillation: set training.init=distill, or leave it out."
                )
        return
    if config.distill.teacher is None:
        raise TrellisError("training.init=distill needs a teacher: set distill.teacher to a model's folder.")
    if not isinstance(config.model, HMMConfig):
        raise TrellisError(
            f"distillation is for models with hidden states, not {config.model.kind}: set training.init=random."
        )
    if config.data.labels is not None:
        raise TrellisError("training.init=distill learns from labels of its own: leave out data.labels.")
    find_teacher(config.distill.teacher, config.distill.seed, config.data.data_dir)


def _check_sampled(config: RunConfig) -> None:
    """Refuse, before any slow work, a sample of no teacher, or one beside labels that go by places in the text."""
    from trellis.distillation.settings import SampledSettings
    from trellis.distillation.teachers import find_teacher
    from trellis.training.precision import check_precision

    if config.sampled.teacher is None:
        for field in dataclasses.fields(SampledSettings):
            if (value := getattr(config.sampled, field.name)) != field.default:
                raise TrellisError(
                    f"sampled.{field.name}={value} is for a teacher's text: set sampled.teacher, or leave it out."
                )
        return
    if config.training.init == "distill" or config.data.labels is not None:
        raise TrellisError("labels are of the run's own text alone: leave out sampled.teacher, or the labels.")
    check_precision(config.sampled.precision)
    find_teacher(config.sampled.teacher, config.sampled.seed, config.data.data_dir)


def learnt_from(config: RunConfig, texts: Texts) -> IdFile:
    """The training text, with a teacher's beside it where one is named."""
    from trellis.distillation.mixing import with_sampled

    if config.sampled.teacher is None:
        return texts.train
    _check_text("sampled", config.sampled, config.data, texts.train)
    return with_sampled(texts.train, texts.tokenizer, config.sampled, data_dir=config.data.data_dir, quiet=not chief())


def distilled(config: RunConfig, shape: ModelConfig, texts: Texts) -> Distilled:
    """What the teacher says of the training text; found once and kept."""
    from trellis.distillation import distill
    from trellis.models.hmm_config import HMMConfig
    from trellis.models.supports import support_of

    assert isinstance(shape, HMMConfig)
    _check_text("distill", config.distill, config.data, texts.train)
    support = support_of(shape, texts.train, texts.tokenizer, config.training.seed)
    return distill(
        config.distill, texts.train, texts.tokenizer, shape.states, support, data_dir=config.data.data_dir,
        quiet=not chief(),
    )  # fmt: skip


def _check_text(group: str, told: DistillSettings | SampledSettings, data: DataSettings, text: IdFile) -> None:
    """Refuse a teacher whose run learnt another text, unless that is asked for; one in no run may have learnt any."""
    from trellis.distillation.teachers import find_teacher

    if told.any_text:
        return
    learnt = _data_of(find_teacher(told.teacher, told.seed, data.data_dir))
    if learnt is not None and not _same(learnt, data, text):
        raise TrellisError(
            f"the teacher {told.teacher} learnt from {learnt.corpus}, which is another text than this run's: name a "
            f"teacher of this text, or set {group}.any_text=true."
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
