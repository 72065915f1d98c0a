"""What a run of the suite ran on; `summary` prints it."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.loops import kind_of


@dataclass(slots=True)
class Notes:
    """The servers, the poolers and the kinds of event loop that tests have met."""

    servers: set[str] = field(default_factory=set)
    poolers: set[str] = field(default_factory=set)
    loops: set[str] = field(default_factory=set)

    def note_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the kind of an event loop."""
        self.loops.add(kind_of(loop))

    def lines(self) -> Iterator[str]:
        """Yield one line for each combination."""
        python = ".".join(platform.python_version_tuple()[:2])
        for server in sorted(self.servers) or ["none"]:
            for loop in sorted(self.loops) or ["none"]:
                for pooler in sorted(self.poolers) or ["none"]:
                    what = f"loop {loop}, server {server}, pooler {pooler}, packages {packages()}"
                    yield f"ran: Python {python}, {what}"


def versions() -> dict[str, str]:
    """Return the installed version of each package that the library needs at run time."""
    return {name: version(name) for name in sorted(lower_bounds(requires("asyncpg-lease") or ()))}


def packages() -> str:
    """Say whether those are the `lowest` that the installed library declares, or `current` ones."""
    return age_of(versions(), lower_bounds(requires("asyncpg-lease") or ()))


def lower_bounds(requirements: Iterable[str]) -> dict[str, str]:
    """Read the lower bound of each requirement that no extra and no platform makes a condition of."""
    always = [each for each in map(Requirement, requirements) if each.marker is None]
    return {each.name: bound.version for each in always for bound in each.specifier if bound.operator == ">="}


def age_of(installed: Mapping[str, str], bounds: Mapping[str, str]) -> str:
    """Return `lowest` where every package is at its lower bound exactly, else `current`."""
    # As versions, not as text: 4.4 is 4.4.0.
    lowest = all(Version(installed[name]) == Version(bound) for name, bound in bounds.items())
    return "lowest" if lowest else "current"


NOTES = pytest.StashKey[Notes]()
