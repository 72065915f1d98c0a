"""What may become of a row while its holder is not looking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from tests.support.observe import Observer

Harm = Callable[[Observer], Awaitable[object]]


def harms(key: str) -> Mapping[str, tuple[Harm, str, str | None]]:
    """Return what may become of the key's tenure that began with fence 1, the loss's reason, and who has it then."""
    return {
        "taken over": (lambda observe: observe.hand_over(key), "taken_over", "other"),
        "another holder with the same fence": (lambda observe: observe.hand_over(key, fence=1), "taken_over", "other"),
        "run out": (lambda observe: observe.expire(key), "expired", None),
        "released by hand": (
            lambda observe: observe.connection.execute("UPDATE lease SET released_at = clock_timestamp()"),
            "expired",
            None,
        ),
        "deleted": (lambda observe: observe.connection.execute("DELETE FROM lease"), "deleted", None),
    }
