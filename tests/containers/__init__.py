"""A lease on images of PostgreSQL, and what only a container lets happen to a server."""

# The image that a run is about, for every process of it.
IMAGE_VARIABLE = "ASYNCPG_LEASE_TEST_IMAGE"
