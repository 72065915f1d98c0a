"""Where an edit's text stands in a package, and the package with another text in its place.

A text is compared word by word and sign by sign, so neither line breaks nor indentation count. It has to stand
exactly once: in all .py and .sql files, or in the function, class or SQL file that the edit names by its own name.
Such a name may say the class too (`Claims.release`). What is put there is indented as the place that was found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.broken.breaks import Break, BreakError, Edit

_PIECE = re.compile(r"\w+|[^\w\s]")
_BETWEEN = "\n"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text to find: its words and signs, joined as those of a file are, and how many they are."""

    joined: str
    count: int

    @classmethod
    def of(cls, text: str) -> Wanted:
        """Cut a text."""
        pieces = _PIECE.findall(text)
        return cls(_join(pieces), len(pieces))


@dataclass(frozen=True)
class Source:
    """One file of a package."""

    path: Path
    text: str

    @cached_property
    def pieces(self) -> Sequence[re.Match[str]]:
        """Its words and signs."""
        return list(_PIECE.finditer(self.text))

    @cached_property
    def joined(self) -> str:
        """Its words and signs, one per line, so that a search for some of them is a search for a text."""
        return _join(piece[0] for piece in self.pieces)

    @cached_property
    def names(self) -> Sequence[tuple[str, range]]:
        """Its functions and classes, with their lines."""
        return list(_names(ast.parse(self.text).body, "")) if self.path.suffix == ".py" else []

    def find(self, text: Wanted) -> Iterator[tuple[int, int]]:
        """Yield where a text begins and ends."""
        at = self.joined.find(text.joined)
        while at >= 0:
            first = self.joined.count(_BETWEEN, 0, at)
            yield self.pieces[first].start(), self.pieces[first + text.count - 1].end()
            at = self.joined.find(text.joined, at + 1)

    def holds(self, name: str, begin: int) -> bool:
        """Tell whether a place is in what has this name."""
        if self.path.suffix == ".sql":
            return self.path.name == name
        line = self.text.count("\n", 0, begin) + 1
        return any(f".{found}".endswith(f".{name}") and line in lines for found, lines in self.names)


@dataclass(frozen=True)
class Package:
    """The files of a package."""

    sources: Sequence[Source]

    @classmethod
    def read(cls, folder: Path) -> Package:
        """Read all .py and .sql files of a folder."""
        paths = sorted(path for path in folder.rglob("*") if path.suffix in {".py", ".sql"})
        return cls([Source(path.relative_to(folder), path.read_text(encoding="utf-8")) for path in paths])

    def broken(self, broken: Break) -> Mapping[Path, str]:
        """Return the texts of the files that a break changes.

        Raises:
            BreakError: If a text to find does not stand exactly once.
        """
        changes: dict[Path, list[tuple[int, int, str]]] = {}
        for edit in broken.edits:
            source, begin, end = self._place(edit)
            changes.setdefault(source.path, []).append(_change(source.text, begin, end, edit))
        texts = {source.path: source.text for source in self.sources}
        return {path: _apply(texts[path], found) for path, found in changes.items()}

    def _place(self, edit: Edit) -> tuple[Source, int, int]:
        wanted = Wanted.of(edit.find)
        places = [
            (source, begin, end)
            for source in self.sources
            for begin, end in source.find(wanted)
            if edit.within is None or source.holds(edit.within, begin)
        ]
        if len(places) != 1:
            where = "in the package" if edit.within is None else f"in {edit.within}"
            files = ", ".join(sorted({str(source.path) for source, _, _ in places}))
            message = f"its text stands {len(places)} times {where}, not once: {edit.find.strip()!r} {files}".rstrip()
            raise BreakError(message)
        return places[0]


def _join(pieces: Iterable[str]) -> str:
    return _BETWEEN + _BETWEEN.join(pieces) + _BETWEEN


def _names(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, range]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield prefix + node.name, range(first, (node.end_lineno or first) + 1)
            yield from _names(node.body, f"{prefix}{node.name}.")


def _change(text: str, begin: int, end: int, edit: Edit) -> tuple[int, int, str]:
    """Return what to put from where to where: whole lines if it is found as such, indented as there."""
    line = text.rfind("\n", 0, begin) + 1
    shift = _indentation(text[line:]) - _indentation(edit.find)
    put = "\n".join(" " * max(_indentation(each) + shift, 0) + each.lstrip() for each in edit.put.split("\n"))
    if text[line:begin].strip():
        return begin, end, put.lstrip()
    if not put.strip() and text[end : end + 1] == "\n":
        return line, end + 1, ""
    return line, end, put


def _indentation(text: str) -> int:
    line = text.partition("\n")[0]
    return len(line) - len(line.lstrip())


def _apply(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    last = len(text)
    for begin, end, put in sorted(changes, reverse=True):
        if end > last:
            message = "two of its edits change the same text"
            raise BreakError(message)
        text, last = text[:begin] + put + text[end:], begin
    return text
