"""Ways to damage files: bytes, JSON, YAML, headers of safetensors, whole files, links that lead elsewhere."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

PRECIOUS = "precious"  # a folder that nothing may touch, to which links lead
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, float("nan"), float("inf"), -0.0, 1.5,
    "", "x", "NaN", "\0", "\ud7ff", "../../etc/passwd", "a" * 5000, [], {}, [[]], [None], {"": {}}, [0] * 300,
)  # fmt: skip
DEEP = "@deep@"  # stands for lists within lists, deeper than any writer of JSON goes
Damage = Callable[[Path, Random], str]


def flip(path: Path, random: Random) -> str:
    """Some bits."""
    data = bytearray(path.read_bytes())
    places = [random.randrange(len(data) * 8) for _ in range(random.choice((1, 1, 1, 3, 20)))] if data else []
    for place in places:
        data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    return f"flipped {len(places)} bits of {path.name}"


def cut(path: Path, random: Random) -> str:
    """The end is gone."""
    data = path.read_bytes()
    kept = random.choice((0, 1, 7, 8, len(data) // 2, max(0, len(data) - 1), random.randrange(len(data) + 1)))
    path.write_bytes(data[:kept])
    return f"cut {path.name} to {min(kept, len(data))} of {len(data)} bytes"


def append(path: Path, random: Random) -> str:
    """Something stands behind the end."""
    junk = random.choice((b"\0", b"\n", b"{}", b"x", path.read_bytes(), random.randbytes(random.randrange(1, 5000))))
    path.write_bytes(path.read_bytes() + junk)
    return f"appended {len(junk)} bytes to {path.name}"


def blank(path: Path, random: Random) -> str:
    """A range of zeros, or of other bytes."""
    data = bytearray(path.read_bytes())
    start = random.randrange(len(data) + 1)
    end = min(len(data), start + random.choice((1, 4, 64, 512, 4096)))
    data[start:end] = random.choice((bytes(end - start), b"\xff" * (end - start), random.randbytes(end - start)))
    path.write_bytes(data)
    return f"overwrote bytes {start} to {end} of {path.name}"


def delete(path: Path, random: Random) -> str:
    """The file is gone."""
    path.unlink()
    return f"deleted {path.name}"


def empty_folder(path: Path, random: Random) -> str:
    """A folder stands in its place."""
    path.unlink()
    path.mkdir()
    return f"a folder in the place of {path.name}"


def swap(path: Path, random: Random) -> str:
    """Two files have changed places."""
    others = sorted(one for one in path.parent.rglob("*") if one.is_file() and not one.is_symlink() and one != path)
    if not others:
        return delete(path, random)
    other = random.choice(others)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"swapped {path.name} and {other.name}"


def edit_json(path: Path, random: Random) -> str:
    """One value of a JSON file, or of a line of one, is another; or a key is."""
    text = path.read_text("utf-8", "replace")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    number = random.randrange(len(lines)) if lines else 0
    try:
        value = json.loads(lines[number])
    except (ValueError, IndexError):
        return flip(path, random)
    said, value = _edited(value, random)
    depth = random.choice((50, 900, 100_000))
    lines[number] = json.dumps(value, ensure_ascii=random.random() < 0.5).replace(
        f'"{DEEP}"', "[" * depth + "]" * depth
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return f"{said} in {path.name}"


def _edited(value: Any, random: Random) -> tuple[str, Any]:
    """The value with one change somewhere within."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(sorted(value))
        if random.random() < 0.12:
            return f"left {name} out", {key: inner for key, inner in value.items() if key != name}
        if random.random() < 0.06:
            return f"renamed {name}", {(f"{key}x" if key == name else key): inner for key, inner in value.items()}
        said, inner = _edited(value[name], random)
        return f"{name}: {said}", {**value, name: inner}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        if random.random() < 0.2:
            return f"left item {place} out", value[:place] + value[place + 1 :]
        said, inner = _edited(value[place], random)
        return f"item {place}: {said}", [*value[:place], inner, *value[place + 1 :]]
    return _other(value, random)


def _other(value: Any, random: Random) -> tuple[str, Any]:
    if random.random() < 0.04:
        return "nested deep", DEEP
    if isinstance(value, int) and not isinstance(value, bool) and random.random() < 0.5:
        new: Any = value + random.choice((-1, 1, 2, 100))
    elif isinstance(value, float) and random.random() < 0.5:
        new = value * random.choice((-1.0, 0.5, 2.0))
    elif isinstance(value, str) and random.random() < 0.4:
        new = value + random.choice(("x", " ", "\0", "é"))
    else:
        new = random.choice(STRANGE)
    return f"{str(value)[:40]!r} became {str(new)[:40]!r}", new


def edit_header(path: Path, random: Random) -> str:
    """The header of a safetensors file says something else: a shape, offsets, a type, its own length."""
    data = path.read_bytes()
    try:
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
    except (ValueError, struct.error):
        return flip(path, random)
    if random.random() < 0.1:
        path.write_bytes(
            struct.pack("<Q", random.choice((0, 1, size - 1, size + 1, 2**40, 2**63, 2**64 - 1))) + data[8:]
        )
        return f"another length of the header of {path.name}"
    names = sorted(name for name in header if name != "__metadata__")
    if not names:
        return flip(path, random)
    said = _edit_entry(header, random.choice(names), random)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return f"{said} in the header of {path.name}"


def _edit_entry(header: dict[str, Any], name: str, random: Random) -> str:
    entry = header[name]
    field = random.choice(("shape", "data_offsets", "dtype", "name", "all"))
    if field == "shape":
        entry["shape"] = random.choice((
            [*entry["shape"], 1], entry["shape"][::-1], [0], [], [2**40, 2**40], [-1], [2**63], entry["shape"][:-1],
            [*entry["shape"][:-1], 1], [1.5], ["1"],
        ))  # fmt: skip
    elif field == "data_offsets":
        start, end = entry["data_offsets"]
        entry["data_offsets"] = random.choice(([end, start], [start, end + 4], [0, 2**60], [start], [-4, end], [0, 0]))
    elif field == "dtype":
        entry["dtype"] = random.choice(("F64", "F16", "BF16", "I32", "I64", "U8", "BOOL", "F8_E4M3", "none", None))
    elif field == "name":
        header[random.choice(("", "x", f"{name}.x", "__metadata__", "a" * 500))] = header.pop(name)
    else:
        said, header[name] = _edited(entry, random)
        return f"{name}: {said}"
    return f"{name}: another {field}"


def link_away(path: Path, random: Random) -> str:
    """A link to a precious place stands for the file, or for the folder that holds it."""
    top = path.parents[1] if len(path.parts) > 2 else path.parent
    target = next(parent for parent in path.parents if (parent / PRECIOUS).is_dir()) / PRECIOUS
    if random.random() < 0.5 and path.parent != target.parent and top != path.parent:
        folder = path.parent
        shutil.rmtree(folder)
        folder.symlink_to(target, target_is_directory=True)
        return f"a link to elsewhere in the place of the folder {folder.name}"
    path.unlink()
    path.symlink_to(random.choice((target / "kept.txt", target / "config.json", target, path, Path("/dev/zero"))))
    return f"a link to {path.readlink().name} in the place of {path.name}"


ANY: tuple[Damage, ...] = (flip, flip, cut, append, blank, delete, swap, empty_folder, link_away)


def damage(path: Path, random: Random) -> str:
    """Damage a file in one of the ways that suit its kind, and say how."""
    ways: tuple[Damage, ...] = ANY
    if path.suffix in (".json", ".jsonl"):
        ways = (*ANY, *[edit_json] * 8)
    elif path.suffix == ".safetensors":
        ways = (*ANY, *[edit_header] * 6)
    return random.choice(ways)(path, random)
