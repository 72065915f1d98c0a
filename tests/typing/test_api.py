"""The files that type checkers check leave nothing out that is public."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules

import asyncpg_lease
from asyncpg_lease import Event, Lease, LeaseError, LeaseInfo, LeaseTable

API = Path(__file__).with_name("api.py")
PROJECT = API.parents[2] / "pyproject.toml"
# Edges have tools of their own. The other names are those that the core's own modules share.
EDGES = {"cli", "contrib"}
SHARED = {"Notifier", "fold_observers", "store_of", "create", "explain", "find", "settle", "verify"}


def public() -> dict[str, object]:
    """Return what the package and its public modules offer, by name."""
    names = {module.name for module in iter_modules(asyncpg_lease.__path__) if not module.name.startswith("_")}
    modules = [asyncpg_lease, *(import_module(f"asyncpg_lease.{name}") for name in sorted(names - EDGES))]
    return {name: getattr(module, name) for module in modules for name in module.__all__ if name not in SHARED}


def used() -> set[str]:
    """Return the names and attributes that api.py uses, beyond importing them."""
    nodes = list(ast.walk(ast.parse(API.read_text(encoding="utf-8"))))
    matched = {name for node in nodes if isinstance(node, ast.MatchClass) for name in node.kwd_attrs}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return matched | attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_api_file_uses_every_public_name() -> None:
    """What can be imported is in api.py, where three type checkers look at it."""
    assert len(public()) > 20
    assert set(public()) - used() == set()


def test_api_file_uses_every_public_attribute() -> None:
    """So is what a handle, a table, a row that was read, an error and an event offer."""
    offered = {name for kind in (Lease, LeaseTable, LeaseInfo) for name in dir(kind) if not name.startswith("_")}
    kinds = [value for value in public().values() if isinstance(value, type)]
    offered |= {field.name for kind in kinds if issubclass(kind, Event) for field in fields(kind)}
    offered |= {name for kind in kinds if issubclass(kind, LeaseError) for name in signature(kind.__init__).parameters}
    assert {"is_held", "leases", "expires_in", "taken_by", "held_for"} <= offered
    assert offered - used() == {"self", "args", "kwargs"}


def test_mypy_refuses_any_wherever_public_names_come_from() -> None:
    """Each module that a public name comes from is among those in which no annotation may say Any."""
    overrides = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["mypy"]["overrides"]
    refusing = {name for override in overrides if override.get("disallow_any_explicit") for name in override["module"]}
    origins = {getattr(value, "__module__", "") for value in public().values()}
    assert {"asyncpg_lease._acquire", "asyncpg_lease.events"} <= origins
    assert {origin for origin in origins if origin.startswith("asyncpg_lease")} - refusing == set()
