"""Making the faults: each kind of `kinds` has its way here, and returns what was done, or None where it was not."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress

import asyncpg

from asyncpg_lease import LeaseTable
from asyncpg_lease.testing import EmbeddedServer
from tests.chaos.crew import Place
from tests.chaos.kinds import KINDS, Planned
from tests.faults.means import stopped
from tests.history.gather import PATIENCE, PAUSE, directly
from tests.history.history import History
from tests.history.judge import LABEL
from tests.history.records import Body, Fault, Notice
from tests.support.statements import CLAIM, RELEASE, RENEW

# What the server and what is between may do to a call of ours while faults of other lanes are on.
PASSING = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
SOON = 2.0

# Releases and guards wait for a row; its renewal does not.
WAITING = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"

REPLIES = {"claim": CLAIM, "renew": RENEW, "release": RELEASE, "commit": "COMMIT"}


async def insist(dsn: str, *statements: str) -> None:
    """Run statements, again where the server restarts meanwhile.

    Raises:
        TimeoutError: If that did not do.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(*PASSING):
                async with directly(dsn) as connection:
                    for statement in statements:
                        await connection.execute(statement)
                return
            await asyncio.sleep(PAUSE)


def _made(kind: str, began: float, ended: float, *, process: int = 0, key: str = "", detail: str = "") -> Fault:
    return Fault(kind, began, ended, process, key, detail, cuts=KINDS[kind].cuts)


class OnProcess:
    """What is done to one process, its network, and its sessions."""

    def __init__(self, place: Place, dsn: str, whole_server: asyncio.Lock) -> None:
        self._place = place
        self._dsn = dsn
        # A restart waits for each session's end, and a stopped one comes to none.
        self._whole_server = whole_server
        self._began = 0.0
        self._detail = ""

    async def make(self, planned: Planned) -> Fault | None:
        """Make a fault, and undo it."""
        await self._place.ready.wait()
        process, self._began, self._detail = self._place.process, time.monotonic(), ""
        name, _, part = planned.kind.partition(": ")
        makes: Mapping[str, Callable[[], Awaitable[float | None]]] = {
            "frozen network": lambda: self._freeze(planned.lasts),
            "slow replies": lambda: self._slow(planned, replies=True),
            "slow requests": lambda: self._slow(planned, replies=False),
            "links reset": self._reset,
            "links refused": lambda: self._refuse(planned.lasts),
            "lost reply": lambda: self._lose_reply(REPLIES[part]),
            "session stopped": lambda: self._stop_session(planned.lasts),
            "session ended": lambda: self._end_session(planned),
            "process stopped": lambda: self._stop(planned.lasts),
            "process killed": self._kill,
            "loop blocked": lambda: self._place.order("block", seconds=planned.lasts),
            "forked": lambda: self._place.order("fork"),
            "pool exhausted": lambda: self._exhaust(planned.lasts),
            "cancelled": lambda: self._cancel(part, planned),
        }
        try:
            async with asyncio.timeout(PATIENCE):
                at = await makes[name]()
        except TimeoutError:
            # What the process should have met long ago: it does nothing any more.
            await self._place.explain(planned.kind)
            return None
        if at is None or at == float("inf"):
            return None
        if planned.lasts:
            at = max(at, time.monotonic())
        # Replies were slow until the cancellation had met its call.
        spans = planned.lasts or name == "cancelled"
        return _made(planned.kind, self._began if spans else at, at, process=process, detail=self._detail)

    async def _freeze(self, lasts: float) -> float:
        self._place.proxy.freeze()
        await asyncio.sleep(lasts)
        self._place.proxy.thaw()
        return time.monotonic()

    async def _slow(self, planned: Planned, *, replies: bool) -> float:
        proxy, delay = self._place.proxy, 0.15 + 0.5 * planned.chance
        self._detail = f"{delay}"
        proxy.delay_replies, proxy.delay_requests = (delay, 0.0) if replies else (0.0, delay)
        await asyncio.sleep(planned.lasts)
        proxy.delay_replies = proxy.delay_requests = 0.0
        return time.monotonic()

    async def _reset(self) -> float | None:
        if not await self._sessions():
            return None
        self._place.proxy.reset_links()
        return time.monotonic()

    async def _refuse(self, lasts: float) -> float:
        proxy = self._place.proxy
        proxy.refuse()
        proxy.reset_links()
        await asyncio.sleep(lasts)
        while True:
            # Some link of somebody's may have got the port meanwhile.
            with suppress(OSError):
                await proxy.accept()
                return time.monotonic()
            await asyncio.sleep(PAUSE)

    async def _lose_reply(self, matching: str) -> float:
        while True:
            # One whose link is cut before the reply comes never happens: order another one.
            with suppress(TimeoutError):
                async with asyncio.timeout(SOON):
                    await self._place.proxy.drop_reply(matching).happened.wait()
                return time.monotonic()

    async def _stop_session(self, lasts: float) -> float | None:
        async with self._whole_server:
            pids = await self._sessions()
            if not pids:
                return None
            self._began, self._detail = time.monotonic(), f"session {pids[0]}"
            with stopped(pids[0]):
                await asyncio.sleep(lasts)
        return time.monotonic()

    async def _end_session(self, planned: Planned) -> float | None:
        pids = await self._sessions()
        if not pids:
            return None
        with suppress(*PASSING):
            async with directly(self._dsn) as connection:
                # Half of them at once, so that not only idle ones are met.
                met = pids[: 1 + int(planned.chance * len(pids))]
                self._detail = f"session {' '.join(map(str, met))}"
                for pid in met:
                    await connection.execute("SELECT pg_terminate_backend($1)", pid)
                return time.monotonic()
        return None

    async def _sessions(self) -> list[int]:
        """Return the sessions as soon as one is at work, those first: nobody may come for the others meanwhile."""
        until = time.monotonic() + SOON
        named = """
            SELECT pid, coalesce(state, 'idle') <> 'idle' AS works FROM pg_stat_activity
            WHERE application_name = $1 ORDER BY works DESC, pid
        """
        while time.monotonic() < until:
            with suppress(*PASSING):
                async with directly(self._dsn) as connection:
                    found = await connection.fetch(named, f"{LABEL}{self._place.process}")
                    if any(works for _, works in found):
                        return [pid for pid, _ in found]
            await asyncio.sleep(PAUSE)
        return []

    async def _stop(self, lasts: float) -> float:
        self._place.signal(signal.SIGSTOP)
        await asyncio.sleep(lasts)
        self._place.signal(signal.SIGCONT)
        return time.monotonic()

    async def _kill(self) -> float | None:
        # One that has nothing leaves nothing behind.
        while not self._place.running:
            await asyncio.sleep(PAUSE)
        return self._place.kill()

    async def _exhaust(self, lasts: float) -> float:
        at = await self._place.order("exhaust", seconds=lasts)
        await asyncio.sleep(lasts if at < float("inf") else 0)
        return at

    async def _cancel(self, phase: str, planned: Planned) -> float:
        """Cancel a call within its time, which the way of the replies makes longer."""
        proxy, delay = self._place.proxy, 0.1 + 0.2 * planned.chance
        after = planned.chance if phase == "body" else delay * planned.chance
        if phase != "body":
            proxy.delay_replies = delay
        met = asyncio.ensure_future(self._place.order("cancel", phase=phase, seconds=after))
        try:
            while not (await asyncio.wait([met], timeout=SOON))[0]:
                # Replies that are too slow cost leases, and the exit of a lost one waits for nothing.
                proxy.delay_replies /= 2
            return met.result()
        finally:
            met.cancel()
            proxy.delay_replies = 0.0


class OnServer:
    """What is done to the rows and to the whole server, by foreign sessions and operators."""

    def __init__(
        self,
        server: EmbeddedServer,
        table: LeaseTable,
        places: Sequence[Place],
        history: History,
        whole_server: asyncio.Lock,
    ) -> None:
        self._server = server
        self._dsn = server.dsn
        self._table = table
        self._places = places
        self._history = history
        self._whole_server = whole_server

    async def make(self, planned: Planned) -> Fault | None:
        """Make a fault, and undo it."""
        makes: Mapping[str, Callable[[Planned], Awaitable[str | None]]] = {
            "row locked": self._lock,
            "revoked": self._revoke,
            "revoked by force": self._revoke,
            "pruned": self._prune,
            "advanced": self._advance,
            "server restarted": self._restart,
            "server read-only": self._make_read_only,
        }
        with suppress(*PASSING):
            async with self._whole_server if planned.kind == "server restarted" else nullcontext():
                began = time.monotonic()
                key = await makes[planned.kind](planned)
                if key is not None:
                    return _made(planned.kind, began, time.monotonic(), key=key)
        return None

    def _held(self, planned: Planned) -> Body | None:
        bodies = [body for place in self._places for body in place.running]
        return bodies[int(planned.chance * len(bodies))] if bodies else None

    async def _lock(self, planned: Planned) -> str | None:
        body = self._held(planned)
        if body is None:
            return None
        async with directly(self._dsn) as connection, connection.transaction():
            await connection.execute("SELECT FROM lease WHERE key = $1 FOR UPDATE", body.key)
            await asyncio.sleep(planned.lasts)
            if await connection.fetchval(WAITING):
                self._history.notices.append(Notice(time.monotonic(), 0, "Waited for", body.key))
        return body.key

    async def _revoke(self, planned: Planned) -> str | None:
        body = self._held(planned)
        if body is None:
            return None
        force = planned.kind == "revoked by force"
        began = time.monotonic()
        done = False
        try:
            revocation = await self._table.revoke(body.key, force=force)
            done = revocation.outcome in {"requested", "ended"}
        except PASSING:
            if force:
                # Nobody knows whether it was: the row will say so.
                self._history.faults.append(_made(planned.kind, began, time.monotonic(), key=body.key))
        return body.key if done else None

    async def _prune(self, _: Planned) -> str | None:
        await self._table.prune(0)
        return ""

    async def _advance(self, planned: Planned) -> str | None:
        await self._table.advance_fences(1 + int(9 * planned.chance))
        return ""

    async def _restart(self, _: Planned) -> str | None:
        await asyncio.to_thread(self._server.restart_immediately)
        return ""

    async def _make_read_only(self, planned: Planned) -> str | None:
        try:
            await insist(self._dsn, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
            await asyncio.sleep(planned.lasts)
        finally:
            await insist(self._dsn, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
        return ""
