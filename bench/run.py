"""What a lease costs, as ratios within one run: machines are noisy, a ratio of interleaved rounds is less so.

    python bench/run.py [--rounds 9] [--calls 300] [--json FOLDER]

It brings its own PostgreSQL. ASYNCPG_LEASE_TEST_DSN names another one, on which it makes and drops a schema.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from asyncpg_lease import LeaseTable, acquire, lease, try_acquire
from asyncpg_lease.testing import EmbeddedServer

if TYPE_CHECKING:
    from typing import TypeAlias

    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

SCHEMA = "asyncpg_lease_bench"
TTL = 60.0

# The plainest pair that keeps one winner: an upsert that takes a row that ran out, an update that ends it.
UPSERT = f"""
INSERT INTO {SCHEMA}.raw (key, holder, fence, acquired_at, expires_at)
VALUES ($1, $2, 1, clock_timestamp(), clock_timestamp() + interval '60 s')
ON CONFLICT (key) DO UPDATE SET
    holder = excluded.holder, fence = raw.fence + 1,
    acquired_at = clock_timestamp(), expires_at = clock_timestamp() + interval '60 s'
WHERE raw.expires_at <= clock_timestamp()
RETURNING fence
"""
UPDATE = f"""
UPDATE {SCHEMA}.raw SET expires_at = greatest(clock_timestamp(), acquired_at + interval '1 microsecond')
WHERE key = $1 AND holder = $2 RETURNING fence
"""
RENEWAL = f"""
UPDATE {SCHEMA}.lease SET expires_at = clock_timestamp() + interval '60 s'
WHERE key = $1 AND holder = $2 AND fence = $3 RETURNING fence
"""

Once = Callable[[str], Awaitable[object]]


async def per_call(once: Once, tasks: int, calls: int) -> float:
    """Return the seconds a call takes, from the time that `tasks` tasks need for `calls` calls each."""

    async def one(key: str) -> None:
        for _ in range(calls):
            await once(key)

    began = time.perf_counter()
    await asyncio.gather(*(one(f"key-{number}") for number in range(tasks)))
    return (time.perf_counter() - began) / (tasks * calls)


async def compare(rounds: int, subjects: dict[str, Once], floor: str, tasks: int, calls: int) -> dict[str, object]:
    """Run the subjects in turn, `rounds` times, and return medians and the ratio of each to the floor."""
    seen: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name, once in subjects.items():
            taken = await per_call(once, tasks, calls)
            if number:  # the first round warms the statements up
                seen[name].append(taken)
    return {
        name: {
            "microseconds": round(statistics.median(taken) * 1e6, 1),
            "ratio": round(statistics.median(a / b for a, b in zip(taken, seen[floor], strict=True)), 3),
        }
        for name, taken in seen.items()
    }


@asynccontextmanager
async def leasing(dsn: str) -> AsyncIterator[tuple[Pool, LeaseTable]]:
    """Yield a pool of ten connections and the lease table on it, and beside that a table `raw` of the same shape."""
    async with asyncpg.create_pool(dsn, min_size=10, max_size=10) as pool:
        table = LeaseTable(pool, schema=SCHEMA)
        await table.create()
        await pool.execute(f"CREATE TABLE IF NOT EXISTS {SCHEMA}.raw (LIKE {SCHEMA}.lease INCLUDING ALL)")
        yield pool, table
        await table.aclose()


async def acquire_and_release(dsn: str, rounds: int, tasks: int, calls: int) -> dict[str, object]:
    """Compare acquire and release with two raw statements, and with two that do nothing, on one pool."""
    async with leasing(dsn) as (pool, table):

        async def leased(key: str) -> None:
            held = await acquire(table, key, ttl=TTL)
            await held.release()

        async def block(key: str) -> None:
            async with lease(table, key, ttl=TTL):
                pass

        async def raw(key: str) -> None:
            holder = os.urandom(16).hex()
            await pool.fetchrow(UPSERT, key, holder)
            await pool.fetchrow(UPDATE, key, holder)

        async def nothing(_: str) -> None:
            await pool.fetchrow("SELECT 1")
            await pool.fetchrow("SELECT 1")

        subjects: dict[str, Once] = {
            "acquire + release": leased,
            "async with lease": block,
            "two raw statements": raw,
            "SELECT 1 twice": nothing,
        }
        return await compare(rounds, subjects, "two raw statements", tasks, calls)


async def losing(dsn: str, rounds: int, calls: int) -> dict[str, object]:
    """Compare an acquire of a key that somebody else holds with one statement that does nothing."""
    async with leasing(dsn) as (pool, table):
        held = await acquire(table, "held", ttl=TTL)

        async def lose(_: str) -> None:
            if await try_acquire(table, "held", ttl=TTL) is not None:
                message = "a held key was given away"
                raise RuntimeError(message)

        async def nothing(_: str) -> None:
            await pool.fetchrow("SELECT 1")

        answer = await compare(rounds, {"losing acquire": lose, "SELECT 1": nothing}, "SELECT 1", 1, calls)
        await held.release()
    return answer


async def renewing(dsn: str, rounds: int, leases: int) -> dict[str, object]:
    """Compare renewing many leases at once with one raw UPDATE for each of them; figures are for all of them."""
    async with leasing(dsn) as (pool, table):
        keys = [f"key-{number}" for number in range(leases)]
        held = [await acquire(table, key, ttl=TTL) for key in keys]

        async def together(_: str) -> None:
            await asyncio.gather(*(one.renew() for one in held))

        async def one_by_one(_: str) -> None:
            await asyncio.gather(*(pool.fetchrow(RENEWAL, one.key, one.holder, one.fence) for one in held))

        subjects: dict[str, Once] = {"renewed together": together, "one by one": one_by_one}
        answer = await compare(rounds, subjects, "one by one", 1, 1)
        await asyncio.gather(*(one.release() for one in held))
    return answer


def import_cost(rounds: int) -> dict[str, float]:
    """Measure, in new interpreters, what importing the package adds to importing asyncpg."""
    program = (
        "import time, asyncpg, asyncio; began = time.perf_counter(); import asyncpg_lease;"
        "print(time.perf_counter() - began)"
    )
    taken = [
        float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
        for _ in range(rounds)
    ]
    return {"milliseconds": round(statistics.median(taken) * 1e3, 1)}


async def run(dsn: str, rounds: int, calls: int) -> dict[str, object]:
    """Run everything."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    version = await connection.fetchval("SHOW server_version")
    results: dict[str, object] = {"python": sys.version.split()[0], "server": version, "asyncpg": asyncpg.__version__}
    try:
        results["1 task"] = await acquire_and_release(dsn, rounds, 1, calls)
        results["200 tasks"] = await acquire_and_release(dsn, rounds, 200, max(1, calls // 60))
        results["a held key"] = await losing(dsn, rounds, calls)
        results["1,000 leases"] = await renewing(dsn, rounds, 1_000)
        results["import asyncpg_lease, after asyncpg"] = import_cost(rounds)
    finally:
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await connection.close()
    return results


def show(results: dict[str, object], indent: str = "") -> None:
    """Print the results, aligned."""
    for name, value in results.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "  ")
        else:
            print(f"{indent}{name:<13} {value}")


def main() -> None:
    """Parse the arguments, run, print, and write the JSON where one was asked for."""
    parser = argparse.ArgumentParser(description="What a lease costs, as ratios within one run.")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds, of which the median counts")
    parser.add_argument("--calls", type=int, default=300, help="calls in each round")
    parser.add_argument("--json", type=Path, help="also write the results to run.json in this folder")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        dsn = os.environ.get("ASYNCPG_LEASE_TEST_DSN") or stack.enter_context(EmbeddedServer()).dsn
        results = asyncio.run(run(dsn, arguments.rounds, arguments.calls))
    show(results)
    if arguments.json is not None:
        (arguments.json / "run.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
