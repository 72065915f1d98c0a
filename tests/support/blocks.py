"""Python blocks of documents, run as a reader would type them."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
from collections.abc import Awaitable
from types import FunctionType

from sybil import Document, Example
from sybil.evaluators.python import pad


class Evaluator:
    """Runs a block; one that awaits at its top level runs on the document's event loop."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def __call__(self, example: Example) -> None:
        """Run one block in the document's namespace."""
        source = pad(example.parsed, example.line + example.parsed.line_offset)
        code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        # As exec() gives every module: an extension that imports looks there.
        example.namespace.setdefault("__builtins__", builtins)
        outcome = FunctionType(code, example.namespace)()
        if inspect.isawaitable(outcome):
            self._runner.run(_wait(outcome))


async def _wait(outcome: Awaitable[object]) -> None:
    await outcome


def evaluate(document: Document) -> int:
    """Run all blocks of a document in order and return how many there were."""
    count = 0
    for example in document.examples():
        example.evaluate()
        count += 1
    return count
