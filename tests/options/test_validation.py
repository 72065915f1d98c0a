"""Bad arguments are refused by every way in, before any I/O."""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from asyncpg_lease import LeaseTable, acquire, lease, try_acquire
from tests.conftest import MakePool
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.typing import Pool

Way = Callable[..., object]

NOISE = "".join(random.Random(1).choices(string.ascii_letters, k=3000))  # noqa: S311 - incompressible text
WRONG_TEXTS = [
    "a\x00b",
    "\x00",
    "",
    "é" * 1000,
    "é" * 512 + "x",
    "\U0001f512" * 257,
    "x" * 1025,
    NOISE,
    "a" * 200_000,
    "\ud800",
    "ok\udfff",
    5,
    b"k",
    bytearray(b"k"),
    ["k"],
    1.5,
    True,
]
RIGHT_TEXTS = [NOISE[:1024], "é" * 512, "\U0001f512" * 256, " ", "\x01", "\uffff", "a\nb", "%_\\", "'; --"]
WRONG_TTLS = [
    0,
    -1,
    0.05,
    math.nan,
    math.inf,
    -math.inf,
    1e18,
    10**400,
    timedelta.max,
    timedelta(0),
    timedelta(days=3_285_000),
    timedelta(days=366),
    True,
    False,
    "5",
    None,
    b"5",
    1j,
    [1],
]
WRONG_OPTIONS: list[dict[str, object]] = [
    {"wait": -1},
    {"wait": "1"},
    {"wait": None},
    {"wait": math.nan},
    {"wait": True},
    {"min_hold": -1},
    {"min_hold": math.inf},
    {"min_hold": None},
    {"heartbeat": 0},
    {"heartbeat": 30},
    {"heartbeat": False},
    {"grace": -1},
    {"drain": 0},
    {"drain": True},
    {"drain": 31536001},
    {"grace": 21},
    {"grace": 20, "heartbeat": 20},
    {"on_lost": "ignore"},
    {"on_lost": None},
    {"on_lost": "CANCEL"},
    {"label": "a", "holder": "b"},
]


@pytest.fixture
async def quiet(
    table: LeaseTable,  # noqa: ARG001 - it is there
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
) -> AsyncIterator[Pool]:
    """A pool through which nothing may be sent, and a table in which nothing may be written."""
    pool = await make_pool(proxy.dsn)
    proxy.forget()
    yield pool
    assert proxy.statements == []
    assert proxy.round_trips == 0
    assert await observe.rows() == []


async def outcome(call: Callable[[], object]) -> str:
    """Return what a call is refused with, TypeError or ValueError, or what else came of it."""
    try:
        made = call()
        # lease() has checked everything before it is entered.
        if isinstance(made, Awaitable):
            await made
    except (TypeError, ValueError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - told with the others
        return f"not refused, but {error!r}"
    return "not refused"


async def not_refused(pool: Pool, key: Any, options: dict[str, Any], *, match: str) -> list[str]:  # noqa: ANN401
    """Return which ways to a lease do not refuse these arguments with an error that says this, and what they do."""
    ways: list[Way] = [lease, acquire, try_acquire]
    found = []
    for way in ways:
        if way is try_acquire and "wait" in options:
            continue
        for target in (pool, LeaseTable(pool)):
            came = await outcome(lambda way=way, target=target: way(target, key, **options))  # type: ignore[misc]
            if not re.search(match, came):
                found.append(f"{way.__name__}({key!r:.40}, {options!r:.80}): {came}")
    return found


async def test_key_that_cannot_be_one_is_refused_before_any_io(quiet: Pool) -> None:
    """NUL, nothing, too many bytes, a lone surrogate or no str: refused by all verbs, 0 statements."""
    wrong: list[str] = []
    for key in [*WRONG_TEXTS, None]:
        wrong += await not_refused(quiet, key, {}, match="^key must")
        came = await outcome(lambda key=key: LeaseTable(quiet).get(key))  # type: ignore[misc]
        if not came.startswith("key must"):
            wrong.append(f"get({key!r:.40}): {came}")
    assert wrong == []


async def test_prefix_that_cannot_be_one_is_refused_before_any_io(quiet: Pool) -> None:
    """A prefix may be empty; for the rest it is as a key."""
    prefixes = [prefix for prefix in WRONG_TEXTS if prefix != ""]
    came = [await outcome(lambda prefix=prefix: LeaseTable(quiet).leases(prefix)) for prefix in prefixes]  # type: ignore[misc]
    assert [text for text in came if not text.startswith("prefix must")] == []


async def test_holder_and_label_that_cannot_be_one_are_refused_before_any_io(quiet: Pool) -> None:
    """What people write into the row is checked as the key is."""
    wrong: list[str] = []
    for text in WRONG_TEXTS:
        for name in ("holder", "label"):
            wrong += await not_refused(quiet, "k", {name: text}, match=f"^{name} must")
    assert wrong == []


async def test_ttl_that_cannot_be_one_is_refused_before_any_io(quiet: Pool) -> None:
    """Nought, negative, not a number, endless, of many years, or no duration: 0 statements, 0 rows."""
    wrong: list[str] = []
    for ttl in WRONG_TTLS:
        wrong += await not_refused(quiet, "k", {"ttl": ttl}, match="^ttl must")
    assert wrong == []


async def test_observer_that_cannot_be_called_is_refused_before_any_io(quiet: Pool) -> None:
    """What is no function is told at the call, with its place, and not where the first event would have been."""
    cases: list[tuple[object, str]] = [
        (1, r"observer must be callable with an event \(or a list or tuple of such, or None\), not int"),
        ("log", "observer must be .*, not str"),
        ({print}, "observer must be .*, not set"),
        ([print, "log"], r"observer\[1\] must be callable with an event, not str"),
        ((None,), r"observer\[0\] must be callable with an event, not NoneType"),
        ([[print]], r"observer\[0\] must be .*, not list"),
    ]
    wrong: list[str] = []
    for observer, message in cases:
        wrong += await not_refused(quiet, "k", {"observer": observer}, match=f"^{message}$")
        came = await outcome(lambda observer=observer: LeaseTable(quiet, observer=observer))  # type: ignore[misc]
        if not re.search(f"^{message}$", came):
            wrong.append(f"LeaseTable({observer!r}): {came}")
    assert wrong == []


async def test_observer_that_cannot_be_told_in_a_thread_is_refused_before_any_io(quiet: Pool) -> None:
    """What would have to be awaited or made first is told at the call, with what to pass: nobody would notice later."""

    async def observe(event: object) -> None: ...

    async def yield_from(event: object) -> AsyncIterator[object]:
        yield event

    class Awaited:
        async def __call__(self, event: object) -> None: ...

        async def note(self, event: object) -> None: ...

    asynchronous = "in a thread, where nothing can be awaited: pass a function that is not async"
    cases: list[tuple[object, str]] = [
        *((each, asynchronous) for each in (observe, yield_from, Awaited(), Awaited().note)),
        *((partial(each, 1), asynchronous) for each in (observe, Awaited())),
        (Awaited, "and Awaited is a class: pass an instance of it"),
    ]
    wrong: list[str] = []
    for observer, message in cases:
        wrong += await not_refused(quiet, "k", {"observer": observer}, match=message)
        came = await outcome(lambda observer=observer: LeaseTable(quiet, observer=[print, observer]))  # type: ignore[misc]
        if message not in came:
            wrong.append(f"LeaseTable({observer!r}): {came}")
    assert wrong == []


async def test_option_that_cannot_be_one_is_refused_before_any_io(quiet: Pool) -> None:
    """Every option is checked, alone and with the others, and its name is in the message."""
    wrong: list[str] = []
    for options in WRONG_OPTIONS:
        wrong += await not_refused(quiet, "k", options, match=next(iter(options)))
    assert wrong == []


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"name": "n" * 64}, "name must be at most 63 UTF-8 bytes"),
        ({"name": "é" * 32}, "name must be at most 63 UTF-8 bytes"),
        ({"name": "a\x00"}, "name must not hold a NUL"),
        ({"name": None}, "name must be a str"),
        ({"schema": ""}, "schema must not be empty"),
        ({"schema": "s" * 64}, "schema must be at most 63"),
        ({"schema": 5}, "schema must be a str"),
        ({"poll": 0}, "poll must be between"),
        ({"poll": 3601}, "poll must be between"),
        ({"poll": None}, "poll must be seconds"),
        ({"poll": math.nan}, "poll must be between"),
    ],
)
async def test_table_s_setting_that_cannot_be_one_is_refused(pool: Pool, options: dict[str, Any], match: str) -> None:
    """A name that PostgreSQL would cut off, and a poll out of its range, are refused where they are given."""
    with pytest.raises((TypeError, ValueError), match=match):
        LeaseTable(pool, **options)


async def test_text_of_exactly_the_limit_works(table: LeaseTable, observe: Observer) -> None:
    """1,024 bytes of whatever text fit as key and as holder, and come back as they went."""
    for text in RIGHT_TEXTS:
        held = await acquire(table, text, holder=text)
        info = await table.get(text)
        assert info is not None
        assert (info.key, info.holder, info.fence) == (text, text, 1)
        async with held:
            await held.renew()
    assert {row["key"] for row in await observe.rows()} == set(RIGHT_TEXTS)
    labelled = await acquire(table, "k", label="x" * 1024)
    assert labelled.holder.startswith("x" * 1024 + "/")
    await labelled.release()


@pytest.mark.parametrize("ttl", [0.1, 365 * 86400, timedelta(days=365)])
async def test_ttl_at_the_end_of_its_range_works(table: LeaseTable, ttl: float | timedelta) -> None:
    """A tenth of a second and a year are leases whose expiry can be read back."""
    # A busy machine may be too late for a tenth of a second: then it is tried again.
    held = await acquire(table, "k", ttl=ttl, wait=20)
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else float(ttl)
    assert (held.expires_at - held.acquired_at).total_seconds() == pytest.approx(seconds, abs=0.01)
    await held.release()
