"""`python -m experiments record RUN` notes a finished run as a JSON file; `report` writes docs/results.md from all."""

from pathlib import Path

import typer

from experiments.record import record
from experiments.report import report
from trellis import TrellisError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
HERE = Path(__file__).parent


@app.command("record")
def _record(run: Path, name: str = "", threads: int = 2) -> None:
    """Evaluate a finished run's best model on validation and test text and write results/NAME.json."""
    typer.echo(record(run, HERE / "results" / f"{name or run.name}.json", threads))


@app.command("report")
def _report() -> None:
    """Write docs/results.md from every committed result."""
    typer.echo(report(HERE, HERE.parent / "docs" / "results.md"))


if __name__ == "__main__":
    try:
        app()
    except TrellisError as error:
        raise SystemExit(f"error: {error}") from None
