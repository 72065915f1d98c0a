"""Random histories of several holders and keys, on a real server and on the model at once."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from asyncpg_lease import Lease
from tests.machine.model import Answer, Granted, Handle, Model
from tests.machine.world import Seen, World, world
from tests.support.loops import chosen_factory

KEYS = ("a", "b")
KEY = st.sampled_from(KEYS)
BACK = st.sampled_from([0, 0, 1, 2])
"""Which of a key's handles: the last one to come, or one before it."""

HOLDER = st.sampled_from([None, "red", "red", "blue"])
"""A holder of its own, or a name that several handles share."""

MEANWHILE = ("claim", "prune", "renew", "release", "run_out", "revoke", "force")
"""What may happen while a key is guarded. Not an advance, which waits for the guard's end."""

STEPS = 40


@dataclass(slots=True)
class Grip:
    """A lease, and what the model knows of it."""

    held: Lease
    handle: Handle


def _is_known(machine: LeaseMachine) -> bool:
    """Tell whether there is a key that something can happen to."""
    return bool(machine.model.rows)


def _is_free(machine: LeaseMachine) -> bool:
    """Tell whether there is something to prune."""
    return any(row.state == "free" for row in machine.model.rows.values())


class LeaseMachine(RuleBasedStateMachine):
    """One history: every step is a call on the server and on the model, and then all rows are looked at."""

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

    @rule(key=KEY, holder=HOLDER, rests=st.booleans())
    def claim(self, key: str, holder: str | None, rests: bool) -> None:
        """Somebody claims a key."""
        self.run(self._claim(key, holder, rests=rests))

    @precondition(_is_known)
    @rule(key=KEY, back=BACK)
    def renew(self, key: str, back: int) -> None:
        """A handle renews, whatever has become of its tenure."""
        self._for(key, back, "renew")

    @precondition(_is_known)
    @rule(key=KEY, back=BACK)
    def release(self, key: str, back: int) -> None:
        """A handle releases."""
        self._for(key, back, "release")

    @precondition(_is_known)
    @rule(key=KEY, back=BACK, act=st.sampled_from(["verify", "write_by_hand"]))
    def go_on(self, key: str, back: int, act: str) -> None:
        """A handle asks the server, or writes without asking anybody."""
        self._for(key, back, act)
        assert self.run(self.world.written()) == self.model.written

    @precondition(_is_known)
    @rule(handles=st.lists(st.tuples(KEY, BACK), min_size=2, max_size=4, unique=True))
    def renew_together(self, handles: list[tuple[str, int]]) -> None:
        """Several handles renew at once, so that one statement may have several of them."""
        grips = [grip for key, back in handles for grip in self._find(key, back)]
        answers = self.run(self.world.renew_together([grip.held for grip in grips]))
        for grip, answer in zip(grips, answers, strict=True):
            self._agree(answer, self.model.renew(grip.handle))

    @precondition(_is_known)
    @rule(key=KEY, back=BACK, acts=st.lists(st.sampled_from(MEANWHILE), max_size=3))
    def write(self, key: str, back: int, acts: list[str]) -> None:
        """A handle writes in a guarded transaction, while other things happen."""
        for grip in self._find(key, back):
            self.run(self._write(grip, acts))
            self.model.guarded.clear()
            assert self.run(self.world.written()) == self.model.written

    @precondition(_is_known)
    @rule(key=KEY)
    def run_out(self, key: str) -> None:
        """The time of a key's tenure passes, or that of its min_hold."""
        self._for(key, 0, "run_out")

    @precondition(_is_known)
    @rule(key=KEY, back=BACK, act=st.sampled_from(["revoke", "revoke", "revoke_fence", "force", "force_fence"]))
    def revoke(self, key: str, back: int, act: str) -> None:
        """An operator wants a key's tenure to end, or that of a handle."""
        self._for(key, back, act)

    @precondition(_is_free)
    @rule(act=st.sampled_from(["prune", "prune", "prune", "advance_fences"]))
    def operate(self, act: str) -> None:
        """An operator prunes, or has all fences advanced."""
        self.run(self._operate(act))

    # What must be so ------------------------------------------------------------------------------

    @invariant()
    def rows_say_what_the_model_says(self) -> None:
        """Each key has what the rules give it, and whatever the step was not about is the same version of its row."""
        seen = self.run(self.world.look())
        rows = {
            key: (row.holder, row.fence, row.state, row.released, row.revoked) for key, row in self.model.rows.items()
        }
        assert {key: row[:5] for key, row in seen.items() if key} == rows
        assert (seen[""].fence if "" in seen else None) == self.model.floor
        # G4, and the half of G6 that can be seen.
        for key in {*seen, *self.before} - self.model.changed:
            assert seen.get(key) == self.before.get(key), f"the row of {key!r} was touched"
        for key in seen.keys() & self.before.keys():
            assert seen[key].fence >= self.before[key].fence
        self.before = seen
        self.model.changed = set()

    # The steps ------------------------------------------------------------------------------------

    async def _claim(self, key: str, holder: str | None, *, rests: bool) -> None:
        incumbent = (await self.world.look()).get(key)
        answer, held = await self.world.claim(key, holder, rests=rests)
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

    def _for(self, key: str, back: int, act: str) -> None:
        for grip in self._find(key, back):
            self.run(self._act(grip, act))

    async def _write(self, grip: Grip, acts: list[str]) -> None:
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
        elif act in {"revoke", "revoke_fence", "force", "force_fence"}:
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


def run_histories(dsn: str, *, number: int, of_seed: int, shrink: bool) -> None:
    """Run so many histories on an empty database; the same seed makes the same ones.

    Args:
        dsn: the database.
        number: how many.
        of_seed: what they are made of.
        shrink: whether a history that fails is made as short as it can be, which takes its time.

    Raises:
        AssertionError: a history broke a rule; its steps have been printed.
    """
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    chosen = settings(
        max_examples=number,
        stateful_step_count=STEPS,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    with asyncio.Runner(loop_factory=chosen_factory()) as runner:
        context = world(dsn)
        opened = runner.run(context.__aenter__())
        try:
            machine: Any = seed(of_seed)(lambda: LeaseMachine(runner, opened))
            run_state_machine_as_test(machine, settings=chosen)
        finally:
            runner.run(context.__aexit__(None, None, None))
