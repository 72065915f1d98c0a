"""Observers at the end of a process, and in a child that is a copy of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import pytest

from asyncpg_lease.events import Notifier
from tests.support.leasing import Recorder, assert_child_is_fine, settle
from tests.support.observers import Stuck, event

PROGRAM = """
import asyncio, logging, sys, time
from asyncpg_lease.events import Notifier, Released

def observe(event):
    time.sleep({seconds})
    print("told", event.key, flush=True)

async def main():
    for key in "abc":
        Notifier(observe).tell(Released(key=key, holder="h", fence=1, held_for=1.0))

logging.basicConfig()
asyncio.run(main())
print("over", flush=True)
sys.exit(7)
"""


def run_program(seconds: float) -> tuple[str, str, float]:
    """Run a program whose observer takes so long for an event; return its output, its log, and what its end took."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seconds=seconds)], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 7
    return done.stdout, done.stderr, time.monotonic() - started


@pytest.mark.slow("runs an interpreter to its end")
def test_exit_of_the_interpreter_waits_for_what_is_not_told_yet() -> None:
    """A program that ends right after its last events has told them all."""
    out, log, _ = run_program(0.1)
    assert out.split("\n") == ["over", "told a", "told b", "told c", ""]
    assert "lease observer" not in log


@pytest.mark.slow("runs an interpreter to its end, which waits for a second")
def test_exit_of_the_interpreter_is_held_up_for_a_second_by_an_observer_that_blocks() -> None:
    """A program ends, with its own exit code, whatever its observer does; who blocks and what is not told is logged."""
    out, log, took = run_program(300)
    assert out == "over\n"
    assert log.count("lease observer is slow: observer='__main__.observe'") == 1
    assert "lease observer was not told of all events: observer='__main__.observe'" in log
    assert "untold=3" in log  # The one under way too
    assert 1 <= took < 20


def fork(work: Callable[[], bool]) -> int:
    """Run work in a forked child, which ends without a trace; its exit code is 0 where the work returns True."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return pid


@pytest.mark.skipif(sys.platform == "win32", reason="needs os.fork")
async def test_forked_child_tells_its_own_events_and_not_its_parents() -> None:
    """A child that is forked while an observer is told, and another is idle, tells what happens in it, once."""
    stuck, recorder = Stuck(), Recorder()
    notifier = Notifier(stuck, recorder)
    notifier.tell(event(1))
    notifier.tell(event(2))
    assert recorder.events == [event(1), event(2)]
    await asyncio.to_thread(stuck.entered.wait, 5)

    def work() -> bool:
        stuck.let_go.set()
        Notifier(stuck).tell(event(3))
        notifier.tell(event(4))
        settle(stuck)
        return recorder.events[2:] == [event(4)] and stuck.told == [event(3), event(4)]

    await asyncio.to_thread(assert_child_is_fine, fork(work))
    assert recorder.events == [event(1), event(2)]
    stuck.let_go.set()
    settle(stuck)
    assert stuck.told == [event(1), event(2)]
