"""The suite tests what users install."""

from __future__ import annotations

import os
import sysconfig
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

import pytest

import asyncpg_lease


@pytest.mark.skipif("ASYNCPG_LEASE_TEST_INSTALLED" not in os.environ, reason="a checkout is tested, by choice")
def test_package_under_test_is_the_installed_one() -> None:
    """The package is imported from the environment and not from a checkout that happens to be near."""
    assert Path(asyncpg_lease.__file__).is_relative_to(sysconfig.get_path("purelib"))


def test_package_has_type_marker_and_sql() -> None:
    """The package brings its type marker and its statements with it."""
    assert files(asyncpg_lease).joinpath("py.typed").is_file()
    assert files(asyncpg_lease).joinpath("sql", "claim.sql").is_file()


def test_package_needs_asyncpg_and_anyio_alone() -> None:
    """Nothing is required at run time beyond the two; everything else is an extra."""
    requirements = distribution("asyncpg-lease").requires or []
    plain = {requirement.split(">")[0] for requirement in requirements if "extra ==" not in requirement}
    assert plain == {"anyio", "asyncpg"}
