"""What happens in the demo, in order: each fault, what must follow it, and the record of both."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import asyncpg

from asyncpg_lease.cli._crew import Crew, Event
from asyncpg_lease.cli._narrator import Narrator
from asyncpg_lease.cli._verdict import Fault, FaultKind, Tenure

WORKERS = ("worker-1", "worker-2", "worker-3")
_PATIENCE = 15.0
_REPEATS = 3


class StoryError(Exception):
    """What had to happen did not."""


class Story:
    """The faults, done one after the other to whoever holds the lease.

    Args:
        crew: the workers, none of them hired yet.
        pool: the server that they use.
        narrator: told of everything as it happens.
        planned: the faults to do, in their order.
        restart: restarts the server at once and returns when it is back; None where it is not ours, and then
            no restart may be planned.
    """

    def __init__(
        self,
        crew: Crew,
        pool: asyncpg.Pool,
        narrator: Narrator,
        planned: Sequence[FaultKind],
        restart: Callable[[], None] | None,
    ) -> None:
        self._crew = crew
        self._pool = pool
        self._narrator = narrator
        self._planned = planned
        self._acts: dict[FaultKind, Callable[[], Awaitable[None]]] = {
            FaultKind.HAND_OVER: self._hand_over,
            FaultKind.KILL: self._kill,
            FaultKind.PAUSE: self._pause,
        }
        if restart is not None:
            self._acts[FaultKind.RESTART] = partial(self._restart, restart)
        self._tenures: list[Tenure] = []
        self._faults: list[Fault] = []
        self._writes: Counter[int] = Counter()
        self._killed: set[str] = set()
        self._late_writes = 0

    def __repr__(self) -> str:
        return f"<Story of {len(self._tenures)} tenures, {len(self._faults)} faults>"

    @property
    def tenures(self) -> Sequence[Tenure]:
        """The tenures so far, as the workers reported them."""
        return list(self._tenures)

    @property
    def faults(self) -> Sequence[Fault]:
        """The faults so far."""
        return list(self._faults)

    async def run(self) -> None:
        """Do everything, and let the workers end.

        Raises:
            StoryError: something that had to follow did not, within a generous time.
        """
        for name in WORKERS:
            await self._crew.hire(name)
        for kind in self._planned:
            self._crew.report(kind="begins", text=kind)
            await self._acts[kind]()
        self._narrator.act("that was all: the workers are sent home")
        try:
            last_events = await self._crew.dismiss()
        except TimeoutError:
            message = "the workers did not end in time"
            raise StoryError(message) from None
        for event in last_events:
            self._note(event)

    async def _hand_over(self) -> None:
        held = await self._renewal()
        self._narrator.act(f"hand-over: {held.worker} is asked to finish its job")
        self._crew.ask_to_finish(held.worker)
        await self._mark(FaultKind.HAND_OVER, held)
        await self._take_over(held)

    async def _kill(self) -> None:
        held = await self._renewal()
        self._narrator.act(f"kill -9 {held.worker}: its lease runs out by itself")
        self._killed.add(held.worker)
        self._crew.kill(held.worker)
        await self._mark(FaultKind.KILL, held)
        await self._take_over(held)
        self._narrator.act(f"{held.worker} is started again")
        await self._crew.hire(held.worker)

    async def _pause(self) -> None:
        for _ in range(_REPEATS):
            await self._pause_once()
            if self._late_writes:
                return
            self._narrator.act("it was stopped just after a write: once more")

    async def _pause_once(self) -> None:
        held = await self._renewal()
        self._narrator.act(f"SIGSTOP {held.worker} in the middle of a step, past its ttl")
        self._crew.pause(held.worker)
        await self._mark(FaultKind.PAUSE, held)
        successor = await self._take_over(held)
        # Before that, the old fence would still be the highest, and no write with it would be stale.
        await self._expect(
            "a write of the new holder", lambda event: (event.kind, event.fence) == ("wrote", successor.fence)
        )
        self._narrator.act(f"SIGCONT {held.worker}: its step goes on, with fence {held.fence}")
        # Before it goes on: what it does then must not seem to have come before.
        await self._mark_end()
        self._crew.resume(held.worker)
        await self._expect(
            "the end of the paused tenure",
            lambda event: event.kind in {"lost", "released"} and event.worker == held.worker,
        )

    async def _restart(self, restart: Callable[[], None]) -> None:
        for _ in range(_REPEATS):
            held = await self._renewal()
            self._narrator.act("PostgreSQL is restarted at once, as after a crash")
            await self._mark(FaultKind.RESTART, held)
            restarting = asyncio.create_task(asyncio.to_thread(restart))
            # Its end is heard among the workers' events, which are told meanwhile.
            restarting.add_done_callback(lambda _: self._crew.report(kind="restarted"))
            await self._expect("the restart", lambda event: event.kind == "restarted")
            await restarting
            self._narrator.act("PostgreSQL is back")
            await self._mark_end()
            after = await self._renewal(since=time.monotonic())
            if after.fence == held.fence:
                return
            self._narrator.act("that took longer than the ttl: once more")

    async def _renewal(self, since: float = 0) -> Event:
        # A fault right after a renewal leaves the time until the ttl is over the same in every run.
        return await self._expect("a renewal", lambda event: event.kind == "renewed" and event.moment >= since)

    async def _take_over(self, held: Event) -> Event:
        return await self._expect(
            f"a take-over from {held.worker}",
            lambda event: event.kind == "acquired" and event.fence != held.fence,
        )

    async def _mark(self, kind: FaultKind, held: Event) -> None:
        self._faults.append(Fault(kind, held.fence, await self._server_time()))

    async def _mark_end(self) -> None:
        self._faults[-1] = replace(self._faults[-1], until=await self._server_time())

    async def _server_time(self) -> datetime:
        at: datetime = await self._pool.fetchval("SELECT clock_timestamp()")
        return at

    async def _expect(self, what: str, matches: Callable[[Event], bool]) -> Event:
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    event = await self._crew.next_event()
                    self._note(event)
                    if matches(event):
                        return event
        except TimeoutError:
            message = f"{what} did not come within {_PATIENCE:g} s"
            raise StoryError(message) from None

    def _note(self, event: Event) -> None:
        late = event.kind == "refused" or (event.kind == "wrote" and self._is_late(event))
        self._late_writes += late
        self._note_tenure(event)
        self._narrator.hear(event, late=late, writes=self._writes[event.fence])
        if event.kind == "ended" and event.worker in self._killed:
            self._killed.remove(event.worker)
        elif event.kind == "ended" and event.text != "status 0":
            message = f"{event.worker} ended by itself, with {event.text}"
            raise StoryError(message)

    def _is_late(self, event: Event) -> bool:
        # A worker may be stopped after its write was made and before it could say so: that one was in time.
        pauses = (fault for fault in self._faults if fault.kind is FaultKind.PAUSE and fault.fence == event.fence)
        return any(pause.until and event.at and event.at > pause.until for pause in pauses)

    def _note_tenure(self, event: Event) -> None:
        match event:
            case Event(kind="acquired", acquired_at=begun, expires_at=expiry) if begun and expiry:
                self._tenures.append(Tenure(event.worker, event.fence, begun, expiry, released=False))
            case Event(kind="renewed", expires_at=expiry) if expiry:
                self._amend(event, expires_at=expiry)
            case Event(kind="released"):
                self._amend(event, released=True)
            case Event(kind="lost", text=reason):
                self._amend(event, lost=reason)
            case Event(kind="wrote"):
                self._writes[event.fence] += 1
            case _:
                pass

    def _amend(self, event: Event, **changes: object) -> None:
        said_by = (event.worker, event.fence)
        self._tenures = [
            replace(tenure, **changes) if (tenure.worker, tenure.fence) == said_by else tenure  # type: ignore[arg-type]
            for tenure in self._tenures
        ]
