"""A figure names the processor that it was taken on."""

from bench.machine import cpu_name


def test_processors_of_one_name_are_told_apart(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: Some CPU\n\nprocessor\t: 1\n")
    assert cpu_name(info) == "Some CPU, family 26, model 2"


def test_a_system_without_that_file_has_a_name_too(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.processor", lambda: "arm")
    assert cpu_name(tmp_path / "none") == "arm"
