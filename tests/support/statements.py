"""By what part of its SQL a statement of the library's is known, for the proxy."""

from __future__ import annotations

CLAIM = "), mine AS ("
RENEW = "WITH asked AS"
RELEASE = "WITH released AS ("
# What asyncpg sends when a connection goes back to its pool.
RESET = "pg_advisory_unlock_all"
