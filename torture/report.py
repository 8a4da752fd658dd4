"""Results on the screen, in JSON, and as the page docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torture.outcomes import BAD
from trellis.folders import write_atomically

Results = dict[str, Any]
# What each part does, as the page says it.
TRIED = {
    "kills": "SIGKILL while a command trains (dense, blocked, LSTM, Kneser–Ney, restarts), saves, tokenises, learns "
    "pieces, clusters, distils or exports: at a moment of the clock, or between two things that it does to files; up "
    "to four times in a row. The same command again, or `--resume`, must end with the same bits as undisturbed; a "
    "model that is there must answer at any moment.",
    "files": "Models of every kind, checkpoints, `place.json`, `metrics.jsonl`, tokenizers, caches of ids, clusters "
    "and labels, teachers, settings: flipped bits, cut, grown, blanked, swapped, deleted, folders and links to "
    "elsewhere in their place, other values in JSON, other shapes, offsets and types in the headers of safetensors. "
    "Then `evaluate`, `score`, `sample`, `inspect`, `decode`, `fill`, `export`, `distill`, `train`, `train --resume`.",
    "settings": "One to four bad settings of all there are, on the command line or in YAML files, of which some are "
    "none.",
    "corpora": "Texts of random bytes, without lines, with endless ones, in other encodings, with marks of byte "
    "order, NULs and broken UTF-8; JSON lines, gzip and NumPy files that are none; pipes, folders, links, devices.",
    "models": "Every question of every kind of model from Python, with hostile ids, lengths, gaps, states and numbers.",
    "kernels": "Every operation with a native kernel at every processor level: arguments that models give, with "
    "hostile shapes, types, indices and numbers in their place.",
    "disks": "A disk that is full at some byte of what a command of the first kind writes, or a limit on the size of "
    "files; with room again, the same command must end with the same bits.",
    "together": "Two processes at once in one folder: the same command twice, or one that reads what the other writes.",
    "workers": "Processes of `torchrun` killed, one or two of a run; it must end as one that lost none, to the bit.",
    "machines": "The same on two machines, of network namespaces: a worker is killed, or all of a machine, which comes "
    "back or does not; then the run may stop.",
}
HOW = """\
A fault is drawn from a seed and its number, made in a folder of its own, and judged by what the commands then say and
leave behind. It counts as *refused* if a command ended with exit code 2 and one sentence, and as *unharmed* if the
result is the one that it would have been. Everything else is bad:"""
SERVER = """\
Commands run in children forked from a process that has imported PyTorch once, with limits on memory and time; one fault
in fifty uses fresh processes. `python -m torture --seed SEED --only PART:NUMBER` repeats a fault (of a batch of calls,
`PART:NUMBER:CALL` a call), and what came out badly is kept in the folder `torture-kept` with its commands."""
ELASTIC = """\
Runs of `torchrun --max-restarts` that lost one or two of their workers at a random moment, or one of two machines, and
nothing else: *unharmed* are those that ended with the bits of an undisturbed run, *refused* those that stopped in time
because a machine never came back."""
FUZZ = """\
Atheris (`pip install atheris`) draws inputs by the branches that they reach (`python -m torture.fuzz`).
Anything but an answer or one sentence is a finding. The tests run the same targets with inputs of hypothesis."""
SANITIZED = """\
The calls of models and kernels once more, with native code built for AddressSanitizer and UndefinedBehaviorSanitizer
(`make sanitize`), which end the process at the first byte read or written outside of a tensor."""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bad(counts: dict[str, Any]) -> str:
    found = [f"{counts[kind]:,} {kind}" for kind in BAD if counts.get(kind)]
    return ", ".join(found) or "0"


def counts(parts: dict[str, Any]) -> str:
    """The table of a run's parts, and their sum."""
    rows = [
        [name, f"{one['tried']:,}", f"{one['refused']:,}", f"{one['unharmed']:,}", _bad(one)]
        for name, one in parts.items()
    ]
    whole = {kind: sum(one.get(kind, 0) for one in parts.values()) for kind in ("tried", "refused", "unharmed", *BAD)}
    rows.append(["all", f"{whole['tried']:,}", f"{whole['refused']:,}", f"{whole['unharmed']:,}", _bad(whole)])
    return _table(["part", "tried", "refused", "unharmed", "bad"], rows)


def _provenance(results: Results) -> str:
    where = results["machine"]
    changes = " with uncommitted changes" if where["uncommitted_changes"] else ""
    return (
        f"Last run: `{results['command']}`, {results['date']}, {results['seconds'] / 60:.0f} minutes, seed "
        f"{results['seed']}, commit `{(where['commit'] or 'none')[:10]}`{changes}, {where['cpu']}, {where['cores']} "
        f"cores, {where['system']}, Python {where['python']}, PyTorch {where['versions'].get('torch')}."
    )


def _found(parts: dict[str, Any]) -> list[str]:
    """What came out badly, a line each."""
    worst = [one for part in parts.values() for one in part["worst"]]
    lines = [f"- `--only {one['fault']}`, {one['kind']}: {_plain(one['what'])}" for one in worst]
    return ["What came out badly:", "\n".join(lines)] if lines else []


def _plain(text: str) -> str:
    return "`" + text.replace("`", "'").replace("\n", " ")[:160] + "`"


def page(results: Results) -> str:
    """docs/reliability.md."""
    meanings = "\n".join(f"- *{kind}*: {meaning}" for kind, meaning in BAD.items())
    tried = "\n".join(f"- **{name}**: {TRIED[name]}" for name in results["parts"])
    parts = [
        "# Reliability",
        "Written by `python -m torture` (`make torture`), which see in `torture/`; edits here are lost.",
        f"{HOW}\n\n{meanings}",
        SERVER,
        _provenance(results),
        counts(results["parts"]),
        *_found(results["parts"]),
        "## What is tried",
        tried,
    ]
    if results.get("elastic"):
        parts += ["## Lost workers", ELASTIC, _provenance(results["elastic"]), counts(results["elastic"]["parts"])]
    if results.get("fuzz"):
        parts += ["## Fuzzing", FUZZ, _fuzz(results["fuzz"])]
    if results.get("sanitized"):
        parts += ["## Under sanitizers", SANITIZED, counts(results["sanitized"])]
    return "\n\n".join(parts) + "\n"


def _fuzz(found: dict[str, Any]) -> str:
    rows = [
        [name, f"{one['executions']:,}", f"{one['seconds']:,.0f}", f"{one['coverage']:,}", f"{one['findings']:,}"]
        for name, one in found.items()
    ]
    return _table(["target", "executions", "seconds", "branches reached", "findings"], rows)


def write(results: Results, to: Path, pages: Path) -> None:
    """The JSON file and the page."""
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(to, text + "\n")
    write_atomically(pages, page(results))
