"""Ends of asyncio tasks."""

import asyncio
from typing import Any


async def cancel_and_wait(*tasks: "asyncio.Future[Any]") -> None:
    """End tasks whose results nobody needs; they have ended when this returns."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
