"""The characters that the demo draws with, for terminals that have Unicode and for those that do not."""

import locale
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One character for each thing that is drawn; `parts` fill a cell from a little to the whole."""

    parts: str
    track: str
    held: str
    forsaken: str
    paused: str
    away: str
    stale: str
    pointer: str
    axis: str
    tick: str
    holding: str
    idle: str
    stopped: str
    gone: str
    done: str
    next: str

    @property
    def is_ascii(self) -> bool:
        """Whether these are the ones that every terminal has."""
        return self.held.isascii()


UNICODE = Glyphs(
    parts="▏▎▍▌▋▊▉█",
    track="─",
    held="█",
    forsaken="▒",
    paused="┄",
    away="╱",  # noqa: RUF001 (it is drawn, not read)
    stale="✗",
    pointer="▼",
    axis="─",
    tick="┴",
    holding="●",
    idle="○",
    stopped="■",
    gone="✗",
    done="✓",
    next="▶",
)
ASCII = Glyphs(
    parts="#",
    track="-",
    held="=",
    forsaken=":",
    paused=".",
    away="/",
    stale="x",
    pointer="v",
    axis="-",
    tick="+",
    holding="*",
    idle="-",
    stopped="!",
    gone="x",
    done="+",
    next=">",
)


def choose_glyphs(encoding: str) -> Glyphs:
    """Choose by the encoding of the output and that of the locale.

    Under LC_ALL=C Python writes UTF-8 all the same; only the locale says that the terminal cannot show it.
    """
    able = all(name.lower().replace("-", "") == "utf8" for name in (encoding, locale.getencoding()))
    return UNICODE if able else ASCII
