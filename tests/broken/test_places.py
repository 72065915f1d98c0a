"""Where an edit's text is found, and what then stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broken.breaks import Break, BreakError, Edit
from tests.broken.places import Package, Source

MODULE = """import asyncio


class Toy:
    def double(self, number: int) -> int:
        if number:
            return number * 2
        return 0

    def triple(self, number: int) -> int:
        return (
            number * 3
        )


def double(number: int) -> int:
    return 0
"""
STATEMENT = """UPDATE toy SET
    number = $1
WHERE key = $2
    AND number > 0
"""
PACKAGE = Package([Source(Path("toy/_toy.py"), MODULE), Source(Path("toy/sql/update.sql"), STATEMENT)])


def change(find: str, put: str, within: str | None = None) -> str:
    """Apply one edit and return what was changed."""
    broken = Break("forged", "rule", "why", ("test",), None, (Edit(within, find, put),))
    (text,) = PACKAGE.broken(broken).values()
    return text


@pytest.mark.parametrize(
    ("find", "put", "within", "before", "after"),
    [
        ("return number * 2", "return 7", None, "            return number * 2\n", "            return 7\n"),
        ("number*2", "number", None, "return number * 2", "return number"),
        ("return 0", "return 1", "Toy.double", "        return 0\n", "        return 1\n"),
        (
            "return (number * 3)",
            "a = 1\nreturn a",
            None,
            "return (\n            number * 3\n        )",
            "a = 1\n        return a",
        ),
        ("if number:", "if number:\n    print()", None, "if number:\n", "if number:\n            print()\n"),
        (
            "if number:\n    return number * 2\nreturn 0",
            "return 0",
            None,
            "        if number:\n            return number * 2\n        return 0",
            "        return 0",
        ),
        ("AND number > 0", "", None, "    AND number > 0\n", ""),
        ("key = $2", "$2 > 0", "update.sql", "key = $2", "$2 > 0"),
    ],
    ids=["a line", "a part of a line", "by name", "over lines", "indented", "three lines", "a line taken away", "sql"],
)
def test_edit_changes_the_place_that_it_finds(find: str, put: str, within: str | None, before: str, after: str) -> None:
    """Line breaks and indentation do not count, and what is put there is indented as the place was."""
    original = STATEMENT if before in STATEMENT else MODULE
    assert original.count(before) == 1
    assert change(find, put, within) == original.replace(before, after)


@pytest.mark.parametrize(
    ("find", "within", "times"),
    [
        ("return 0", None, 2),
        ("return 0", "double", 2),
        ("return 0", "triple", 0),
        ("number * 2", "update.sql", 0),
        ("umber * 2", None, 0),
        ("number = $1", "Toy", 0),
    ],
)
def test_text_that_does_not_stand_once_is_an_error(find: str, within: str | None, times: int) -> None:
    """A text that is found several times, or not at all, is named with the number; words are found whole."""
    with pytest.raises(BreakError, match=f"stands {times} times"):
        change(find, "x", within)


def test_edits_of_one_break_are_made_together() -> None:
    """Each edit finds its place in the original package."""
    edits = (Edit(None, "number * 2", "number * 3"), Edit("triple", "number * 3", "number * 2"))
    (text,) = PACKAGE.broken(Break("forged", "rule", "why", ("test",), None, edits)).values()
    assert text == MODULE.replace("* 3", "* 4").replace("* 2", "* 3").replace("* 4", "* 2")


def test_edits_of_one_text_are_an_error() -> None:
    """Two edits whose places overlap are refused."""
    edits = (Edit(None, "number * 2", "1"), Edit(None, "return number * 2", "2"))
    with pytest.raises(BreakError, match="change the same text"):
        PACKAGE.broken(Break("forged", "rule", "why", ("test",), None, edits))


HEADER = "# rule: one\n# why: It is so.\n# test: tests/test_it.py::test_it\n"


def test_break_is_read_with_all_its_parts(tmp_path: Path) -> None:
    """A file has a header and edits, and each text of an edit has a margin."""
    path = tmp_path / "forged.break"
    path.write_text(
        HEADER + "# test: tests/test_it.py::test_more\n# hangs: it waits\n\n"
        "find in update.sql\n    a\n\n        b\nput\n\nfind\n    c\nput\n    d\n"
    )
    tests = ("tests/test_it.py::test_it", "tests/test_it.py::test_more")
    edits = (Edit("update.sql", "a\n\n    b", ""), Edit(None, "c", "d"))
    assert Break.read(path) == Break("forged", "one", "It is so.", tests, "it waits", edits)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("find\n    a\nput\n    b\n", "the header needs"),
        (HEADER + HEADER + "find\n    a\nput\n    b\n", "the header needs"),
        (HEADER + "# tets: x\nfind\n    a\nput\n", "not a line of the header"),
        (HEADER, "it has no edit"),
        (HEADER + "find\n    a\n", "an edit is"),
        (HEADER + "find\nput\n    a\n", "an edit is"),
        (HEADER + "find\n    a\nput\n  b\n", "neither 'find', 'put' nor"),
    ],
)
def test_file_that_is_no_break_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    """A file that is not written as a break says which line or which part is wrong."""
    path = tmp_path / "forged.break"
    path.write_text(text)
    with pytest.raises(BreakError, match=complaint):
        Break.read(path)
