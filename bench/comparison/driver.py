"""A client process: ``python -m bench.comparison.driver PEER``. It takes an order a line, as JSON, and answers each.

``open`` connects and makes workers, ``closed`` and ``steady`` are loads, ``fill`` adds a backlog, ``depth`` counts,
``hammer``, ``first_after`` and ``rest`` are for failover, ``books`` gives the ledger.
"""

import asyncio
import json
import signal
import sys
import time
import traceback
from typing import Any

from bench.comparison.ledger import Ledger, numbers
from bench.comparison.load import Load
from bench.peers import PEERS
from bench.peers.base import Session
from bench.processes import die_with_parent

__all__ = ["FILL_CLIENT", "main"]

# Numbers of a backlog are nobody's count of a load.
FILL_CLIENT = 1 << 12
_FILL_PART = 20_000
_LINE_BYTES = 1 << 26


class Driver:
    """What the orders act on."""

    def __init__(self, peer: str) -> None:
        self._peer = PEERS[peer]
        self._session: Session | None = None
        self._load: Load | None = None
        self._ledger = Ledger(0)
        self._filled = 0

    async def do(self, order: dict[str, Any]) -> Any:
        """One order."""
        return await getattr(self, f"_do_{order.pop('do')}")(**order)

    async def _do_open(self, connect: dict[str, Any], client: int, workers: int, batch: int) -> Any:
        self._session = await self._peer.session(connect, workers, batch)
        self._ledger = Ledger(client)
        self._load = Load(self._session, self._ledger, client)
        await self._load.prepare(workers)
        return {}

    async def _do_closed(self, workers: int, batch: int, warm: float, seconds: float) -> Any:
        assert self._load is not None
        await self._load.prepare(workers)
        return await self._load.closed(workers, batch, warm, seconds)

    async def _do_steady(self, workers: int, rate: float, warm: float, seconds: float) -> Any:
        assert self._load is not None
        return await self._load.steady(workers, rate, warm, seconds)

    async def _do_fill(self, items: int, seconds: float) -> Any:
        """Up to so many items in all; fewer if they do not go in in time."""
        assert self._session is not None
        begun = time.monotonic()
        while self._filled < items and time.monotonic() - begun < seconds:
            many = min(_FILL_PART, items - self._filled)
            await self._session.fill(numbers(FILL_CLIENT, self._filled, many))
            self._filled += many
        return {"items": self._filled, "seconds": time.monotonic() - begun}

    async def _do_depth(self) -> Any:
        assert self._session is not None
        return {"depth": await self._session.depth()}

    async def _do_hammer(self) -> Any:
        assert self._load is not None
        await self._load.hammer()
        return {}

    async def _do_first_after(self, moment: float) -> Any:
        """The first step, and the first whole life, that began after a moment and was confirmed."""
        assert self._load is not None
        steps = [end for begun, end in self._load.successes if begun >= moment]
        lives = [end for begun, end in self._load.lives if begun >= moment]
        return {"step": min(steps, default=None), "life": min(lives, default=None)}

    async def _do_rest(self, drain: float) -> Any:
        assert self._load is not None
        await self._load.rest()
        await self._load.drain(drain)
        return {"errors": self._load.errors}

    async def _do_books(self) -> Any:
        return self._ledger.summary()

    async def close(self) -> None:
        """The session's end."""
        if self._session is not None:
            await self._session.close()


async def _serve(peer: str) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    driver = Driver(peer)
    while line := await orders.readline():
        try:
            answer = await driver.do(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {_root(error)}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await driver.close()


def _root(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> None:
    """Until its orders end."""
    die_with_parent()
    # Ctrl-C goes to the whole group; who gives the orders ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loops: dict[str, Any] = {}
    if "--uvloop" in sys.argv:
        loops["loop_factory"] = __import__("uvloop").new_event_loop
    with asyncio.Runner(**loops) as runner:
        runner.run(_serve(sys.argv[1]))


if __name__ == "__main__":
    main()
