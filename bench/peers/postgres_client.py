"""The queue in a table, as asyncpg's users write it: one statement a step, arrays for lists."""

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.peers.base import LEASE_SECONDS, Claim, Refused, Worker, body_of, number_of, optional

__all__ = ["SCHEMA", "PostgresSession"]

# Completed rows leave at once, so that the index stays as short as the queue; vacuum is as eager as the table is busy.
SCHEMA = """
CREATE TABLE items (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    visible_at timestamptz NOT NULL DEFAULT '-infinity',
    attempt integer NOT NULL DEFAULT 0,
    owner text,
    body bytea NOT NULL
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 1,
    autovacuum_vacuum_cost_delay = 0
);
"""
_ENQUEUE = "INSERT INTO items (body) VALUES ($1)"
_ENQUEUE_MANY = "INSERT INTO items (body) SELECT unnest($1::bytea[])"
# Materialized: as a subquery the planner may run it once for each row it is joined with, and lease more than the limit.
_LEASE = f"""
WITH picked AS MATERIALIZED (
    SELECT id FROM items WHERE visible_at <= clock_timestamp() ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE items SET owner = $1, visible_at = clock_timestamp() + interval '{LEASE_SECONDS} s', attempt = items.attempt + 1
FROM picked
WHERE items.id = picked.id
RETURNING items.id, items.attempt, items.body
"""
_COMPLETE = "DELETE FROM items WHERE id = $1 AND attempt = $2 AND owner = $3 RETURNING id"
_COMPLETE_MANY = """
DELETE FROM items USING unnest($1::bigint[], $2::integer[]) AS done (id, attempt)
WHERE items.id = done.id AND items.attempt = done.attempt AND items.owner = $3
RETURNING items.id
"""
_FILL_ITEMS = 5_000
_FILL_CONNECTIONS = 4
_PAUSE_SECONDS = 0.002


class PostgresSession:
    """Connections to the primary, one for each worker."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._asyncpg = optional("asyncpg")
        self._connections: list[Any] = []
        # For a backlog, which is filled in parts.
        self._filling: list[Any] = []

    async def _connect(self) -> Any:
        connection = await self._asyncpg.connect(self._address)
        self._connections.append(connection)
        return connection

    async def worker(self, name: str) -> Worker:
        """On a connection of its own."""
        return _Worker(await self._connect(), name)

    async def fill(self, numbers: Sequence[int]) -> None:
        """COPY, a few at a time."""
        while len(self._filling) < _FILL_CONNECTIONS:
            self._filling.append(await self._connect())
        free: asyncio.Queue[Any] = asyncio.Queue()
        for connection in self._filling:
            free.put_nowait(connection)

        async def copy(part: Sequence[int]) -> None:
            connection = await free.get()
            try:
                rows = [(body_of(number),) for number in part]
                await connection.copy_records_to_table("items", records=rows, columns=["body"])
            finally:
                free.put_nowait(connection)

        async with asyncio.TaskGroup() as group:
            for at in range(0, len(numbers), _FILL_ITEMS):
                group.create_task(copy(numbers[at : at + _FILL_ITEMS]))

    async def depth(self) -> int:
        """All rows there are."""
        connection = await self._connect()
        return int(await connection.fetchval("SELECT count(*) FROM items"))

    async def close(self) -> None:
        """All connections."""
        await asyncio.gather(*(connection.close() for connection in self._connections))


class _Worker:
    """asyncpg keeps the statements prepared on the connection."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._name = name

    async def enqueue(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            await self._connection.execute(_ENQUEUE, body_of(numbers[0]))
        else:
            await self._connection.execute(_ENQUEUE_MANY, [body_of(number) for number in numbers])

    async def lease(self, many: int) -> list[Claim]:
        while True:
            rows = await self._connection.fetch(_LEASE, self._name, many)
            if rows:
                return [Claim(number_of(row["body"]), (row["id"], row["attempt"])) for row in rows]
            await asyncio.sleep(_PAUSE_SECONDS)

    async def complete(self, claims: Sequence[Claim]) -> None:
        if len(claims) == 1:
            done = await self._connection.fetch(_COMPLETE, *claims[0].handle, self._name)
        else:
            ids, attempts = zip(*(claim.handle for claim in claims), strict=True)
            done = await self._connection.fetch(_COMPLETE_MANY, ids, attempts, self._name)
        if len(done) != len(claims):
            raise Refused(f"{len(claims) - len(done)} of {len(claims)} leases were not this worker's any more")

    async def close(self) -> None:
        pass
