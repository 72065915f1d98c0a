"""An application whose job runs inside its lifespan; `test_lifespan` runs it under uvicorn."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress

import asyncpg
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from asyncpg_lease import lease
from tests.support.typing import Pool

KEY = "lifespan"


def say(what: str) -> None:
    """Tell the test how far this has come."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def job(pool: Pool) -> None:
    """Hold the key for as long as the application runs."""
    async with lease(pool, KEY, ttl=60):
        say("held")
        await asyncio.sleep(3600)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Run with no lease, with one round the `yield`, or with a job as a task, as the environment says."""
    way = os.environ["LIFESPAN"]
    async with asyncpg.create_pool(os.environ["LIFESPAN_DSN"], min_size=1, max_size=2) as pool:
        if way == "task":
            task = asyncio.create_task(job(pool))
            yield
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        else:
            async with lease(pool, KEY, ttl=60) if way == "yield" else nullcontext():
                say("held")
                yield
    say("ended")


app = FastAPI(lifespan=lifespan)


@app.get("/stream")
async def stream() -> StreamingResponse:
    """Answer without end."""

    async def numbers() -> AsyncIterator[bytes]:
        while True:
            yield b"."
            await asyncio.sleep(0.05)

    return StreamingResponse(numbers())
