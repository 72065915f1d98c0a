"""Every event reaches the table's observer, the lease's, and the log."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest

from asyncpg_lease import Event, LeaseError, LeaseTable, acquire, events, lease
from asyncpg_lease.events import Acquired, Lost, Notifier, Released, Renewed, Unavailable
from tests.conftest import MakePool
from tests.support.leasing import Recorder, settle, until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel

KEY = "told"
LOGGER = "asyncpg_lease"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
LEVELS = {
    "Acquired": ("INFO", "lease acquired"),
    "Unavailable": ("DEBUG", "lease unavailable"),
    "Waiting": ("INFO", "waiting for lease"),
    "WaitingFailed": ("WARNING", "claim failed, still waiting for lease"),
    "Renewed": ("DEBUG", "lease renewed"),
    "RenewFailed": ("WARNING", "lease renewal failed, trying again"),
    "Late": ("WARNING", "event loop was blocked while a lease was held"),
    "Revoked": ("WARNING", "lease revoked, waiting for its body to end"),
    "Lost": ("ERROR", "lease lost"),
    "Released": ("INFO", "lease released"),
    "ReleaseFailed": ("WARNING", "lease not released"),
}


Happened = Callable[[type[Event]], object]


async def live_through_everything(
    table: LeaseTable, proxy: Proxy, observe: Observer, travel: Travel, *, happened: Happened, mine: Recorder | None
) -> None:
    """Make every kind of event happen to one key; `happened` tells of each kind whether it has."""
    async with lease(table, KEY, ttl=12, observer=mine):
        with suppress(LeaseError):
            await travel.through(acquire(table, KEY, wait=1, observer=mine), within=5)
        await observe.connection.execute("ALTER TABLE lease RENAME TO elsewhere")
        await travel.until(lambda: happened(events.RenewFailed), within=6)
        await observe.connection.execute("ALTER TABLE elsewhere RENAME TO lease")
        await travel.until(lambda: happened(Renewed), within=6)
        await travel.block(4)
        await travel(1)
    with suppress(LeaseError):
        async with lease(table, KEY, ttl=12, observer=mine):
            await observe.hand_over(KEY, ttl=2)
            await travel(8)
    with suppress(LeaseError):
        async with lease(table, KEY, ttl=12, heartbeat=1, observer=mine):
            await table.revoke(KEY)
            await travel(4)
    async with lease(table, KEY, ttl=12, observer=mine):
        await observe.hand_over(KEY, ttl=30)
    waiter = asyncio.create_task(acquire(table, KEY, wait=30, observer=mine))
    proxy.refuse()
    proxy.reset_links()
    # It stands back for two polls first.
    await travel.until(lambda: happened(events.WaitingFailed), within=15)
    waiter.cancel()
    await asyncio.wait([waiter])
    await proxy.accept()


@pytest.mark.slow("takes half a second or so")
async def test_every_event_is_told_to_both_observers_and_logged(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind is seen by the table's observer, the lease's, and as a record with its level, prefix and fields."""
    caplog.set_level(logging.DEBUG, LOGGER)
    tables, mine = Recorder(), Recorder()
    table = LeaseTable(await make_pool(proxy.dsn, max_size=1), poll=2, observer=tables)
    await table.create()
    await live_through_everything(table, proxy, observe, travel, happened=mine.of, mine=mine)
    await table.aclose()
    assert tables.events == mine.events
    assert {type(event).__name__ for event in mine.events} == set(LEVELS)
    records = [record for record in caplog.records if record.module == "events"]
    assert len(records) == len(mine.events)
    for event, record in zip(mine.events, records, strict=True):
        level, prefix = LEVELS[type(event).__name__]
        assert record.levelname == level
        assert record.getMessage().startswith(f"{prefix}: key={KEY!r} holder={event.holder!r}")
        assert record.name == LOGGER
        assert record.msg == f"{prefix}: %s"
        for name, value in vars(event).items():
            assert getattr(record, f"lease_{name}") == value


@pytest.mark.slow("takes half a second or so")
async def test_event_of_a_loss_says_all_that_is_known(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """The events of one tenure carry its key, holder and fence, and how long things took."""
    told = Recorder()
    with suppress(LeaseError):
        async with lease(table, KEY, ttl=30, observer=told) as held:
            await travel.until(lambda: told.of(Renewed), within=15)
            await observe.hand_over(KEY)
            await travel(20)
    assert {(event.key, event.holder) for event in told.events} == {(KEY, held.holder)}
    assert [type(event) for event in told.events] == [Acquired, Renewed, Lost]
    renewed, lost = told.of(Renewed)[0], told.of(Lost)[0]
    assert renewed.fence == lost.fence == 1
    assert 0 < renewed.took < 5
    assert 25 < renewed.remaining <= 30
    async with lease(table, "other", observer=told):
        await travel(5)
    assert 5 <= told.of(Released)[0].held_for < 9
    # The second renewal found it.
    assert 15 < lost.held_for < 27


async def test_event_of_a_release_that_failed_says_how_long_the_lease_was_held(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """However a tenure ends, its end says how long it was."""
    told = Recorder()
    held = await acquire(table, KEY, ttl=30, observer=told)
    await travel(5)
    await observe.hand_over(KEY)
    await held.release()
    (failed,) = told.of(events.ReleaseFailed)
    assert 5 <= failed.held_for < 10


def test_durations_in_the_log_have_three_decimals_in_its_text_and_all_in_its_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A line is for people, its fields are for programs; what has no end is still said to have none."""
    caplog.set_level(logging.INFO, LOGGER)
    Notifier().tell(Released(key=KEY, holder="h", fence=1, held_for=0.0958721))
    Notifier().tell(events.Waiting(key=KEY, holder="h", incumbent=None, incumbent_fence=None, wait=math.inf))
    released, waiting = caplog.records
    assert released.getMessage() == "lease released: key='told' holder='h' fence=1 held_for=0.096"
    assert released.lease_held_for == 0.0958721  # type: ignore[attr-defined]
    assert waiting.getMessage() == "waiting for lease: key='told' holder='h' wait=inf"


@pytest.mark.slow("takes half a second or so")
async def test_event_of_a_wait_says_for_whom_and_how_long(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """A waiter is told whom it waits for, and where a try fails for how long it has waited and the error's name."""
    told = Recorder()
    held = await acquire(table, KEY, ttl=30)
    waiter = asyncio.create_task(acquire(table, KEY, wait=30, observer=told))
    await until(lambda: told.of(events.Waiting))
    (waiting,) = told.of(events.Waiting)
    assert (waiting.incumbent, waiting.incumbent_fence, waiting.wait) == (held.holder, held.fence, 30)
    async with observe.connection.transaction():
        # The next try waits for it, and is ended so.
        await observe.connection.execute("LOCK TABLE lease")
        await travel(2, rows=False)
        await observe.terminate_backends()
        await until(lambda: told.of(events.WaitingFailed))
    failed = told.of(events.WaitingFailed)[0]
    assert 2 <= failed.waited < 10
    assert failed.error.partition("(")[0].endswith("Error")
    waiter.cancel()
    await asyncio.wait([waiter])
    await held.release()


async def test_observer_that_raises_harms_nothing(table: LeaseTable, caplog: pytest.LogCaptureFixture) -> None:
    """An observer's error is logged with its name, and neither the lease nor the next observer notices."""
    told = Recorder()

    def broken(event: Event, /) -> None:
        raise ValueError(event.key)

    notifier = Notifier(broken, told)
    notifier.tell(Released(key=KEY, holder="h", fence=1, held_for=1.0))
    assert len(told.events) == 1
    async with lease(table, KEY, ttl=30, observer=broken) as held:
        assert held.is_held
    settle(broken)
    failures = [record for record in caplog.records if record.msg == "lease observer failed: %s"]
    assert len(failures) == 3
    assert failures[0].exc_info
    assert failures[0].lease_observer == f"{__name__}.{broken.__qualname__}"  # type: ignore[attr-defined]


def test_notifier_without_anybody_to_tell_wants_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """No observer and no log: no event is worth making; each of the two alone makes it so."""
    caplog.set_level(logging.CRITICAL, LOGGER)
    silent = Notifier()
    assert not silent.wants(Acquired)
    assert silent.plus(()) is silent
    assert silent.plus([Recorder()]).wants(Renewed)
    caplog.set_level(logging.INFO, LOGGER)
    assert silent.wants(Acquired)
    assert not silent.wants(Unavailable)
    assert "Notifier" in repr(silent)


@pytest.mark.slow("takes half a second or so")
async def test_lease_without_anybody_to_tell_makes_no_event(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With logging off and no observer no event of any kind is even made; with one of the two it is."""
    made: list[str] = []
    asked: set[type[Event]] = set()
    wants = Notifier.wants

    def asking(self: Notifier, kind: type[Event]) -> bool:
        asked.add(kind)
        return wants(self, kind)

    monkeypatch.setattr(Notifier, "wants", asking)
    for kind in Event.__subclasses__():
        init = kind.__init__

        def noting(self: Event, *args: object, _init: object = init, **kwargs: object) -> None:
            made.append(type(self).__name__)
            _init(self, *args, **kwargs)  # type: ignore[operator]

        monkeypatch.setattr(kind, "__init__", noting)
    caplog.set_level(logging.CRITICAL, LOGGER)
    table = LeaseTable(await make_pool(proxy.dsn, max_size=1), poll=2)
    await table.create()
    await live_through_everything(table, proxy, observe, travel, happened=asked.__contains__, mine=None)
    assert {kind.__name__ for kind in asked} == set(LEVELS)
    assert made == []
    await observe.expire(KEY)
    caplog.set_level(logging.INFO, LOGGER)
    async with lease(table, KEY):
        pass
    assert made == ["Acquired", "Released"]
    await table.aclose()


def test_every_kind_of_event_has_a_message_of_its_own_and_is_no_template() -> None:
    """What groups log records by their text can tell the kinds apart, and nothing in it is taken for a field."""
    kinds = Event.__subclasses__()
    messages = {kind.message for kind in kinds}
    assert len(messages) == len(kinds) >= len(LEVELS)
    assert not any("%" in message for message in (*messages, Event.message))


def test_reference_has_the_records_that_are_no_events_as_they_are_made() -> None:
    """The messages in its second table, and their fields, are found in the library."""
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(events.__file__).parent.glob("*.py")))
    text = REFERENCE.read_text(encoding="utf-8").partition("Not all that is logged is an event")[2]
    _, *rows = [line.strip("|").split("|") for line in text.split("\n") if line.startswith("| ")]
    assert len(rows) == 11
    assert [message for _, _, message, _ in rows if f'"{message.strip()}' not in source] == []
    names = {name for _, _, _, said in rows for name in re.findall(r"`(\w+)`", said)}
    assert {name for name in names if f'"lease_{name}"' not in source and f'"{name}": ' not in source} == set()


def test_events_are_values() -> None:
    """Events compare by kind and fields, can be keys of a dict, cannot be changed, and show all they know."""
    one, same = (Released(key=KEY, holder="h", fence=1, held_for=2.0) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Released(key=KEY, holder="h", fence=2, held_for=2.0)
    assert one != "lease released"
    assert repr(one) == "Released(key='told', holder='h', fence=1, held_for=2.0)"
    with pytest.raises(AttributeError):
        one.fence = 3  # type: ignore[misc]


def test_reference_has_every_kind_of_event_with_its_level_message_and_fields() -> None:
    """The table of events in the documentation says what the classes say."""
    text = REFERENCE.read_text(encoding="utf-8").partition("## Observers")[0]
    rows = [line.strip("|").split("|") for line in text.split("\n") if "| `" in line]
    documented = {name.strip(" `"): (level.strip(), message.strip(), said) for name, _, level, message, said in rows}
    assert set(documented) >= set(LEVELS)
    kinds: dict[str, type[Event]] = {name: getattr(events, name) for name in documented}
    told = {
        name: (
            logging.getLevelName(kind.level),
            kind.message,
            [field.name for field in fields(kind) if field.name not in ("key", "holder")],
        )
        for name, kind in kinds.items()
    }
    said = {name: (level, message, re.findall(r"`(\w+)`", said)) for name, (level, message, said) in documented.items()}
    assert said == told
