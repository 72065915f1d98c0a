"""The test suite: it runs against the installed package and a real PostgreSQL."""
