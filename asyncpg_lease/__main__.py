"""`python -m asyncpg_lease` is `asyncpg-lease`."""

from asyncpg_lease.cli import main

if __name__ == "__main__":
    main()
