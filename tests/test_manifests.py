"""What is not as it was written is found, and named, before it is read."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST, check_listed, checksum, read_manifest, write_manifest

CONTENTS = {"a.txt": b"first", "b.bin": bytes(range(256)), "empty": b""}


@pytest.fixture
def folder(tmp_path):
    return filled(tmp_path)


def filled(folder):
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    (folder / "README.md").write_text("for people")
    (folder / "within").mkdir(exist_ok=True)
    write_manifest(folder)
    return folder


def tell(folder, **changes):
    """Another manifest, which itself is whole."""
    about = json.loads((folder / MANIFEST).read_text()) | changes
    about["files_sha256"] = hashlib.sha256(json.dumps(about["files"], sort_keys=True).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(about))


def test_every_file_that_is_read_is_listed_with_its_size_and_checksum(folder):
    entries = read_manifest(folder)
    assert list(entries) == sorted(CONTENTS)
    assert entries["a.txt"].bytes == 5
    # printf first | sha256sum
    assert entries["a.txt"].sha256 == "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e"
    assert checksum(folder / "a.txt") == entries["a.txt"].sha256
    for name in CONTENTS:
        check_listed(folder / name)


@given(st.sampled_from([name for name, content in CONTENTS.items() if content]), st.data())
def test_any_bit_that_changes_is_found(tmp_path_factory, name, data):
    folder = filled(tmp_path_factory.getbasetemp())
    content = bytearray(CONTENTS[name])
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / name).write_bytes(content)
    with pytest.raises(TrellisError) as refused:
        check_listed(folder / name)
    assert str(refused.value) == (
        f"{folder / name} has changed since it was written: restore it, or delete manifest.json beside it if you "
        "changed it on purpose."
    )
    for other in set(CONTENTS) - {name}:
        check_listed(folder / other)


@pytest.mark.parametrize("content", [b"", b"firs", b"first and more"])
def test_other_sizes_are_found(folder, content):
    (folder / "a.txt").write_bytes(content)
    with pytest.raises(TrellisError, match=r"a\.txt has changed since it was written"):
        check_listed(folder / "a.txt")


@pytest.mark.parametrize("asked", ["a.txt", "b.bin", "not listed"])
def test_a_file_that_is_missing_is_named_whichever_is_read(folder, asked):
    (folder / "b.bin").unlink()
    with pytest.raises(TrellisError, match=r"b\.bin is missing: restore it, or delete manifest\.json"):
        check_listed(folder / asked)


def test_files_for_people_and_files_that_are_not_listed_may_change(folder):
    (folder / "README.md").write_text("for other people")
    (folder / "notes.txt").write_text("mine")
    for name in ("README.md", "notes.txt", "a.txt"):
        check_listed(folder / name)


def test_without_a_manifest_or_with_that_of_another_program_nothing_is_refused(folder):
    (folder / "a.txt").write_text("other")
    for content in (None, '{"name": "an app", "files": {"a.txt": 3}}'):
        (folder / MANIFEST).unlink() if content is None else (folder / MANIFEST).write_text(content)
        check_listed(folder / "a.txt")


@pytest.mark.parametrize(
    "content",
    ["", "{", "{}", "[]", "3", "\xff", "[" * 10_000],
    ids=["empty", "cut", "nothing", "list", "number", "latin", "deep"],
)
def test_a_damaged_manifest_is_refused(folder, content):
    (folder / MANIFEST).write_bytes(content.encode("latin-1"))
    with pytest.raises(TrellisError, match=r"manifest\.json .*: restore it, or delete it"):
        check_listed(folder / "a.txt")


def test_a_folder_or_a_broken_link_is_no_manifest(folder):
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).mkdir()
    with pytest.raises(TrellisError, match=r"manifest\.json"):
        check_listed(folder / "a.txt")
    (folder / MANIFEST).rmdir()
    (folder / MANIFEST).symlink_to(folder / "gone")
    with pytest.raises(TrellisError, match=r"manifest\.json"):
        check_listed(folder / "a.txt")


SHA = "0" * 64
FILES = {
    "no table": [],
    "no entry": {"a.txt": None},
    "a link upwards": {"../a.txt": {"bytes": 1, "sha256": SHA}},
    "the folder": {".": {"bytes": 1, "sha256": SHA}},
    "no name": {"": {"bytes": 1, "sha256": SHA}},
    "a long name": {"x" * 300: {"bytes": 1, "sha256": SHA}},
    "no text": {"\0": {"bytes": 1, "sha256": SHA}},
    "half a character": {"\ud800": {"bytes": 1, "sha256": SHA}},
    "no size": {"a.txt": {"sha256": SHA}},
    "a size that is none": {"a.txt": {"bytes": -1, "sha256": SHA}},
    "true for a size": {"a.txt": {"bytes": True, "sha256": SHA}},
    "a short checksum": {"a.txt": {"bytes": 5, "sha256": "abc"}},
    "more than that": {"a.txt": {"bytes": 5, "sha256": SHA, "more": 1}},
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_entries_that_cannot_be_are_refused(folder, files):
    tell(folder, files=files)
    with pytest.raises(TrellisError, match=r"manifest\.json is damaged: restore it, or delete it"):
        read_manifest(folder)


CHANGES = {
    "an entry left out": lambda about: about["files"].pop("a.txt"),
    "another entry": lambda about: about["files"].update(x=about["files"]["a.txt"]),
    "another size": lambda about: about["files"]["a.txt"].update(bytes=6),
    "no sum": lambda about: about.pop("files_sha256"),
    "another sum": lambda about: about.update(files_sha256="0" * 64),
    "no format": lambda about: about.pop("trellis_manifest"),
    "the first format": lambda about: (about.update(trellis_manifest=1), about["files"].pop("a.txt")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_manifest_that_was_changed_itself_is_refused(folder, change):
    about = json.loads((folder / MANIFEST).read_text())
    change(about)
    (folder / MANIFEST).write_text(json.dumps(about))
    (folder / "a.txt").write_text("other")
    with pytest.raises(TrellisError, match=r"manifest\.json is damaged: restore it, or delete it"):
        check_listed(folder / "a.txt")


def test_manifests_of_the_first_format_have_no_sum_and_are_read(folder):
    about = json.loads((folder / MANIFEST).read_text())
    del about["files_sha256"]
    (folder / MANIFEST).write_text(json.dumps(about | {"trellis_manifest": 1}))
    check_listed(folder / "a.txt")
    (folder / "a.txt").write_text("other")
    with pytest.raises(TrellisError, match=r"a\.txt has changed"):
        check_listed(folder / "a.txt")


@pytest.mark.parametrize("version", [3, "2", None, 1.5])
def test_another_version_is_refused(folder, version):
    tell(folder, trellis_manifest=version)
    with pytest.raises(TrellisError, match="another version of Trellis"):
        read_manifest(folder)
