"""The command `trellis`: text in, models and answers out."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from trellis import __version__
from trellis.cli import (
    ask,
    cluster,
    decode,
    distill,
    doctor,
    evaluate,
    export,
    fill,
    import_,
    inspect,
    prepare,
    sample,
    score,
    settings,
    synthesise,
    tag,
    train,
    untag,
    write,
)
from trellis.cli.terminal import say, with_torch
from trellis.errors import TrellisError
from trellis.folders import FULL
from trellis.help_pages import Command, Group
from trellis.torchrun import end_with_torchrun

ABOUT = """Hidden Markov language models: train them, measure them, ask them exact questions.

Results go to standard output, progress and messages to standard error. Exit codes: 0 done, 2 something to
mend (said in one sentence), 3 training stopped as asked and can be resumed, 130 interrupted.
"""
START = (
    "Start here, or with a text of yours in place of pydocs, the prose of Python's own documentation:\n\n"
    "trellis train pydocs\n\ntrellis sample runs/pydocs"
)
NO_MEMORY = ("can't allocate memory", "size calculation overflowed", "multiplication overflow")  # as torch says it
LESS = "ask for fewer states, a smaller batch or a shorter text"  # what takes less memory

app = typer.Typer(
    cls=Group, help=ABOUT, epilog=START, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
for command in (
    prepare,
    distill,
    train,
    settings,
    evaluate,
    score,
    decode,
    fill,
    ask,
    sample,
    write,
    inspect,
    untag,
    tag,
    synthesise,
    export,
    import_,
    cluster,
    doctor,
):
    name = command.__name__.rpartition(".")[2].rstrip("_")  # import is a word of Python's
    app.command(name, cls=Command, epilog=command.EXAMPLE)(with_torch(command.run))


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"trellis {__version__}")
        raise typer.Exit


@app.callback()
def _any_command(
    told: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say the version and stop.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what the user can mend comes as one sentence on standard error, without a traceback."""
    if arguments is None:
        threading.excepthook = _let_threads_fill_the_disk
        end_with_torchrun()
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="trellis", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except TrellisError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        return _nobody_listens()
    except MemoryError:
        return _refuse(f"there is not enough memory: {LESS}.")
    except OSError as error:
        return _refuse(_disk_sentence(error))
    except RuntimeError as error:
        if any(words in str(error) for words in NO_MEMORY):
            return _refuse(f"there is not enough memory: {LESS}.")
        if "out of memory" in str(error) or type(error).__name__ == "OutOfMemoryError":  # torch's; not imported here
            return _refuse(f"the GPU has not enough memory: {LESS}, or compute on the processor (--device cpu).")
        raise
    except Exception as error:
        if usage := getattr(error, "format_message", None):  # typer's own errors about options and arguments
            return _refuse_usage(" ".join(usage().split()))
        if number := re.search(r"os error (\d+)", str(error)):  # how the tokenizers library says the disk is full
            return _refuse(_disk_sentence(OSError(int(number[1]), os.strerror(int(number[1])))))
        raise
    if code == 130:
        say("interrupted")
    return code if isinstance(code, int) else 0


def _refuse(sentence: str) -> int:
    rank = os.environ.get("RANK", "0")
    say(f"error: {sentence}" if rank == "0" else f"error in process {rank}: {sentence}")
    return 2


def _refuse_usage(message: str) -> int:
    if not message:  # no command at all, for which typer has printed the help
        return 0
    return _refuse(f"{message}{'' if message[-1] in '.?!' else '.'} Add --help to see what there is.")


def _disk_sentence(error: OSError) -> str:
    where = f" at {error.filename}" if error.filename else ""
    if error.errno in FULL:
        return f"the disk is full{where}: make room and run again, training with --resume."
    if error.errno == errno.ENAMETOOLONG:
        return f"{error.filename!s:.60}… is too long for the name of a file: name several as a list, [a.txt, b.txt]."
    return f"{error.strerror or error}{where}."


def _let_threads_fill_the_disk(told: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread, which a full disk ends; the main thread meets the same disk and says so."""
    if not isinstance(told.exc_value, OSError) or told.exc_value.errno not in FULL:
        threading.__excepthook__(told)


def _nobody_listens() -> int:
    """The reader of our output has gone, as `head` does: say nothing, and let nothing be flushed to it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
