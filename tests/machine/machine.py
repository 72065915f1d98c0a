"""Random histories of several holders and keys, on a real server and on the model at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from asyncpg_lease import Lease
from tests.machine.model import Answer, Granted, Handle, Model
from tests.machine.world import Seen, World, world
from tests.support.loops import chosen_factory

KEYS = ("a", "b", "c")
KEY = st.sampled_from(KEYS)
HOLDER = st.sampled_from([None, None, "red", "blue"])
"""A holder of its own, or a name that several handles share."""

STEPS = 40


@dataclass(slots=True)
class Grip:
    """A lease, and what the model knows of it."""

    held: Lease
    handle: Handle


class LeaseMachine(RuleBasedStateMachine):
    """One history: every step is a call on the server and on the model, and then all rows are looked at."""

    grips = Bundle("grips")

    def __init__(self, runner: asyncio.Runner, world: World) -> None:
        super().__init__()
        self.run = runner.run
        self.world = world
        self.model = Model()
        self.taken: list[Grip] = []
        self.highest: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.run(world.clear())
        self.before: dict[str, Seen] = {}

    def teardown(self) -> None:
        """Leave every lease."""
        for grip in self.taken:
            self.run(grip.held.release())

    # What may happen ------------------------------------------------------------------------------

    @rule(target=grips, key=KEY, holder=HOLDER, rests=st.booleans())
    def claim(self, key: str, holder: str | None, rests: bool) -> object:
        """Somebody claims a key."""
        return self._claim(key, holder, rests=rests)

    @rule(grip=grips)
    def renew(self, grip: Grip) -> None:
        """A handle renews."""
        self._agree(self.run(self.world.renew(grip.held)), self.model.renew(grip.handle))

    @rule(grip=grips)
    def verify(self, grip: Grip) -> None:
        """A handle asks."""
        self._agree(self.run(self.world.verify(grip.held)), self.model.verify(grip.handle))

    @rule(grip=grips)
    def release(self, grip: Grip) -> None:
        """A handle releases."""
        self._agree(self.run(self.world.release(grip.held)), self.model.release(grip.handle))

    @rule(grips=st.lists(grips, min_size=2, max_size=4, unique_by=id))
    def renew_together(self, grips: list[Grip]) -> None:
        """Several handles renew at once, so that one statement may have several of them."""
        answers = self.run(self.world.renew_together([grip.held for grip in grips]))
        changed = set[str]()
        for grip, answer in zip(grips, answers, strict=True):
            self._agree(answer, self.model.renew(grip.handle))
            changed |= self.model.changed
        self.model.changed = changed

    @rule(grip=grips)
    def run_out(self, grip: Grip) -> None:
        """The time of a key's last tenure passes, or that of its min_hold."""
        key = grip.handle.key
        if self.model.rows[key].state != "free":
            self._agree(self.run(self.world.run_out(key)), self.model.run_out(key))

    @rule(grip=grips)
    def write(self, grip: Grip) -> None:
        """A handle writes in a guarded transaction."""
        self._agree(self.run(self.world.write(grip.held)), self.model.write(grip.handle))

    @rule(grip=grips)
    def write_by_hand(self, grip: Grip) -> None:
        """A handle writes without asking, whatever became of its lease."""
        self._agree(self.run(self.world.write_by_hand(grip.held)), self.model.write_by_hand(grip.handle))

    # What must be so ------------------------------------------------------------------------------

    @invariant()
    def rows_say_what_the_model_says(self) -> None:
        """Each key has the holder, the fence and the state that the rules give it, and what was written the fence."""
        seen = self.run(self.world.look())
        told = {key: (row.holder, row.fence, row.state, row.released) for key, row in self.model.rows.items()}
        assert {key: row[:4] for key, row in seen.items()} == told
        assert self.run(self.world.written()) == self.model.written
        # G4, and the half of G6 that can be seen: whatever the call was not about is the same version of the same row.
        for key in {*seen, *self.before} - self.model.changed:
            assert seen.get(key) == self.before.get(key), f"the row of {key!r} was touched"
        self.before = seen
        self.model.changed = set()

    def _claim(self, key: str, holder: str | None, *, rests: bool) -> object:
        answer, held = self.run(self.world.claim(key, holder, rests=rests))
        name = holder or (held.holder if held is not None else "someone else")
        incumbent = self.before.get(key)
        if isinstance(answer, Granted) and not answer.joined:
            # G1, as the server saw it, whatever the model says.
            assert incumbent is None or incumbent.state == "free", f"{key!r} was granted beside {incumbent}"
            # G2: of all that were ever granted, whatever has become of the row since.
            assert answer.fence > self.highest[key], (
                f"{key!r} was granted with {answer.fence} after {self.highest[key]}"
            )
            self.highest[key] = answer.fence
        self._agree(answer, self.model.claim(key, name))
        if held is None:
            return multiple()
        grip = Grip(held, Handle(key, name, held.fence, began=not held.joined, rests=rests))
        self.taken.append(grip)
        return grip

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
