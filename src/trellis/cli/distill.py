"""`trellis distill`: a teacher's states of a text, clustered, as labels to begin training with."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from trellis.cli.teaching import distilled
from trellis.cli.terminal import DataDir, Json, Threads, report
from trellis.cli.train import configure
from trellis.errors import TrellisError
from trellis.progress import counted, short_number, short_time

EXAMPLE = (
    "Examples:\n\ntrellis distill distill.teacher=teachers/stories15M data.corpus=openmix "
    "data.tokenizer=tokenizers/llama2 model.states=512 --data-dir data\n\n"
    "trellis distill data.tokenizer=runs/teacher distill.teacher=runs/teacher distill.tokens=100000 model.states=64\n\n"
    "trellis distill pydocs distill.teacher=random:teachers/stories15M distill.pca=64\n\n"
    "trellis distill --from-llm teachers/stories15M --tokens 1000000 model.states=512 out=runs/stories"
)
SAMPLED = "With --from-llm: "


def run(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG KEY=VALUE",
            help="A YAML file or a run's folder, and settings on top of it, as for `trellis train`.",
        ),
    ] = None,
    from_llm: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Sample the text from this causal language model of Hugging Face, label it and train on it: an HMM of "
            "the model in one command. The same command again goes on where it was interrupted.",
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help=f"{SAMPLED}tokens to sample. (default: 2,000,000)")
    ] = None,
    length: Annotated[
        int | None, typer.Option(metavar="N", help=f"{SAMPLED}tokens at which texts are cut. (default: 256)")
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help=f"{SAMPLED}texts at once. (default: 128)")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help=f"{SAMPLED}seed of the text. (default: 0)")] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help=f"{SAMPLED}below 1, text more predictable. (default: 1)")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"{SAMPLED}float32 or bf16, the faster. (default: float32)")
    ] = None,
    json: Json = False,
    threads: Threads = None,
    data_dir: DataDir = None,
) -> None:
    """Cluster a teacher's states of the training text, as many clusters as the HMM has states, and label the text.

    What comes of it is kept: `trellis train` with the same settings and training.init=distill begins from it. With
    --from-llm, the teacher's own text is sampled first, and the run trained too.
    """
    sampling = {
        name: value
        for name, value in {
            "tokens": tokens, "length": length, "batch": batch, "seed": seed, "temperature": temperature,
            "precision": precision,
        }.items()
        if value is not None
    }  # fmt: skip
    if from_llm is not None:
        from trellis.cli.from_llm import run_from
        from trellis.distillation.sampling import SampleSettings

        run_from(from_llm, settings or [], SampleSettings(**sampling), json, data_dir)  # type: ignore[arg-type]
        return
    for name in sampling:
        raise TrellisError(f"--{name} is for sampled text: name a language model with --from-llm, or leave it out.")
    _label(settings or [], json, data_dir)


def _label(settings: list[str], json: bool, data_dir: str | None) -> None:
    """Find or make the labels of the training text, and say how they came out."""
    from trellis.config import completed
    from trellis.models.hmm_config import HMMConfig
    from trellis.text.sources import prepare_texts

    config, told = configure(settings, data_dir)
    if not isinstance(config.model, HMMConfig):
        raise TrellisError(f"only an HMM has states to label, a model of kind {config.model.kind} has none: leave it.")
    if config.distill.teacher is None:
        raise TrellisError("distillation needs a teacher: set distill.teacher to a model's folder.")
    texts = prepare_texts(config.data)
    config = completed(config, told, texts.train)
    about = dict(distilled(config, config.with_vocabulary(texts.tokenizer.vocab_size), texts).about)
    report(json, about, *_figures(about), ("next", _next(settings, data_dir)))


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
