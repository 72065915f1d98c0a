"""Random histories in which answers are lost, links break, statements are refused, and claims are cancelled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.machine.faults import LABEL, Fault, FaultyWorld
from tests.machine.machine import KEYS, KINDS, LIKELY, Act, Claim, Grip, LeaseMachine, Operate, Together, Write
from tests.machine.world import Seen

FAULTS: tuple[Fault, ...] = ("unheard", "unheard", "reset", "terminated", "refused")
TURNS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 35, 40, 50, 60)
"""After how many turns of the loop a claim is cancelled: a round trip through the proxy takes a few dozen."""


class FaultyClaim(NamedTuple):
    """A claim fails."""

    key: str
    holder: str | None
    fault: Fault


class CancelledClaim(NamedTuple):
    """A claim is cancelled."""

    key: str
    holder: str | None
    turns: int


class FaultyAct(NamedTuple):
    """A renewal or a release of a handle fails."""

    key: str
    back: int
    act: str
    fault: Fault


_HOLDERS = (None, None, "red", "blue")
_CLAIMS = [FaultyClaim(*each) for each in itertools.product(KEYS, _HOLDERS, FAULTS)]
_CANCELLED = [CancelledClaim(*each) for each in itertools.product(KEYS, _HOLDERS, TURNS)]
_ACTS = {
    act: [FaultyAct(*handle, act, fault) for handle in LIKELY for fault in FAULTS]
    for act in ("renew_in_vain", "release_again")
}
_FAULTY: list[Sequence[FaultyClaim | CancelledClaim | FaultyAct]] = [_CLAIMS, _CANCELLED, *_ACTS.values()]
STEP = st.one_of(*(st.sampled_from(kind) for kind in KINDS), *(st.sampled_from(kind) for kind in _FAULTY))


class FaultyMachine(LeaseMachine):
    """One history in a world that is not safe."""

    def __init__(self, runner: asyncio.Runner, world: FaultyWorld) -> None:
        super().__init__(runner, world)
        self.faulty = world

    @rule(step=STEP)
    def step(self, step: Claim | Act | Together | Write | Operate | FaultyClaim | CancelledClaim | FaultyAct) -> None:
        """Something happens, or goes wrong."""
        match step:
            case FaultyClaim(key, holder, fault):
                self.run(self._claim_in_vain(key, holder, fault))
            case CancelledClaim(key, holder, turns):
                self.run(self._cancel(key, holder, turns))
            case FaultyAct(key, back, act, fault):
                for grip in self._find(key, back):
                    self.run(getattr(self, f"_{act}")(grip, fault))
            case _:
                self.run(self._step(step))
        self.model.guarded.clear()

    async def _claim_in_vain(self, key: str, holder: str | None, fault: Fault) -> None:
        incumbent = await self._seen(key)
        answer = await self.faulty.claim_in_vain(key, holder, fault)
        expected = "failed"
        if fault == "unheard":
            name = holder or self._newcomer(incumbent, await self._seen(key))
            self._agree(expected, self.model.claim_unheard(key, name, named=holder is not None))
            self._note(key)
        self._agree(answer, expected)

    async def _cancel(self, key: str, holder: str | None, turns: int) -> None:
        incumbent = await self._seen(key)
        answer, held = await self.faulty.claim_cancelled(key, holder, turns)
        if answer == "cancelled":
            seen = await self._seen(key)
            name = holder or self._newcomer(incumbent, seen)
            self._agree(answer, self.model.claim_cancelled(key, name, came=seen != incumbent))
            self._note(key)
        else:
            self._take(Claim(key, holder, rests=False), incumbent, answer, held)

    async def _renew_in_vain(self, grip: Grip, fault: Fault) -> None:
        if self.model.known(grip.handle) is None:
            expect = self.model.renew_unheard if fault == "unheard" else self.model.renew_failed
            self._agree(await self.faulty.renew_in_vain(grip.held, fault), expect(grip.handle))
            assert self.faulty.facts(grip.held) == self.model.facts(grip.handle)

    async def _release_again(self, grip: Grip, fault: Fault) -> None:
        if self.model.known(grip.handle) is None and grip.handle.began:
            self._agree(await self.faulty.release_again(grip.held, fault), self.model.release(grip.handle))
            assert self.faulty.facts(grip.held) == self.model.facts(grip.handle)

    async def _seen(self, key: str) -> Seen | None:
        return (await self.faulty.look()).get(key)

    def _newcomer(self, before: Seen | None, after: Seen | None) -> str:
        """Return the fresh holder of a claim that came to nothing, if it came so far."""
        if after is None or (before is not None and before.holder == after.holder):
            return "nobody"
        assert after.holder.startswith(f"{LABEL}/"), f"{after.holder} has not claimed it"
        return after.holder

    def _note(self, key: str) -> None:
        """Take note of the fence that nobody heard of: no later tenure may have it."""
        row = self.model.rows.get(key)
        self.highest[key] = max(self.highest[key], 0 if row is None else row.fence)
