"""A program that ends with a call under way, and does not close what it has opened."""

import asyncio
from contextlib import suppress

from test_client_direct import ANode, requests_from

from resourcelease.client.conversation import METHODS, Conversation
from resourcelease.client.errors import ResourceLeaseError
from resourcelease.client.lane import Lane, Runway
from resourcelease.model.direct import MAGIC


async def main() -> None:
    """Until the node has the call."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await reader.readexactly(len(MAGIC))
            async for _ in requests_from(reader):
                asked.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    node = ANode(server.sockets[0].getsockname()[1])
    runway = Runway()
    talk = Conversation(node, node, lambda *_: None, runway)  # type: ignore[arg-type]

    async def send(entries: list[bytes], oldest: float) -> list[None]:
        try:
            await talk.ask(METHODS["Enqueue"], entries[0], 10)
        except ResourceLeaseError:
            # As one does who tries again.
            await asyncio.sleep(0.01)
        return [None]

    lane: Lane[bytes, None] = Lane(send, runway)
    # Nobody hears what becomes of it.
    lane.put(b"").add_done_callback(lambda future: future.exception())
    await asked.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
