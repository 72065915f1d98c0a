"""LeaseTable.get() and leases(): what they say, in which order, of which keys."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from asyncpg_lease import LeaseInfo, LeaseState, LeaseTable, acquire
from tests.support.examples import example, given, settings
from tests.support.examples import strategies as st
from tests.support.inside import key_range
from tests.support.observe import Observer

LAST = chr(sys.maxunicode)
KEYS = [
    "a",
    "a/b",
    "a/c",
    "aa",
    "A",
    "B",
    "b",
    "Z",
    "%",
    "%%",
    "_",
    "a_b",
    "aXb",
    "\\",
    "é",
    "ê",
    "z",
    "\ud7ff",
    "\ud7ffx",
    "\ue000",
    "\uffff",
    "\U00010000",
    LAST,
    LAST * 2,
    f"x{LAST}",
    f"x{LAST}{LAST}y",
    "y",
    "\x01",
    " ",
    "\n",
]
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
near = st.text(
    st.sampled_from(["a", "b", "\x01", "\x7f", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", LAST]), max_size=5
)


@pytest.fixture
async def listed(table: LeaseTable, observe: Observer) -> LeaseTable:
    """A table with all the keys, and the reserved row."""
    await observe.connection.executemany(
        "INSERT INTO lease VALUES ($1, 'h', 1, clock_timestamp(), clock_timestamp() + interval '60 s')",
        [(key,) for key in ["", *KEYS]],
    )
    return table


@settings(max_examples=30)
@given(prefix=keys | near, key=keys | near, more=keys | near)
@example(prefix=LAST, key=LAST, more="")
@example(prefix=f"a{LAST}", key="b", more=LAST)
@example(prefix="\ud7ff", key="\ue000", more="x")
def test_key_range_of_a_prefix_holds_exactly_the_keys_that_begin_with_it(prefix: str, key: str, more: str) -> None:
    """In the order of the bytes a key is in the range if and only if it starts with the prefix."""
    least, end = key_range(prefix)
    for candidate in (key, prefix + more):
        inside = least.encode() <= candidate.encode() and (end is None or candidate.encode() < end.encode())
        assert inside == candidate.startswith(prefix)


async def test_leases_of_no_prefix_are_all_in_the_order_of_their_bytes(listed: LeaseTable) -> None:
    """Every key is listed once, as bytes order them, and the reserved row is not a key."""
    assert [info.key for info in await listed.leases()] == sorted(KEYS, key=str.encode)


@pytest.mark.parametrize("start", [*KEYS, "a/", "nothing begins so", f"x{LAST}"])
async def test_leases_of_a_prefix_are_those_that_begin_with_it(listed: LeaseTable, start: str) -> None:
    """Wildcards, the ends of Unicode and everything else in a prefix mean themselves."""
    found = [info.key for info in await listed.leases(start)]
    assert found == sorted((key for key in KEYS if key.startswith(start)), key=str.encode)


@pytest.mark.parametrize("limit", [1, 2, 7, len(KEYS), len(KEYS) + 5, 2**31 - 1])
async def test_leases_of_a_limit_are_the_first_so_many(listed: LeaseTable, limit: int) -> None:
    """A limit cuts the list off at its end, and the reserved row takes no place in it."""
    found = [info.key for info in await listed.leases(limit=limit)]
    assert found == sorted(KEYS, key=str.encode)[:limit]
    assert [info.key for info in await listed.leases("a", limit=2)] == ["a", "a/b"]


@pytest.mark.parametrize("state", ["", "shut", "HELD", True, 1])
async def test_leases_of_a_state_that_is_none_is_refused(table: LeaseTable, state: object) -> None:
    """A state is one of three words."""
    with pytest.raises((TypeError, ValueError), match="state must be"):
        await table.leases(state=state)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, 2**31, True, 1.0, "1"])
async def test_leases_of_a_limit_that_is_none_is_refused(table: LeaseTable, limit: object) -> None:
    """A limit is a positive int that the server takes."""
    with pytest.raises((TypeError, ValueError), match="limit must be"):
        await table.leases(limit=limit)  # type: ignore[arg-type]


async def test_leases_say_in_which_state_each_is(table: LeaseTable, observe: Observer) -> None:
    """Held, resting under min_hold, or free: after a release as after running out."""
    held = await acquire(table, "held", ttl=50)
    for key, min_hold in (("resting", 40.0), ("released", 0.0), ("rested", 40.0)):
        await (await acquire(table, key, min_hold=min_hold)).release()
    await observe.shift("rested", -40)
    crashed = await acquire(table, "crashed")
    await observe.shift("crashed", -70)
    infos = {info.key: info for info in await table.leases()}
    of_state: dict[LeaseState, list[str]] = {
        "held": ["held"],
        "resting": ["resting"],
        "free": ["crashed", "released", "rested"],
    }
    for state, keys_of_it in of_state.items():
        assert [info.key for info in await table.leases(state=state)] == keys_of_it
        assert [info.key for info in await table.leases("re", state=state)] == [k for k in keys_of_it if k[:2] == "re"]
    assert [info.key for info in await table.leases(state="free", limit=2)] == ["crashed", "released"]
    assert {key: info.state for key, info in infos.items()} == {
        "crashed": "free",
        "held": "held",
        "released": "free",
        "rested": "free",
        "resting": "resting",
    }
    assert (infos["held"].holder, infos["held"].fence) == (held.holder, held.fence)
    assert (infos["held"].acquired_at, infos["held"].expires_at) == (held.acquired_at, held.expires_at)
    assert 40 < infos["held"].expires_in <= 50
    assert -20 < infos["crashed"].expires_in <= -10
    for key, info in infos.items():
        one = await table.get(key)
        assert one is not None
        assert (one.key, one.holder, one.fence, one.state) == (key, info.holder, info.fence, info.state)
        assert (one.acquired_at, one.expires_at) == (info.acquired_at, info.expires_at)
    await held.release()
    await crashed.release()


async def test_get_of_a_key_never_claimed_is_none(table: LeaseTable) -> None:
    """Nothing is said of a key that has no row, and none is made."""
    assert await table.get("k") is None
    assert await table.leases() == []


@pytest.mark.parametrize(
    ("written", "read", "left"),
    [
        ("infinity", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), float("inf")),
        ("12000-01-01 UTC", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), 9000 * 365 * 86400.0),
    ],
)
async def test_expiry_that_no_datetime_can_say_is_read_all_the_same(
    table: LeaseTable, observe: Observer, written: str, read: datetime, left: float
) -> None:
    """A row that an operator keeps shut until infinity, or the year 12000, is read, listed, refused and renewed."""
    held = await acquire(table, "k")
    await observe.connection.execute(f"UPDATE lease SET expires_at = '{written}'")
    (info,) = await table.leases()
    assert info.expires_at == read
    assert info.expires_in >= left
    assert info.state == "held"
    assert await table.get("k") is not None
    from_the_claim = None
    try:
        await acquire(table, "k")
    except Exception as error:  # noqa: BLE001 - compared
        from_the_claim = getattr(error, "expires_at", error)
    assert from_the_claim == read
    await held.renew()
    assert not await observe.is_free("k")
    await held.release()
    assert await observe.is_free("k")


async def test_get_and_leases_tell_who_left_in_order_and_when(table: LeaseTable, observe: Observer) -> None:
    """A released key has released_at, resting or free; a held one and one whose holder crashed have none."""
    held, dead, left, resting = [
        await acquire(table, key, ttl=60, min_hold=hold)
        for key, hold in (("held", 0), ("dead", 0), ("left", 0), ("resting", 30))
    ]
    await observe.expire("dead")
    await left.release()
    await resting.release()
    found = {info.key: info for info in await table.leases()}
    assert {key: (info.state, info.released_at is not None) for key, info in found.items()} == {
        "held": ("held", False),
        "dead": ("free", False),
        "left": ("free", True),
        "resting": ("resting", True),
    }
    for key, info in found.items():
        record = await observe.row(key)
        assert record is not None
        assert info.released_at == record["released_at"]
    assert found["left"].released_at is not None
    assert found["left"].expires_at - found["left"].released_at < timedelta(seconds=1)
    assert found["resting"].released_at is not None
    assert found["resting"].expires_at - found["resting"].released_at > timedelta(seconds=25)
    await held.release()
    await dead.release()


AT = datetime(2026, 11, 30, 3, 0, 0, 123456, tzinfo=UTC)
INFO = LeaseInfo("nightly", "web-1/a", 7, AT, AT, 41.26, "held", None, None)


@pytest.mark.parametrize(
    ("info", "line"),
    [
        (INFO, "is held by 'web-1/a' with fence 7, expires in 41.3 s"),
        (
            replace(INFO, revoked_at=AT),
            "is held by 'web-1/a' with fence 7, expires in 41.3 s, asked to give it up at 2026-11-30 03:00:00 UTC",
        ),
        (replace(INFO, state="resting", released_at=AT), "rests for 41.3 s more, last held by 'web-1/a' with fence 7"),
        (
            replace(INFO, state="free", released_at=AT),
            "is free, released at 2026-11-30 03:00:00 UTC, last held by 'web-1/a' with fence 7",
        ),
        (
            replace(INFO, state="free", key="a\nb"),
            "is free, expired at 2026-11-30 03:00:00 UTC, last held by 'web-1/a' with fence 7",
        ),
    ],
)
def test_lease_info_as_text_is_one_readable_line(info: LeaseInfo, line: str) -> None:
    """It says who has the key and for how long, or since when nobody has it; a key with a line break keeps to it."""
    assert str(info) == f"lease {info.key!r} {line}"
    assert "\n" not in str(info)
