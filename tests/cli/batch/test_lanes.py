"""Side by side or alone: whoever is alone is so, and nobody waits for ever."""

import asyncio
import random

from legato.cli.batch.lanes import Lanes


def test_alone_is_alone_and_all_come_through() -> None:
    async def work(lanes: Lanes, running: list[str], kind: str, num_pauses: int) -> None:
        async with lanes.alone() if kind == "alone" else lanes.side_by_side():
            running.append(kind)
            assert "alone" not in running or len(running) == 1
            for _ in range(num_pauses):
                await asyncio.sleep(0)
            assert "alone" not in running or len(running) == 1
            running.remove(kind)

    async def run(seed: int) -> None:
        rng, lanes, running = random.Random(seed), Lanes(), list[str]()
        kinds = rng.choices(["alone", "beside"], [1, 4], k=200)
        async with asyncio.timeout(30):
            await asyncio.gather(*(work(lanes, running, kind, rng.randrange(4)) for kind in kinds))

    for seed in range(3):
        asyncio.run(run(seed))


def test_cancelled_wait_to_be_alone_holds_up_nobody() -> None:
    async def run() -> None:
        lanes = Lanes()
        async with lanes.side_by_side():
            waiting = asyncio.create_task(lanes.alone().__aenter__())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            async with asyncio.timeout(30), lanes.side_by_side():
                pass

    asyncio.run(run())
