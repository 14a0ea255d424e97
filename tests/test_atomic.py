"""Files are written whole, and only where a plain file is or can be: never over a pipe, a device or a folder."""

import errno
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from profilers.errors import InvalidInputError
from profilers.files import file_to_write, replaced_file, write_text
from seqpoint.cli import cli


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInputError, match="pipe: is no regular file"):
        write_text(pipe, "x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == ["pipe"]


def test_a_link_stays_and_what_it_points_at_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert names(tmp_path / "far") == ["real.json"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "nothing", "itself"])
def test_a_link_to_anything_else_is_refused(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(link if kind == "itself" else tmp_path / kind)
    with pytest.raises(InvalidInputError, match="link: "):
        write_text(link, "x")
    assert link.is_symlink()
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("path", ["folder", "", ".", "missing/../x.json", "missing/x.json", "n\0ul", "n" * 300, "f/x"])
def test_what_cannot_be_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "f").write_text("")
    with pytest.raises(InvalidInputError, match=r"folder|cannot be written"):
        write_text(Path(path), "x")
    assert names(tmp_path) == ["f", "folder"]


def test_long_names_and_a_way_back_through_a_folder_are_fine(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("n" * 250, "there/../x.json"):
        write_text(tmp_path / name, name)
        assert (tmp_path / name).read_text() == name


def test_a_full_disk_is_an_error_that_names_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("old")
    with pytest.raises(InvalidInputError, match=r"x.json: cannot be written .*space"), replaced_file(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(FileNotFoundError), replaced_file(file):
        raise FileNotFoundError("another file, of whoever writes")
    assert file.read_text() == "old"
    assert names(tmp_path) == ["x.json"]


def test_a_target_is_checked_before_work_begins(tmp_path: Path) -> None:
    assert file_to_write(tmp_path / "new.json") == (tmp_path / "new.json").resolve()
    assert names(tmp_path) == []


@pytest.mark.parametrize("suite", ["kernels", "collectives", "training"])
def test_calibrate_refuses_before_it_reads(tmp_path: Path, suite: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = CliRunner().invoke(cli, ["calibrate", suite, str(tmp_path / "none.csv"), "-o", str(pipe)])
    assert "pipe: is no regular file" in str(found.exception)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
