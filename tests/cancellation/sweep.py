"""One use of a lease that is cancelled in one of the ways that there are, at one of the moments that there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from tests.cancellation.turns import Turns
from tests.cancellation.uses import Stage, Use
from tests.support.leasing import here, spin
from tests.support.observe import Observer

EACH_TURN = 150
"""Up to so many turns a sweep leaves none out where a loop turns while it waits; later ones are such waits."""

TURNS_UNTIL_MET = {"timeout": 2, "scope": 1, "group": 4, "own_group": 3, "anyio_group": 3}
"""In how many turns a request gets to the task that is asked, at the most; one by hand is there at once."""


class SiblingError(Exception):
    """What another task of a group fails with."""


# How it is cancelled --------------------------------------------------------------------------------


class Trial:
    """One use that is cancelled in one way, and what came out of it.

    Attributes:
        outcome: "none" until the use has ended, then what came out of it.
        cancelling: Cancellations that its task was left with.
        requests: How often the task was cancelled by hand.
        asked: After how many turns of the loop it was cancelled, None: it was not.
    """

    def __init__(self, way: str, use: Use, stage: Stage, turns: Turns) -> None:
        self.outcome = "none"
        self.cancelling = 0
        self.requests = 0
        self.asked: int | None = None
        self._ended: int | None = None
        self._way = way
        self._use = use
        self._stage = stage
        self._turns = turns
        self._means: Callable[[], object] = self._by_hand
        self._failing: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        stage.begun = False
        self.task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        """Cancel the use in its way, unless it has ended."""
        if self.outcome == "none":
            self.asked = self._turns.count
            self._means()
            if self._way == "at_once":
                self._means()
            elif self._way == "twice":
                asyncio.get_running_loop().call_soon(self._again)

    async def wait(self) -> None:
        """Wait for its end."""
        async with asyncio.timeout(10):
            await asyncio.wait([self.task])

    def expect_right_end(self, when: object) -> None:
        """Fail unless what came out of the use is its cancellation, and the task is as it was."""
        assert not self.task.cancelled(), f"a cancellation was left over: {self._way}, {when}"
        self.task.result()
        expected = {"done"} if self.asked is None else {"cancelled" if self.requests else self._way}
        if self._may_have_been_late():
            expected.add("done")
        assert self.outcome in expected, f"{self.outcome}: {self._way}, {when}"
        assert self.cancelling == self.requests, f"{self._way}, {when}"

    def _may_have_been_late(self) -> bool:
        """Tell whether the use was over by the time in which a timeout, a scope or a group could have it cancelled."""
        if self.asked is None or self._ended is None or self.requests:
            return False
        return self._ended <= self.asked + TURNS_UNTIL_MET[self._way]

    async def _run(self) -> None:
        try:
            self.outcome = await WAYS[self._way](self)
        except asyncio.CancelledError:
            self.outcome = "cancelled"
        except TimeoutError:
            self.outcome = "timeout"
        except BaseExceptionGroup as group:
            alone = len(group.exceptions) == 1 and isinstance(group.exceptions[0], SiblingError)
            self.outcome = self._way if alone else repr(group)
        self.cancelling = here().cancelling()
        # A cancellation that was left over would come out of one of these.
        await spin(3)

    async def _used(self) -> None:
        await self._use(self._stage)
        self._ended = self._turns.count
        await spin(2)

    def _again(self) -> None:
        if self.outcome == "none":
            self._means()

    def _by_hand(self) -> None:
        self.requests += self.task.cancel()

    async def by_hand(self) -> str:
        """Be cancelled by Task.cancel()."""
        await self._used()
        return "done"

    async def by_timeout(self) -> str:
        """Be cancelled by asyncio.timeout()."""
        async with asyncio.timeout(None) as timeout:
            self._means = lambda: timeout.reschedule(0)
            await self._used()
        return "done"

    async def by_scope(self) -> str:
        """Be cancelled by anyio, which does so again at every await."""
        with anyio.CancelScope() as scope:
            self._means = scope.cancel
            await self._used()
        return "scope" if scope.cancelled_caught else "done"

    async def by_group(self) -> str:
        """Be cancelled as one task of a group, because another one fails."""
        async with asyncio.TaskGroup() as group:
            sibling = group.create_task(self._sibling())
            self._means = self._fail_sibling
            await group.create_task(self._used())
            await self._spare(sibling)
        return "done"

    async def by_group_of_its_own(self) -> str:
        """Be cancelled as the body of a group, because a task of it fails."""
        async with asyncio.TaskGroup() as group:
            sibling = group.create_task(self._sibling())
            self._means = self._fail_sibling
            await self._used()
            await self._spare(sibling)
        return "done"

    async def by_group_of_anyio(self) -> str:
        """Be cancelled as the body of anyio's group."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._sibling)
            self._means = self._fail_sibling
            await self._used()
            self._settle(fails=False)
        return "done"

    async def _sibling(self) -> None:
        if await self._failing:
            raise SiblingError

    def _fail_sibling(self) -> None:
        self._settle(fails=True)

    async def _spare(self, sibling: asyncio.Task[None]) -> None:
        """End a sibling that has not failed; one that has does so in the body still.

        Up to Python 3.12 a task that fails while its group waits for the last of them leaves the group's own task
        marked as cancelled, whatever it did.
        """
        self._settle(fails=False)
        await asyncio.wait([sibling])

    def _settle(self, *, fails: bool) -> None:
        if not self._failing.done():
            self._failing.set_result(fails)


WAYS: Mapping[str, Callable[[Trial], Awaitable[str]]] = {
    "cancel": Trial.by_hand,
    "at_once": Trial.by_hand,
    "twice": Trial.by_hand,
    "timeout": Trial.by_timeout,
    "scope": Trial.by_scope,
    "group": Trial.by_group,
    "own_group": Trial.by_group_of_its_own,
    "anyio_group": Trial.by_group_of_anyio,
}


# When it is cancelled -------------------------------------------------------------------------------


async def sweep_delays(way: str, use: Use, stages: Sequence[Stage], length: float, observe: Observer) -> int:
    """Cancel a use on every stage, all at once, each at another point of the seconds that it takes at least.

    Returns:
        How many uses were cancelled.
    """

    async def run(number: int, stage: Stage) -> bool:
        trial = Trial(way, use, stage, turns)
        while not stage.begun:
            await asyncio.sleep(0.001)
        await asyncio.sleep(length * (number + 0.5) / len(stages))
        trial.cancel()
        await trial.wait()
        trial.expect_right_end(f"{number} of {len(stages)}")
        return trial.asked is not None

    with Turns() as turns:
        hits = await asyncio.gather(*(run(number, stage) for number, stage in enumerate(stages)))
    # What somebody else has to wait for comes first.
    for stage in stages:
        await stage.expect_free(observe)
    await asyncio.gather(*(stage.expect_nothing_left() for stage in stages))
    return sum(hits)


async def sweep_turns(
    way: str, use: Use, make_stage: Callable[[], Awaitable[Stage]], observe: Observer, *, every: int = 1
) -> int:
    """Cancel a use after 0, 1, 2 ... turns of the loop, until it has come to its end before three times in a row.

    With `every` above 1 some turns are left out, others in each way: in all ways together it leaves out none.

    Returns:
        How many uses were cancelled.
    """
    hits = completed = 0
    number = list(WAYS).index(way) % every
    with Turns() as turns:
        while completed < 3:
            stage = await make_stage()
            trial = Trial(way, use, stage, turns)
            turns.callback = _CancelAfter(number, trial, stage)
            await trial.wait()
            turns.callback = None
            trial.expect_right_end(f"turn {number}")
            hits, completed = (hits + 1, 0) if trial.asked is not None else (hits, completed + 1)
            await stage.expect_free(observe)
            await stage.expect_nothing_left()
            number += every if turns.few or number < EACH_TURN else number // 10
    return hits


class _CancelAfter:
    """Cancels a trial after so many turns from where it has begun."""

    def __init__(self, turns: int, trial: Trial, stage: Stage) -> None:
        self._left = turns
        self._trial = trial
        self._stage = stage

    def __call__(self) -> None:
        if self._stage.begun:
            if self._left == 0:
                self._trial.cancel()
            self._left -= 1
