"""Running a coroutine so that a signal ends it in order, with the status that shells expect."""

import asyncio
import signal
from collections.abc import Coroutine

# By name, since Windows has no hang-up.
_SIGNALS = [number for number in signal.Signals if number.name in {"SIGINT", "SIGTERM", "SIGHUP"}]


def run_until_signalled(work: Coroutine[object, object, int]) -> int:
    """Run it to its end, and return its result; a signal cancels it and the result is 128 + signal."""
    return asyncio.run(_guard(work))


async def _guard(work: Coroutine[object, object, int]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work)
    caught: list[int] = []

    def stop(signum: int) -> None:
        # Once only: a second Ctrl-C must not cut the tidying up short.
        if not caught:
            task.cancel()
        caught.append(signum)

    for signum in _SIGNALS:
        # Under nohup a hang-up stays ignored.
        if signum.name != "SIGHUP" or signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, stop, signum)
    try:
        status = await task
    except asyncio.CancelledError:
        if not caught:
            raise
    else:
        if not caught:
            return status
    return 128 + caught[0]
