"""What programs that are tested, or shown, with leases need besides: a PostgreSQL for as long as a block lasts."""

from asyncpg_lease.testing._server import EmbeddedServer, EmbeddedServerError, find_programs

__all__ = ["EmbeddedServer", "EmbeddedServerError", "find_programs"]
