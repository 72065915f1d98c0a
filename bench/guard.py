"""What guarding a transaction costs, as ratios within one run, and what it does to successors and renewals.

    python bench/guard.py [--rounds 9] [--calls 200] [--programs FOLDER] [--json FOLDER]

It brings its own PostgreSQL, with fsync on and pg_stat_statements, or runs the one of the programs in a folder.

The server's time is told twice. pg_stat_statements knows what planning and execution took, but neither the start of
the executor, nor the flush of a commit. The server's log (log_duration) has all that the server did for a message,
COMMIT's flush included: so the whole transaction is made of that, and `guarded / plain` is what a guard costs.
`guard / plain` is the guard's own part of it, which the noise of the flush does not touch as much. Both hang on how
long the disk takes to flush, some 50 us where there is a cache in between: so there is a run with 1 ms more as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import asyncpg
from ground import KEY, TTL, WRITE, Relay, leasing, transactions
from others import renewing, taking_over
from run import compare, show

from asyncpg_lease import lease
from asyncpg_lease.testing import EmbeddedServer

SETTINGS = {
    "fsync": "on",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_planning": "on",
}
STATISTICS = """
SELECT upper(split_part(query, ' ', 1)) AS verb, calls, (total_plan_time + total_exec_time) * 1000 / calls AS taken
FROM pg_stat_statements WHERE calls >= $1
"""
LOGGED = re.compile(r"LOG:  duration: ([\d.]+) ms$", re.MULTILINE)
STATEMENTS = {"plain": ["BEGIN", "UPDATE", "COMMIT"], "guarded": ["BEGIN", "guard", "UPDATE", "COMMIT"]}
WHOLE = "whole transaction"

Figures = dict[str, float]


async def added(dsn: str) -> dict[str, int]:
    """Count what a guard adds to a transaction."""
    relay = Relay(dsn)
    counted: dict[str, tuple[int, int]] = {}
    async with (
        relay.listening() as through,
        leasing(through) as (pool, table),
        lease(table, KEY, ttl=TTL) as held,
        pool.acquire() as connection,
        pool.acquire() as other,
    ):
        for name, opened in transactions(held, connection).items():
            for _ in range(2):  # in the first the driver prepares what it sends
                await other.execute("SELECT pg_stat_statements_reset()")
                before = relay.round_trips
                async with opened():
                    await connection.execute(WRITE, 1)
                trips = relay.round_trips - before
                statements = sum(row["calls"] for row in await other.fetch(STATISTICS, 1)) - 1  # the reset
                counted[name] = statements, trips
    (plain, plain_trips), (guarded, guarded_trips) = counted["plain"], counted["guarded"]
    return {"statements": guarded - plain, "round trips": guarded_trips - plain_trips}


async def on_the_server(
    server: EmbeddedServer, rounds: int, calls: int, *, cached: bool = True, flush: int = 0
) -> dict[str, object]:
    """Compare the server's time of transactions.

    Args:
        server: with SETTINGS.
        rounds: of which the median counts.
        calls: transactions of a kind in each round.
        cached: whether the driver keeps its statements, or has them planned anew each time.
        flush: microseconds that each commit takes longer than the disk here needs.
    """
    logged: list[dict[str, Figures]] = []
    counted: list[Figures] = []
    cache = {} if cached else {"statement_cache_size": 0}
    async with (
        leasing(server.dsn, **cache) as (pool, table),
        lease(table, KEY, ttl=TTL) as held,
        pool.acquire() as connection,
        pool.acquire() as other,
    ):
        opening = transactions(held, connection)
        await connection.execute(f"SET commit_siblings = 0; SET commit_delay = {flush}; SET log_duration = on")
        with server.log_path.open() as log:
            for number in range(rounds + 1):
                await other.execute("SELECT pg_stat_statements_reset()")
                log.read()
                for _ in range(calls):
                    for opened in opening.values():
                        async with opened():
                            await connection.execute(WRITE, 1)
                if number:  # the first round warms up
                    logged.append(from_log(log.read(), calls, 2 if cached else 4))
                    counted.append(from_statistics(await other.fetch(STATISTICS, calls)))
    return {
        "microseconds by log_duration": {name: medians([one[name] for one in logged]) for name in STATEMENTS},
        "microseconds by pg_stat_statements": medians(counted),
        "guarded / plain": ratio([(one["guarded"][WHOLE], one["plain"][WHOLE]) for one in logged]),
        "guard / plain": ratio([(one["guarded"]["guard"], one["plain"][WHOLE]) for one in logged]),
        "guard / plain, the guard by pg_stat_statements": ratio(
            [(by_statistics["guard"], one["plain"][WHOLE]) for by_statistics, one in zip(counted, logged, strict=True)]
        ),
    }


def from_log(text: str, calls: int, messages: int) -> dict[str, Figures]:
    """Return what each statement took, and the whole, of a round's transactions of either kind, by the server's log.

    The median of each in a round, since a flush takes now and then many times as long as it mostly does.
    """
    # The driver sends what has arguments in several messages (parse, parse, bind, execute), and the others in one.
    order = [
        (kind, statement)
        for kind, statements in STATEMENTS.items()
        for statement in statements
        for _ in range(1 if statement in {"BEGIN", "COMMIT"} else messages)
    ]
    taken = [float(found) * 1e3 for found in LOGGED.findall(text)]
    if len(taken) != len(order) * calls:
        message = f"the server logged {len(taken)} durations in place of {len(order) * calls}"
        raise RuntimeError(message)
    sums: dict[str, dict[str, list[float]]] = {
        kind: {name: [0.0] * calls for name in (*statements, WHOLE)} for kind, statements in STATEMENTS.items()
    }
    for place, duration in enumerate(taken):
        call, message = divmod(place, len(order))
        kind, statement = order[message]
        sums[kind][statement][call] += duration
        sums[kind][WHOLE][call] += duration
    return {kind: {name: statistics.median(each) for name, each in of.items()} for kind, of in sums.items()}


def from_statistics(rows: Sequence[asyncpg.Record]) -> Figures:
    """Return what each statement took, by pg_stat_statements: a mean, and of both kinds of transactions."""
    return {"guard" if row["verb"] == "WITH" else row["verb"]: row["taken"] for row in rows}


def medians(rounds: Sequence[Figures]) -> Figures:
    """Return the median over the rounds, of each figure."""
    return {name: round(statistics.median(one[name] for one in rounds), 1) for name in rounds[0]}


def ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """Return the median over the rounds of a ratio."""
    return round(statistics.median(a / b for a, b in rounds), 3)


async def for_the_client(dsn: str, rounds: int, calls: int) -> dict[str, object]:
    """Compare the wall time of transactions, and of one with a statement more that does nothing."""
    async with (
        leasing(dsn) as (pool, table),
        lease(table, KEY, ttl=TTL) as held,
        pool.acquire() as connection,
    ):
        opening = transactions(held, connection)

        async def plain(_: str) -> None:
            async with opening["plain"]():
                await connection.execute(WRITE, 1)

        async def one_more(_: str) -> None:
            async with opening["plain"]():
                await connection.fetchval("SELECT 1")
                await connection.execute(WRITE, 1)

        async def guarded(_: str) -> None:
            async with opening["guarded"]():
                await connection.execute(WRITE, 1)

        subjects = {"plain": plain, "plain with SELECT 1": one_more, "guarded": guarded}
        return await compare(rounds, subjects, "plain", 1, calls)


async def run(server: EmbeddedServer, rounds: int, calls: int) -> dict[str, object]:
    """Run everything."""
    connection = await asyncpg.connect(server.dsn)
    await connection.execute("CREATE EXTENSION pg_stat_statements")
    version = await connection.fetchval("SHOW server_version")
    await connection.close()
    return {
        "python": sys.version.split()[0],
        "server": version,
        "asyncpg": asyncpg.__version__,
        "a guard adds": await added(server.dsn),
        "on the server": await on_the_server(server, rounds, calls),
        "on the server, 1 ms more for a flush": await on_the_server(server, rounds, calls, flush=1000),
        "on the server, nothing prepared": await on_the_server(server, rounds, calls, cached=False),
        "for the client": await for_the_client(server.dsn, rounds, calls),
        "take-over": await taking_over(server.dsn, max(1, calls // 4)),
        "renewals": await renewing(server.dsn, rounds, calls),
    }


def main() -> None:
    """Parse the arguments, run, print, and write the JSON where one was asked for."""
    parser = argparse.ArgumentParser(description="What guarding a transaction costs, as ratios within one run.")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds, of which the median counts")
    parser.add_argument("--calls", type=int, default=200, help="transactions of a kind in each round")
    parser.add_argument("--programs", type=Path, help="the folder with PostgreSQL's programs; the wheel's unless given")
    parser.add_argument("--json", type=Path, help="also write the results to guard.json in this folder")
    arguments = parser.parse_args()
    with EmbeddedServer(SETTINGS, programs=arguments.programs) as server:
        results = asyncio.run(run(server, arguments.rounds, arguments.calls))
    show(results)
    if arguments.json is not None:
        (arguments.json / "guard.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
