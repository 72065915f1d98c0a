"""What people do to their pools, as the options of asyncpg.create_pool."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias

import asyncpg

from tests.support.typing import Connection

Hook: TypeAlias = Callable[[Connection], Awaitable[None]]
Options: TypeAlias = dict[str, Any]


class Text(str):
    """A string of the application's own."""

    __slots__ = ()


class AttributeRecord(asyncpg.Record):
    """A record with its columns as attributes."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class MappingRecord(asyncpg.Record):
    """A record that goes by names alone, as a dict does: it iterates over its keys."""

    def __getitem__(self, name: Any) -> Any:  # noqa: ANN401
        if not isinstance(name, str):
            raise KeyError(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())


class RefusingRecord(asyncpg.Record):
    """A record that nobody may read but by attributes which it does not have."""

    def __getitem__(self, name: Any) -> NoReturn:  # noqa: ANN401
        raise LookupError(name)

    def __iter__(self) -> NoReturn:
        raise TypeError

    def __len__(self) -> int:
        return 0


class Connected(asyncpg.Connection):
    """A connection that the application has made its own."""


async def connect(*args: Any, **options: Any) -> Connection:  # noqa: ANN401
    """Connect as a pool does by itself, with something of the application's own before it."""
    await asyncio.sleep(0)
    return await asyncpg.connect(*args, **options)


async def greet(connection: Connection) -> None:
    """Run a statement that leaves nothing in the session."""
    await connection.execute("SELECT 'hello'")


def refuse(value: object) -> NoReturn:
    """Encode and decode nothing."""
    msg = f"{value!r} is no business of this application"
    raise ValueError(msg)


def codec(*names: str, **options: Any) -> Hook:  # noqa: ANN401
    """Return a hook that sets a codec for each of these types of pg_catalog."""

    async def set_codecs(connection: Connection) -> None:
        for name in names:
            await connection.set_type_codec(name, schema="pg_catalog", **options)

    return set_codecs


def settings(**settings: str) -> Options:
    """Return the options of a pool with these server settings."""
    return {"server_settings": settings}


IN_TEXT = {"encoder": str, "decoder": lambda text: f"<{text}>"}
IN_BINARY = {"encoder": bytes, "decoder": bytes.hex, "format": "binary"}
REFUSED = {"encoder": refuse, "decoder": refuse}

CODECS: dict[str, Options] = {
    "timestamptz in text": {"init": codec("timestamptz", "timestamp", "date", **IN_TEXT)},
    "timestamptz in binary": {"init": codec("timestamptz", "timestamp", "date", **IN_BINARY)},
    "timestamptz in tuples": {
        "init": codec("timestamptz", encoder=lambda moment: (moment,), decoder=str, format="tuple")
    },
    "timestamptz refused": {"init": codec("timestamptz", "interval", "numeric", "bool", "oid", **REFUSED)},
    "interval in seconds": {"init": codec("interval", encoder=timedelta.total_seconds, decoder=str)},
    "json by its library": {"setup": codec("json", "jsonb", encoder=json.dumps, decoder=json.loads)},
    "text of its own": {"init": codec("text", encoder=str, decoder=Text)},
    "text in binary": {"init": codec("text", encoder=str.encode, decoder=bytes.decode, format="binary")},
    "numbers as text": {"init": codec("int8", "float8", encoder=str, decoder=str)},
    "numbers as decimals": {"init": codec("int8", "float8", encoder=str, decoder=Decimal)},
}
RECORDS: dict[str, Options] = {
    "record with attributes": {"record_class": AttributeRecord},
    "record as a mapping": {"record_class": MappingRecord},
    "record that refuses": {"record_class": RefusingRecord},
}
SETTINGS: dict[str, Options] = {
    "time in Kathmandu": settings(TimeZone="Asia/Kathmandu", DateStyle="SQL, DMY", lc_messages="C", lc_numeric="C"),
    "time in St. John's": settings(
        TimeZone="America/St_Johns",
        DateStyle="German",
        IntervalStyle="sql_standard",
        extra_float_digits="-15",
        bytea_output="escape",
    ),
    "strings of old": settings(standard_conforming_strings="off", client_encoding="LATIN1"),
    "plans of its own": settings(plan_cache_mode="force_generic_plan", jit="on", enable_indexscan="off"),
    "repeatable read": settings(default_transaction_isolation="repeatable read"),
    "serializable": settings(default_transaction_isolation="serializable", default_transaction_deferrable="on"),
    "short leash": settings(
        statement_timeout="3s", lock_timeout="2s", idle_in_transaction_session_timeout="1s", synchronous_commit="off"
    ),
}
CONNECTIONS: dict[str, Options] = {
    "one connection": {"max_size": 1, "command_timeout": 5},
    "no connection at rest": {"min_size": 0, "max_inactive_connection_lifetime": 0.02},
    "each connection for one query": {"max_queries": 1},
    "no statement cache": {"statement_cache_size": 0},
    "little statement cache": {"max_cached_statement_lifetime": 1, "max_cacheable_statement_size": 500},
    "connection class of its own": {"connection_class": Connected, "init": greet, "setup": greet},
}
if "reset" in inspect.signature(asyncpg.create_pool).parameters:  # asyncpg 0.30
    CONNECTIONS["connected and reset by hand"] = {"connect": connect, "reset": greet}

KINDS: dict[str, Options] = {**CODECS, **RECORDS, **SETTINGS, **CONNECTIONS}
