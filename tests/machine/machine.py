"""Random histories of several holders and keys, on a real server and on the model at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncpg_lease import Lease
from tests.machine.model import Answer, Granted, Handle, Model
from tests.machine.world import Seen, World

KEYS = ("a", "b")
REVOKES = ("revoke", "revoke_fence", "force", "force_fence")
MEANWHILE = [(), *itertools.product(("run_out", "force", "release", "renew"), ("claim", "prune", "revoke", "renew"))]
"""What may happen while a key is guarded. Not an advance, which waits for the guard's end."""


class Claim(NamedTuple):
    """Somebody claims a key, with a holder of its own (None) or a name that several handles share."""

    key: str
    holder: str | None
    rests: bool


class Act(NamedTuple):
    """A handle of a key is used, or something happens to its key: the last handle to come, or so many back."""

    key: str
    back: int
    act: str


class Together(NamedTuple):
    """Several handles renew at once, so that one statement may have several of them."""

    handles: tuple[tuple[str, int], ...]


class Write(NamedTuple):
    """A handle writes in a guarded transaction, while other things happen."""

    key: str
    back: int
    meanwhile: tuple[str, ...]


class Operate(NamedTuple):
    """An operator prunes, or has all fences advanced."""

    act: str


_HANDLES = list(itertools.product(KEYS, (0, 1, 2)))
LIKELY = list(itertools.product(KEYS, (0, 0, 1, 1, 2)))


def _acts(*acts: str) -> list[Act]:
    return [Act(key, back, act) for act in acts for key, back in LIKELY]


_CLAIMS = [Claim(*each) for each in itertools.product(KEYS, (None, "red", "red", "blue"), (False, True))]
_WRITES = [Write(*handle, meanwhile) for meanwhile in MEANWHILE for handle in LIKELY]
_TOGETHER = [Together(handles) for count in (2, 3) for handles in itertools.combinations(_HANDLES, count)]
_OPERATE = [Operate(act) for act in ("prune", "prune", "prune", "advance_fences")]

# Each kind as often as it stands here; claims often, since the others need a tenure.
KINDS: list[Sequence[Claim | Act | Together | Write | Operate]] = [
    *[_CLAIMS] * 4,
    *(_acts(act) for act in ("renew", "release", "release", "run_out", "confirm", "write_by_hand")),
    *[_acts("revoke", *REVOKES)] * 2,
    *[_WRITES] * 4,
    _TOGETHER,
    *[_OPERATE] * 2,
]
# Few choices a step, so that a history that fails is soon a short one.
STEP = st.one_of(*(st.sampled_from(kind) for kind in KINDS))


@dataclass(slots=True)
class Grip:
    """A lease, and what the model knows of it."""

    held: Lease
    handle: Handle


class LeaseMachine(RuleBasedStateMachine):
    """One history: every step is a call on the server and on the model, and then all rows are looked at.

    Steps are values of one rule: with a rule for each kind hypothesis leaves some out of each history, and one without
    claims, or in which nothing ends, shows little.
    """

    def __init__(self, runner: asyncio.Runner, world: World) -> None:
        super().__init__()
        self.run = runner.run
        self.world = world
        self.model = Model()
        self.grips: dict[str, list[Grip]] = {key: [] for key in KEYS}
        self.highest = dict.fromkeys(KEYS, 0)
        self.before: dict[str, Seen] = {}
        self.run(world.clear())

    def teardown(self) -> None:
        """Leave every lease."""
        for grip in itertools.chain(*self.grips.values()):
            self.run(grip.held.release())

    # What may happen ------------------------------------------------------------------------------

    @rule(step=STEP)
    def step(self, step: Claim | Act | Together | Write | Operate) -> None:
        """Something happens."""
        self.run(self._step(step))
        self.model.guarded.clear()

    # What must be so ------------------------------------------------------------------------------

    @invariant()
    def rows_say_what_the_model_says(self) -> None:
        """Each key has what the rules give it, and whatever the step was not about is the same version of its row."""
        seen = self.run(self.world.look())
        rows = {
            key: (row.holder, row.fence, row.state, row.released, row.revoked) for key, row in self.model.rows.items()
        }
        shown = {key: row[:5] for key, row in seen.items() if key}
        assert shown == rows, f"the rows are {shown}, the rules' {rows}"
        assert (seen[""].fence if "" in seen else None) == self.model.floor
        # G4, and the half of G6 that can be seen.
        for key in {*seen, *self.before} - self.model.changed:
            assert seen.get(key) == self.before.get(key), f"the row of {key!r} was touched"
        for key in seen.keys() & self.before.keys():
            assert seen[key].fence >= self.before[key].fence
        accepted = self.run(self.world.accepted())
        assert {key: fences[-1] for key, fences in accepted.items()} == self.model.written
        # Over the whole history, whatever the model says.
        assert all(fences == sorted(fences) for fences in accepted.values()), f"a fence fell: {accepted}"
        self.before = seen
        self.model.changed = set()

    # The steps ------------------------------------------------------------------------------------

    async def _step(self, step: Claim | Act | Together | Write | Operate) -> None:
        match step:
            case Claim(key, holder, rests):
                await self._claim(key, holder, rests=rests)
            case Act(key, back, act):
                for grip in self._find(key, back):
                    await self._act(grip, act)
            case Together(handles):
                await self._renew_together([grip for handle in handles for grip in self._find(*handle)])
            case Write(key, back, acts):
                for grip in self._find(key, back):
                    await self._write(grip, acts)
            case Operate(act):
                await self._operate(act)

    async def _claim(self, key: str, holder: str | None, *, rests: bool) -> None:
        incumbent = (await self.world.look()).get(key)
        answer, held = await self.world.claim(key, holder, rests=rests)
        self._take(Claim(key, holder, rests), incumbent, answer, held)

    def _take(self, claim: Claim, incumbent: Seen | None, answer: Answer, held: Lease | None) -> None:
        """Look at the answer to a claim, and keep the handle."""
        key, holder, rests = claim
        if isinstance(answer, Granted):
            # G1, as the server saw it, and G2, of all that was ever granted for the key: whatever the model says.
            assert answer.joined or incumbent is None or incumbent.state == "free", f"granted beside {incumbent}"
            assert answer.fence + answer.joined > self.highest[key], f"granted after {self.highest[key]}"
            self.highest[key] = answer.fence
        name = holder or ("" if held is None else held.holder)
        self._agree(answer, self.model.claim(key, name))
        if held is not None:
            self.grips[key].append(Grip(held, Handle(key, name, held.fence, began=not held.joined, rests=rests)))

    def _find(self, key: str, back: int) -> list[Grip]:
        """Return the handle of a key that so many others came after; none where the key has had none."""
        grips = self.grips[key]
        return [grips[-1 - back % len(grips)]] if grips else []

    async def _renew_together(self, grips: list[Grip]) -> None:
        answers = await self.world.renew_together([grip.held for grip in grips])
        for grip, answer in zip(grips, answers, strict=True):
            self._agree(answer, self.model.renew(grip.handle))

    async def _write(self, grip: Grip, acts: tuple[str, ...]) -> None:
        async def meanwhile() -> None:
            self._agree("written", self.model.write(grip.handle))
            for act in acts:
                await self._act(grip, act)

        answer = await self.world.write(grip.held, meanwhile)
        if not self.model.guarded:
            self._agree(answer, self.model.write(grip.handle))

    async def _act(self, grip: Grip, act: str) -> None:
        """Do something with a handle, or with its key."""
        held, handle, world, model = grip.held, grip.handle, self.world, self.model
        if act == "claim":
            await self._claim(handle.key, None, rests=False)
        elif act == "prune":
            await self._operate(act)
        elif act == "run_out":
            if handle.key in model.rows and model.rows[handle.key].state != "free":
                self._agree(await world.run_out(handle.key), model.run_out(handle.key))
        elif act in REVOKES:
            fence = handle.fence if act.endswith("fence") else None
            force = act.startswith("force")
            answer = await world.revoke(handle.key, fence, force=force)
            self._agree(answer, model.revoke(handle.key, fence, force=force))
        else:
            self._agree(await getattr(world, act)(held), getattr(model, act)(handle))
            assert world.facts(held) == model.facts(handle)

    async def _operate(self, act: str) -> None:
        if act == "advance_fences":
            self._agree(await self.world.advance_fences(5), self.model.advance_fences(5))
        # The first prune waits for the transactions that are open, and so would wait for its own guard.
        elif self.model.floor is not None or not self.model.guarded:
            self._agree(await self.world.prune(), self.model.prune())

    def _agree(self, answer: Answer, expected: Answer) -> None:
        assert answer == expected, f"the server's answer is {answer}, the rules' {expected}"
