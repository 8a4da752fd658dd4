"""Damage upon damage: what was made a link to elsewhere is not damaged again, as that would change the other place."""

from torture.files import _files


def test_files_behind_a_link_are_left_alone(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "config.json").write_text("{}")
    (tmp_path / "run").symlink_to(tmp_path / "precious", target_is_directory=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    found = _files([tmp_path / "run", tmp_path / "run" / "config.json", tmp_path / "model"])
    assert found == [tmp_path / "model" / "config.json"]
