"""Codecs that make something else of what the statements take and answer: works, or nothing stays claimed."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire
from tests.conftest import MakePool
from tests.pools.kinds import IN_TEXT, codec, refuse
from tests.support.observe import Observer
from tests.support.travel import Travel

# What is left of the application's own types: no text, no number.
UNREADABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "text that shouts": ("text", {"encoder": str, "decoder": str.upper}),
    "text as bytes": ("text", {"encoder": str.encode, "decoder": bytes, "format": "binary"}),
    "text as a list": ("text", {"encoder": str, "decoder": list}),
    "int8 in brackets": ("int8", IN_TEXT),
    "float8 as an object": ("float8", {"encoder": str, "decoder": lambda text: [text]}),
}


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("kind", UNREADABLE)
async def test_claim_whose_answer_the_codecs_spoil_is_a_clear_error_and_leaves_nothing(
    table: LeaseTable, make_pool: MakePool, observe: Observer, travel: Travel, kind: str
) -> None:
    """An answer that cannot be read is never taken for a grant; what the server granted is given back."""
    name, options = UNREADABLE[kind]
    target = LeaseTable(await make_pool(init=codec(name, **options), max_size=1), schema="public")
    with pytest.raises(TypeError, match="the pool's own codecs for text, int8 or float8"):
        await travel.through(acquire(target, "k"), within=5)
    assert await observe.fence("k") == 1
    assert await observe.is_free("k")
    held = await acquire(table, "k")
    for question in (acquire(target, "k", wait=30), target.get("k"), target.leases()):
        with pytest.raises(TypeError, match="the pool's own codecs"):
            await travel.through(question, within=5)
    await held.confirm()
    await held.release()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("name", ["text", "float8"])
async def test_claim_that_the_codecs_refuse_to_send_is_the_driver_s_error(
    make_pool: MakePool, observe: Observer, name: str
) -> None:
    """A codec that takes no str, or no float, stops the claim before it is sent."""
    pool = await make_pool(init=codec(name, encoder=lambda value: value.amount, decoder=str))
    with pytest.raises(asyncpg.DataError, match="has no attribute 'amount'"):
        await acquire(LeaseTable(pool, schema="public"), "k", wait=30)
    assert await observe.rows() == []


@pytest.mark.usefixtures("table")
async def test_release_passes_a_codec_that_takes_no_int(make_pool: MakePool, observe: Observer) -> None:
    """The fence goes out as text: a codec for bigint that takes only the application's own ids keeps no row shut."""
    pool = await make_pool(init=codec("int8", encoder=lambda value: str(value.id), decoder=int))
    table = LeaseTable(pool)
    held = await acquire(table, "k")
    await held.renew()
    assert [one.fence for one in await table.leases(limit=1)] == [1]
    await held.release()
    assert await observe.is_free("k")


@pytest.mark.usefixtures("table")
async def test_claim_on_a_connection_whose_codec_raises_leaves_nothing(make_pool: MakePool, observe: Observer) -> None:
    """A codec's own error comes out as itself, and what the server granted is given back."""
    pool = await make_pool(init=codec("int8", encoder=str, decoder=refuse), max_size=1)
    with pytest.raises(ValueError, match="no business of this application"):
        await acquire(pool, "k")
    assert await observe.fence("k") == 1
    await observe.until_free("k", within=2)
