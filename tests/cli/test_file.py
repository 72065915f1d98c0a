"""A picture's file: written whole or not at all, and refused before the demo runs where it cannot be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Program, Scratch
from tests.support.inside import check_writable, write_whole


def test_file_that_is_there_is_replaced_whole(tmp_path: Path) -> None:
    """Whoever has the old file open keeps it, its rights stay, and nothing is left beside the new one."""
    path = tmp_path / "demo.svg"
    path.write_text("old")
    path.chmod(0o640)
    with path.open() as old:
        check_writable(path)
        write_whole(path, "new")
        assert (old.read(), path.read_text()) == ("old", "new")
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_file_that_cannot_be_written_to_its_end_leaves_the_old_one(tmp_path: Path) -> None:
    """An error in the middle of writing costs nothing but the new file."""
    path = tmp_path / "demo.svg"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new\udc80")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_behind_a_link_is_replaced_where_it_is(tmp_path: Path) -> None:
    """A link stays a link."""
    target, link = tmp_path / "target.svg", tmp_path / "link.svg"
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("name", ["", "missing/demo.svg", "file/demo.svg"])
def test_file_in_a_wrong_place_is_refused_and_left(name: str, tmp_path: Path) -> None:
    """A folder, and a file in one that is not there, cannot be written; trying leaves nothing."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"regular file|No such file|Not a directory"):
        check_writable(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_file_that_is_a_device_is_refused() -> None:
    """Root may replace a device by a file, and never means to."""
    with pytest.raises(OSError, match="not a regular file"):
        check_writable(Path("/dev/null"))


def test_file_without_the_right_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was made read-only is not replaced, though its folder would allow it."""
    path = tmp_path / "demo.svg"
    path.touch(0o444)
    monkeypatch.setattr("os.access", lambda *_: False)  # Root has every right.
    with pytest.raises(PermissionError, match="Permission denied"):
        check_writable(path)


@pytest.mark.slow("starts the command")
def test_demo_with_a_picture_that_cannot_be_written_does_not_begin(
    scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """It says so before anything is started, and that is neither green nor red."""
    program = run_demo("--svg", "missing/demo.svg")
    assert program.finish() == 2
    assert "the picture cannot be written" in program.output
    assert "Three worker" not in program.output
    assert not scratch.leftovers()
