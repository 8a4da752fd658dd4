"""Strange texts: random bytes, pipes, endless lines, marks of byte order, NULs, links, folders, what is no UTF-8."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

from torture.outcomes import REFUSED, UNHARMED, refuse_partials
from torture.server import Command, finish, start
from torture.trial import Trial
from torture.workshop import sentences

SETTINGS = ("model.states=4", "training.batch_size=4", "training.length=8", "training.epochs=1", "training.lr=0.1")
TOKENIZERS = ("words", "bpe", "characters", "bytes", "integers")


# What may stand within a text.
ODD = (b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\r", b"\x0b", b"\xc2\x85", b"<eos>", b"\t",
       b"<unk>", b" " * 3000, "\U0001f600".encode(), b"\x1a", b"\xf4\x90\x80\x80", b"<mask>")  # fmt: skip


def _plain(random: Random) -> bytes:
    return "".join(f"{line}\n" for line in sentences(random, random.randrange(1, 60))).encode()


def _text(random: Random) -> bytes:
    """The content of one strange file."""
    plain = _plain(random)
    odd = random.choice(ODD)
    at = random.randrange(len(plain))
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: b"\n" * random.randrange(1, 2000),
        lambda: random.randbytes(random.randrange(1, 5000)),
        lambda: plain.replace(b"\n", b" "),
        lambda: b"word " * random.choice((1, 1000, 300_000)),
        lambda: b"a" * random.choice((1, 1000, 1_000_000)),
        lambda: b"\xef\xbb\xbf" + plain,
        lambda: plain.decode().encode(random.choice(("utf-16", "utf-32", "utf-16-le", "cp037"))),
        lambda: plain[:at] + odd * random.choice((1, 3, 100)) + plain[at:],
        lambda: plain.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n\n"))),
        lambda: "".join(chr(random.choice((32, random.randrange(160, 0xD7FF)))) for _ in range(2000)).encode(),
        lambda: " ".join(str(random.choice((0, 1, 5, -1, 10**30, 1.5))) for _ in range(300)).encode(),
        lambda: b"one\n",
    )  # fmt: skip
    return random.choice(makers)()


def _lines_of_json(random: Random) -> bytes:
    """JSON lines of which some are none."""
    deep = "[" * 5000 + "]" * 5000
    odd = ['{"text": 1}', "{}", "[]", "null", '{"text": "a', "", '{"text": "\\ud800"}', '{"text": null}', "nan",
           f'{{"text": {deep}}}', '{"text": ["a", "b"]}', '{"TEXT": "x"}', '"only text"', '{"text": "a\\u0000b"}',
           '{"text": ""}']  # fmt: skip
    good = [json.dumps({"text": line}) for line in sentences(random, random.randrange(0, 30))]
    return "\n".join(random.sample(good + random.choices(odd, k=3), k=len(good) + 3)).encode("utf-8", "surrogatepass")


def _write(trial: Trial) -> str:
    """One strange file, and its name."""
    random, folder = trial.random, trial.folder
    kind = random.choices(("text", "json", "gzip", "zstd", "npy", "folder", "link", "pipe", "device"),
                          (10, 3, 2, 1, 2, 1, 1, 1, 1))[0]  # fmt: skip
    if kind in ("text", "json"):
        name = "strange.jsonl" if kind == "json" else random.choice(("strange.txt", "strange", "strange é=.txt"))
        (folder / name).write_bytes(_lines_of_json(random) if kind == "json" else _text(random))
    elif kind in ("gzip", "zstd", "npy"):
        name = {"gzip": "strange.txt.gz", "zstd": "strange.txt.zst", "npy": "strange.npy"}[kind]
        whole = gzip.compress(_text(random)) if kind == "gzip" else b"\x93NUMPY\x01\x00" + random.randbytes(100)
        whole = _array(random) if kind == "npy" and random.random() < 0.7 else whole
        (folder / name).write_bytes(whole if random.random() < 0.5 else whole[: random.randrange(len(whole))])
    else:
        name = _no_file(kind, folder)
    trial.what = f"{kind} {name}"
    return name


def _array(random: Random) -> bytes:
    import io

    import numpy as np

    shape = random.choice(((0,), (100,), (10, 10), (3, 0), (), (2, 3, 4)))
    kind = random.choice(("i8", "u1", "f4", "?", "U3", "i2", ">i4", "c8", "M8[s]"))
    file = io.BytesIO()
    np.save(file, np.zeros(shape, dtype=kind) if random.random() < 0.5 else np.ones(shape).astype(kind))
    return file.getvalue()


def _no_file(kind: str, folder: Path) -> str:
    """Something that stands where a file is looked for."""
    path = folder / "strange.txt"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    return path.name


def _fill(path: Path) -> int:
    """In a child: write into a pipe, once."""
    with path.open("wb") as pipe:
        pipe.write(b"the cat saw the milk\n" * 50)
    return 0


def fault(trial: Trial) -> str:
    """Learn from, tokenise, measure or score a strange text."""
    name = _write(trial)
    tokenizer = trial.random.choice(TOKENIZERS)
    trial.workshop.copy(trial.folder, "runs/dense")
    command = trial.random.choice((
        ("train", name, *SETTINGS, f"data.tokenizer={tokenizer}", "out=run"),
        ("train", "train.txt", f"data.valid={name}", *SETTINGS, "out=run"),
        ("prepare", name, "--tokenizer", tokenizer),
        ("cluster", name, "--clusters", "3", "--out", "out.paths"),
        ("evaluate", "runs/dense", name, "--json"),
        ("score", "runs/dense", name, "--json"),
        ("score", "runs/dense", "--json"),
        ("decode", "runs/dense", name),
        ("fill", "runs/dense", name),
    ))  # fmt: skip
    trial.what += f", by {command[0]}"
    typed = _text(trial.random) if name not in command else b""
    path = trial.folder / name
    writer = start(Command((), trial.folder, function=lambda: _fill(path))) if path.is_fifo() else None
    try:
        well = trial.well(*command, stdin=typed)
    finally:
        if writer is not None:
            os.kill(writer.pid, signal.SIGKILL)
            finish(writer)
    refuse_partials(trial.folder)
    return UNHARMED if well else REFUSED
