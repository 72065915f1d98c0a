"""The check of the archives finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.package.archives import complaints

CHECKOUT = {"asyncpg_lease/__init__.py", "asyncpg_lease/py.typed", "asyncpg_lease/sql/claim.sql"}
WHEEL = CHECKOUT | {"asyncpg_lease-1.dist-info/METADATA"}
SDIST = CHECKOUT | {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "docs/index.md",
    "sql/claim.sql",
    "tests/conftest.py",
}


def test_archives_complete_ones_give_no_complaint() -> None:
    """A wheel with the package and an sdist with everything are right."""
    assert complaints(WHEEL, SDIST, CHECKOUT) == []


@pytest.mark.parametrize(
    ("wheel", "sdist", "complaint"),
    [
        (WHEEL - {"asyncpg_lease/sql/claim.sql"}, SDIST, "the wheel's SQL differs"),
        (WHEEL, SDIST | {"asyncpg_lease/sql/old.sql"}, "the sdist's SQL differs"),
        (WHEEL - {"asyncpg_lease/py.typed"}, SDIST, "the wheel lacks asyncpg_lease/py.typed"),
        (WHEEL | {"tests/conftest.py"}, SDIST, "the wheel has more than the package"),
        (WHEEL, SDIST - {"sql/claim.sql"}, "the SQL at the sdist's top differs"),
        (WHEEL, SDIST - {"tests/conftest.py"}, "the sdist lacks tests/conftest.py"),
    ],
)
def test_archives_fault_is_a_complaint(wheel: set[str], sdist: set[str], complaint: str) -> None:
    """What is missing, too much or different is named."""
    assert any(found.startswith(complaint) for found in complaints(wheel, sdist, CHECKOUT))
