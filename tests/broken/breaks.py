"""What a break is: a file that says which rule it breaks, which tests must fail then, and what to change.

    # rule: G4-renew
    # why: A renewal that ignores the fence extends a later tenure of the same holder.
    # test: tests/sql/test_renew.py::test_renew_with_another_fence_is_lost

    find in renew.sql
        WHERE target.holder = asked.holder AND target.fence = asked.fence
    put
        WHERE target.holder = asked.holder

There is at least one test, and at least one edit. `# hangs:` says why a test runs into its time limit. Nothing after
`put` takes the text away. `tests.broken.places` tells how the text is found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "breaks"
SUFFIX = ".break"
MARGIN = "    "
"""What stands before each line of an edit's text."""

_FIELD = re.compile(r"# (rule|why|test|hangs): +(\S.*)")
_FIND = re.compile(r"find(?: in ([\w.]+))?")
_ONCE = ("rule", "why")


class BreakError(Exception):
    """A break proves nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A text to find, what to put there, and the name of the function or SQL file around it (None: anywhere)."""

    within: str | None
    find: str
    put: str


@dataclass(frozen=True, slots=True)
class Break:
    """A break that was read: its name is its file's."""

    name: str
    rule: str
    why: str
    tests: tuple[str, ...]
    hangs: str | None
    edits: tuple[Edit, ...]

    @classmethod
    def read(cls, path: Path) -> Break:
        """Read a file.

        Raises:
            BreakError: If it is not written as a break is.
        """
        lines = path.read_text(encoding="utf-8").splitlines()
        header = [line for line in lines if line.startswith("#")]
        fields = [_FIELD.fullmatch(line.rstrip()) for line in header]
        if None in fields:
            message = f"not a line of the header: {header[fields.index(None)]!r}"
            raise BreakError(message)
        values: dict[str, list[str]] = {name: [] for name in ("rule", "why", "test", "hangs")}
        for field in fields:
            assert field is not None
            values[field[1]].append(field[2])
        if any(len(values[name]) != 1 for name in _ONCE) or not values["test"] or len(values["hangs"]) > 1:
            message = "the header needs one '# rule:', one '# why:', one '# test:' or more, and at most one '# hangs:'"
            raise BreakError(message)
        return cls(
            path.name.removesuffix(SUFFIX),
            values["rule"][0],
            values["why"][0],
            tuple(values["test"]),
            values["hangs"][0] if values["hangs"] else None,
            _edits([line.rstrip() for line in lines if not line.startswith("#")]),
        )


def read_all(folder: Path = FOLDER) -> list[Break]:
    """Read all breaks of a folder, in the order of their names.

    Raises:
        BreakError: If one of them is not written as a break is.
    """
    breaks = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            breaks.append(Break.read(path))
        except BreakError as error:
            message = f"{path.name}: {error}"
            raise BreakError(message) from None
    return breaks


def _edits(lines: list[str]) -> tuple[Edit, ...]:
    """Read what comes after the header."""
    edits: list[Edit] = []
    within: str | None = None
    texts: list[list[str]] = []
    for line in [*lines, "find"]:
        if begin := _FIND.fullmatch(line):
            if texts:
                edits.append(_edit(within, texts))
            within, texts = begin[1], [[]]
        elif line == "put" and len(texts) == 1:
            texts.append([])
        elif texts and (line.startswith(MARGIN) or not line):
            texts[-1].append(line.removeprefix(MARGIN))
        elif line:
            message = f"neither 'find', 'put' nor a text with a margin of {len(MARGIN)} spaces: {line!r}"
            raise BreakError(message)
    if not edits:
        message = "it has no edit"
        raise BreakError(message)
    return tuple(edits)


def _edit(within: str | None, texts: list[list[str]]) -> Edit:
    if len(texts) != 2 or not any(texts[0]):
        message = "an edit is 'find', a text, and 'put'"
        raise BreakError(message)
    find, put = ("\n".join(text).strip("\n") for text in texts)
    return Edit(within, find, put)
