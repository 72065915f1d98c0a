"""Handles of one explicit holder: which of them ends their tenure, and whose row a stale one leaves alone."""

from __future__ import annotations

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from tests.support.observe import Observer
from tests.support.travel import Travel

KEY = "handed"


async def test_joined_handle_neither_releases_nor_ends_the_tenure(table: LeaseTable, observe: Observer) -> None:
    """Only the handle that began a tenure releases it; one that joined leaves the row to it."""
    async with lease(table, KEY, ttl=30, holder="app") as owner:
        async with lease(table, KEY, ttl=30, holder="app") as joined:
            assert joined.joined
            assert not owner.joined
            assert (joined.fence, joined.acquired_at) == (owner.fence, owner.acquired_at)
        assert not await observe.is_free(KEY)
        again = await acquire(table, KEY, ttl=30, holder="app")
        await again.release()
        assert not await observe.is_free(KEY)
        await owner.confirm()
    assert await observe.is_free(KEY)


async def test_joined_handle_with_a_shorter_ttl_never_shortens(table: LeaseTable, observe: Observer) -> None:
    """Joining, and renewing what was joined, keeps the longer expiry of the two."""
    async with lease(table, KEY, ttl=60, holder="app"):
        first = await observe.row(KEY)
        assert first is not None
        async with lease(table, KEY, ttl=20, holder="app") as joined:
            await joined.renew()
            second = await observe.row(KEY)
            assert second is not None
            assert second["expires_at"] >= first["expires_at"]


async def test_joined_handle_is_lost_when_its_owner_has_released(table: LeaseTable, travel: Travel) -> None:
    """When the owner is done, the tenure is over for every handle of it."""
    owner = await acquire(table, KEY, ttl=30, holder="app")
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, holder="app"):
            await owner.release()
            await travel(20)
    assert caught.value.reason == "expired"


async def test_release_from_a_stale_handle_does_not_touch_its_own_later_tenure(
    table: LeaseTable, observe: Observer
) -> None:
    """The same explicit holder's next tenure has another fence, and the old handle's release misses it."""
    old = await acquire(table, KEY, ttl=30, holder="app")
    await observe.expire(KEY)
    new = await acquire(table, KEY, ttl=30, holder="app")
    assert (new.fence, new.joined) == (old.fence + 1, False)
    before = await observe.version(KEY)
    await old.release()
    assert await observe.version(KEY) == before
    await new.release()
