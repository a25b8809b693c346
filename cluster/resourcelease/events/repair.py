"""Fetches what a node's log lacks from the others: a damaged or missing segment, or all that was before it joined.

In the background, a piece at a time; every byte is verified before it takes its place.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from resourcelease.events.archive import Archive
from resourcelease.events.exchange import Holding, holdings
from resourcelease.events.lacking import Stretch, lacking, outvoted, strangers
from resourcelease.storage.errors import StorageError
from resourcelease.storage.segments import Retention, SegmentRefused, install, put_aside, segment_name

__all__ = ["NO_ANSWER", "Ask", "Repair"]

logger = logging.getLogger(__name__)

# (node, question, seconds) -> answer; raises TimeoutError, or what a malformed answer raises: NO_ANSWER.
Ask = Callable[[str, dict[str, Any], float], Awaitable[dict[str, Any]]]
NO_ANSWER = (TimeoutError, ValueError, TypeError, LookupError)

_LOOK_EVERY_S = 30.0
# After a round that mended something, or met nobody.
_AGAIN_S = 1.0
_LIST_S = 10.0
_PIECE_S = 10.0
# The way of consensus goes before that of history.
_PAUSE_S = 0.002
_SEGMENT_BYTES_MAX = 4 << 30


class Repair:
    """Looks now and then, at once when somebody met trouble, and mends."""

    def __init__(
        self,
        archive: Archive,
        ask: Ask,
        others: Callable[[], Sequence[str]],
        *,
        retention: Retention,
        bodies: bool,
    ) -> None:
        self._archive = archive
        self._ask = ask
        # The other members, whether connected or not.
        self._others = others
        self._retention = retention
        self._bodies = bodies
        self._suspects: set[Path] = set()
        self._trouble = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Nobody has what is missing here.
        self._exhausted = False
        # Something is there to be had, and does not fit here yet.
        self._refused = False
        self._told: set[str] = set()
        self._scratch = archive.log.directory / "fetched"
        # Whether to compare what is here with what the others have; at the start, and when somebody says so.
        self._compare = True
        # Put in place, and taken out as no part of this history, since the start.
        self.mended = self.put_aside = 0

    @property
    def hopeful(self) -> bool:
        """Whether what is missing here may still come."""
        return bool(self._others()) and not self._exhausted

    def start(self) -> None:
        """Begins to look."""
        self._task = asyncio.ensure_future(self._keep())

    def look(self, suspects: Sequence[Path] = ()) -> None:
        """Somebody met a hole, or damage in these files."""
        self._suspects.update(suspects)
        self._trouble.set()

    def compare(self) -> None:
        """Also holds the digests of all files here against those of the others."""
        self._compare = True
        self._trouble.set()

    async def stop(self) -> None:
        """Leaves things as they are; nothing is half done."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        await self._archive.run(lambda: shutil.rmtree(self._scratch, ignore_errors=True))
        while True:
            again = False
            try:
                again = await self._round()
            except (StorageError, OSError) as error:
                self._tell(f"history cannot be mended now: {error}")
            except Exception:  # nothing that happens here may end the looking
                logger.exception("the look after the history stumbled")
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S if again else _LOOK_EVERY_S):
                    await self._trouble.wait()
            if self._trouble.is_set():
                self._trouble.clear()
                # Many readers meet the same hole.
                await asyncio.sleep(0.05)

    async def _round(self) -> bool:
        """Mends what can be mended now; whether to look again soon."""
        suspects = sorted(self._suspects)
        directory, register = self._archive.log.directory, self._archive.writer.register
        await self._take_out(await self._archive.run(lambda: strangers(directory, register.owner)), "another cluster's")
        if self._compare:
            await self._against_others()
        through = self._archive.durable_sequence
        wanted = await self._archive.run(lambda: lacking(directory, register.retired, suspects, through))
        if not wanted:
            self._suspects.difference_update(suspects)
            self._exhausted = False
            return False
        offers, all_answered = await self._offers(wanted, through)
        mended, self._refused = 0, False
        for segment, nodes in self._worth(offers):
            mended += await self._mend(segment, nodes)
        self.mended += mended
        self._exhausted = all_answered and not mended and not self._refused
        return bool(mended) or not all_answered

    async def _against_others(self) -> None:
        """Takes out the files that a majority of all members contradicts."""
        others = self._others()
        told = [found for node in others if (found := await self._holdings(node, 0)) is not None]
        if len(told) * 2 <= len(others) + 1:
            return  # no majority has been heard
        own = await self._archive.run(lambda: list(holdings(self._archive.log)))
        wrong = outvoted(own, told, len(others) + 1)
        directory = self._archive.log.directory
        await self._take_out([directory / segment_name(first) for first in wrong], "not that of the majority")
        self._compare = len(told) < len(others)

    async def _take_out(self, paths: Sequence[Path], why: str) -> None:
        last = await self._archive.run(lambda: max(self._archive.log.directory.glob("*.rlseg"), default=None))
        for path in paths:
            # The newest file may be the one that is being written.
            if path != last:
                aside = await self._archive.run(lambda path=path: put_aside(path))  # type: ignore[misc]
                self.put_aside += 1
                logger.warning("%s is %s: it is kept as %s, and fetched again", path, why, aside.name)

    async def _holdings(self, node: str, first: int) -> list[Holding] | None:
        """The whole segments that a node has from an event on; None without an answer."""
        try:
            told = await self._ask(node, {"what": "holdings", "first": first}, _LIST_S)
            return [Holding(*each) for each in told["holdings"]]
        except NO_ANSWER:
            return None

    async def _offers(self, wanted: Sequence[Stretch], through: int) -> tuple[dict[Holding, list[str]], bool]:
        """Segments that others have and that hold something of what is lacking, each with who has it."""
        offers: dict[Holding, list[str]] = {}
        others, answered = self._others(), 0
        for node in others:
            found = await self._holdings(node, wanted[0].first)
            if found is None:
                continue
            answered += 1
            for holding in found:
                # What ends behind the log here is yet to be written here.
                fits = any(holding.first <= stretch.last and stretch.first <= holding.last for stretch in wanted)
                if fits and holding.last <= through:
                    offers.setdefault(holding._replace(size_bytes=0, bodiless=False), []).append(node)
        return offers, answered == len(others)

    def _worth(self, offers: dict[Holding, list[str]]) -> list[tuple[Holding, list[str]]]:
        """Newest first, what retention would keep; of two stories of one segment, the one that more nodes tell."""
        best: dict[int, tuple[Holding, list[str]]] = {}
        for holding, nodes in offers.items():
            if len(nodes) > len(best.get(holding.first, (holding, []))[1]):
                best[holding.first] = (holding, nodes)
        oldest_ms = 0
        if self._retention.max_age_ms:
            oldest_ms = time.time_ns() // 1_000_000 - self._retention.max_age_ms
        return [best[first] for first in sorted(best, reverse=True) if best[first][0].most_wall_ms >= oldest_ms]

    async def _mend(self, segment: Holding, nodes: Sequence[str]) -> bool:
        if self._retention.max_bytes and await self._archive.run(self._size) >= self._retention.max_bytes:
            return False
        for node in nodes:
            path = self._scratch / segment_name(segment.first)
            try:
                if await self._fetch(node, segment, path):
                    await self._install(path)
                    logger.info("events %d to %d were fetched from %s", segment.first, segment.last, node)
                    return True
            except SegmentRefused as error:
                self._refused = True
                self._tell(f"the segment of event {segment.first} that {node} has is not taken: {error}")
            except NO_ANSWER:
                continue
            except StorageError as error:
                self._tell(f"the segment of event {segment.first} that {node} sent is no good: {error}")
            finally:
                await self._archive.run(lambda path=path: path.unlink(missing_ok=True))  # type: ignore[misc]
        return False

    async def _fetch(self, node: str, segment: Holding, path: Path) -> bool:
        offset = 0
        await self._archive.run(lambda: self._scratch.mkdir(exist_ok=True))
        while offset < _SEGMENT_BYTES_MAX:
            question = {"what": "piece", "first": segment.first, "offset": offset}
            piece = (await self._ask(node, question, _PIECE_S))["bytes"]
            if not isinstance(piece, bytes):
                raise TypeError("a piece is bytes")
            if not piece:
                break
            await self._archive.run(lambda piece=piece: _append(path, piece))  # type: ignore[misc]
            offset += len(piece)
            await asyncio.sleep(_PAUSE_S)
        return offset > 0

    async def _install(self, path: Path) -> None:
        archive = self._archive
        owner = archive.writer.register.owner
        await archive.run(lambda: install(path, archive.log.directory, owner, allow_bodiless=not self._bodies))

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._archive.log.directory.glob("*.rlseg"))

    def _tell(self, message: str) -> None:
        """Once for each thing that is found."""
        if message not in self._told and len(self._told) < 1000:
            self._told.add(message)
            logger.warning("%s", message)


def _append(path: Path, piece: bytes) -> None:
    with path.open("ab") as file:
        file.write(piece)
