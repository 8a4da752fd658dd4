"""`trellis synthesise`: a corpus drawn from a mixture of HMMs, with concepts and hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli.terminal import MANY, Json, Seed, Threads, load, report
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.mixtures import Mixture
    from trellis.text import Tokenizer

EXAMPLE = (
    "Examples:\n\ntrellis synthesise made --documents 1000 --concepts 5\n\n"
    "trellis synthesise made --transitions permutations --permutations 100\n\n"
    "trellis synthesise mixed runs/news runs/novels --weights 0.7,0.3"
)
DOCUMENTS_FILE, MIXTURE_FOLDER = "documents.jsonl", "mixture"


def run(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the documents and the mixture.")],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="HMMs of one vocabulary to mix. (default: HMMs drawn from --seed)"),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="W,W,…", help="Prior weights of the models. (default: equal)")
    ] = None,
    documents: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="How many documents.")] = 1000,
    length: Annotated[
        int, typer.Option(min=1, max=MANY, metavar="N", help="Tokens of each; one may end sooner.")
    ] = 128,
    concepts: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="HMMs to draw.")] = 5,
    states: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="States of each.")] = 10,
    vocab_size: Annotated[int, typer.Option(min=2, max=MANY, metavar="N", help="Symbols, whole numbers from 0.")] = 50,
    transitions: Annotated[
        str, typer.Option(metavar="KIND", help="dirichlet, or permutations: a mixture of random permutations.")
    ] = "dirichlet",
    concentration: Annotated[float, typer.Option(help="Dirichlet: of starts and transitions.")] = 0.1,
    permutations: Annotated[
        int, typer.Option(min=1, max=MANY, metavar="N", help="How many permutations are mixed.")
    ] = 100,
    temperature: Annotated[float, typer.Option(help="Permutations: low ones make few of them count.")] = 0.1,
    emission_concentration: Annotated[float, typer.Option(help="Dirichlet: of emissions.")] = 0.1,
    shared_emissions: Annotated[
        bool, typer.Option("--shared-emissions/--own-emissions", help="Whether all concepts emit alike.")
    ] = True,
    seed: Seed = 0,
    json: Json = False,
    threads: Threads = None,
) -> None:
    """Draw documents from a mixture of HMMs: each from one of them, its concept, which the prior draws.

    documents.jsonl has text, concept, states and ids of a document a line; mixture/ has the models, of which
    `trellis.mixtures.load_mixture` makes exact posteriors over concepts and the Bayes-optimal next token.
    """
    from trellis.folders import whole_folder
    from trellis.synthesis import SynthesisSettings, draw_documents, draw_mixture
    from trellis.text import IntegerTokenizer

    _check_folder(out)
    if models:
        mixture, tokenizer = _given(models, weights)
    else:
        if weights is not None:
            raise TrellisError("--weights are those of models that are given: name them, or leave it out.")
        settings = SynthesisSettings(
            concepts, states, vocab_size, transitions,  # type: ignore[arg-type]  # the settings refuse other names
            concentration, permutations, temperature, emission_concentration, shared_emissions, seed,
        )  # fmt: skip
        mixture, tokenizer = draw_mixture(settings), IntegerTokenizer(vocab_size)
    tokens = 0
    with whole_folder(out, for_people=True) as folder:
        mixture.save_pretrained(folder / MIXTURE_FOLDER, tokenizer)
        with (folder / DOCUMENTS_FILE).open("w", encoding="utf-8") as file:
            for record in draw_documents(mixture, tokenizer, documents, length, seed):
                file.write(_line(record))
                tokens += len(record["ids"])
    path, kind = out / DOCUMENTS_FILE, "" if models else " data.tokenizer=integers"
    report(
        json,
        {"documents": documents, "tokens": tokens, "concepts": len(mixture.models), "file": str(path), "seed": seed},
        ("documents", f"{documents:,} of {len(mixture.models)} concepts, {tokens:,} tokens"),
        ("file", str(path)),
        ("mixture", str(out / MIXTURE_FOLDER)),
        ("next", f"trellis train {path}{kind}"),
    )


def _line(record: dict[str, object]) -> str:
    import json

    return json.dumps(record, ensure_ascii=False) + "\n"


def _given(models: list[str], weights: str | None) -> tuple[Mixture, Tokenizer]:
    """The mixture of some saved models."""
    from trellis.mixtures import mixture_of

    try:
        numbers = None if weights is None else [float(number) for number in weights.split(",")]
    except ValueError:
        raise TrellisError(f"'{weights}' are no weights: write numbers with commas between, as 0.7,0.3.") from None
    return mixture_of([load(name, "cpu") for name in models], numbers)


def _check_folder(out: Path) -> None:
    """Refuse to take the place of a folder that holds anything but an earlier corpus of this command's."""
    if out.is_dir() and not {entry.name for entry in out.iterdir()} <= {DOCUMENTS_FILE, MIXTURE_FOLDER}:
        raise TrellisError(f"{out} holds other files, which would be lost: choose another folder.")
