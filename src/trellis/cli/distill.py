"""`trellis distill`: a teacher's states of a text, clustered, as labels to begin training with."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from trellis.cli.terminal import DataDir, Json, Threads, report
from trellis.cli.train import configure, distilled
from trellis.errors import TrellisError
from trellis.progress import counted, short_number, short_time

EXAMPLE = (
    "Examples:\n\ntrellis distill distill.teacher=teachers/stories15M data.corpus=openmix "
    "data.tokenizer=tokenizers/llama2 model.states=512 --data-dir data\n\n"
    "trellis distill data.tokenizer=runs/teacher distill.teacher=runs/teacher distill.tokens=100000 model.states=64\n\n"
    "trellis distill pydocs distill.teacher=random:teachers/stories15M distill.pca=64"
)


def run(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG KEY=VALUE",
            help="A YAML file or a run's folder, and settings on top of it, as for `trellis train`.",
        ),
    ] = None,
    json: Json = False,
    threads: Threads = None,
    data_dir: DataDir = None,
) -> None:
    """Cluster a teacher's states of the training text, as many clusters as the HMM has states, and label the text.

    What comes of it is kept: `trellis train` with the same settings and training.init=distill begins from it.
    """
    from trellis.config import completed
    from trellis.models.hmm_config import HMMConfig
    from trellis.text.sources import prepare_texts

    config, told = configure(settings or [], data_dir)
    if not isinstance(config.model, HMMConfig):
        raise TrellisError(f"only an HMM has states to label, a model of kind {config.model.kind} has none: leave it.")
    if config.distill.teacher is None:
        raise TrellisError("distillation needs a teacher: set distill.teacher to a model's folder.")
    texts = prepare_texts(config.data)
    config = completed(config, told, texts.train)
    about = dict(distilled(config, config.with_vocabulary(texts.tokenizer.vocab_size), texts).about)
    report(json, about, *_figures(about), ("next", _next(settings or [], data_dir)))


def _figures(about: dict[str, Any]) -> list[tuple[str, str]]:
    """What was made, in lines for people."""
    width, kept = about["teacher_width"], about["dimensions"]
    rate = about["tokens_per_second"]
    speed = "" if rate is None else f", {short_number(rate)} tokens a second"
    lacking = about["states_without_cluster"]
    poor = f"{counted(lacking, 'state')}, whose blocks have fewer different vectors"
    return [
        ("teacher", f"{about['teacher']}, hash {about['teacher_hash']}"),
        ("layer", f"{about['layer']}, {width} dimensions" + ("" if kept == width else f", of which {kept} are kept")),
        ("clusters", f"{about['states']:,} by {about['library']}, {about['points_per_centroid']:.0f} points a centroid"
                     f", in {short_time(about['cluster_seconds'])}"),
        *([("without cluster", poor)] if lacking else []),
        ("labelled", f"{counted(about['tokens'], 'token')} in {short_time(about['label_seconds'])}{speed}"),
        ("label usage", f"{about['used_states']:,} of {about['states']:,} states, entropy "
                        f"{about['entropy_bits']:.2f} of {about['most_bits']:.2f} bits"),
        ("folder", about["folder"]),
    ]  # fmt: skip


def _next(settings: list[str], data_dir: str | None) -> str:
    """The command that trains with it."""
    folder = [] if data_dir is None else ["--data-dir", data_dir]
    return shlex.join(["trellis", "train", *settings, "training.init=distill", *folder])
