"""A node as a process of its own: until a signal says stop, or it cannot go on."""

import asyncio
import logging
import signal
from collections.abc import Callable

from resourcelease.consensus import Consensus
from resourcelease.model.errors import CorruptLog
from resourcelease.node.awake import Awake, is_rationed
from resourcelease.node.collector import spare_the_old
from resourcelease.node.config import ConfigError, NodeConfig
from resourcelease.node.logs import set_up
from resourcelease.node.process import Node, consensus_settings
from resourcelease.node.processor import HERE, Place, keep_still
from resourcelease.node.rebuild import rebuild
from resourcelease.node.takeout import Mark, read_mark
from resourcelease.storage import CorruptStore, StorageError

__all__ = ["loop_factory", "run"]

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: NodeConfig) -> int:
    """Runs a node; 0 if it was told to stop, 1 if it could not start or could not go on. The log says why."""
    handler = set_up(config.log, config.node.id)
    try:
        with asyncio.Runner(loop_factory=loop_factory(config.node.loop)) as runner:
            return runner.run(_run(config))
    except ConfigError as error:
        logger.error("node %s cannot start: %s", config.node.id, error)
        return 1
    finally:
        logging.getLogger().removeHandler(handler)


def loop_factory(choice: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop that ``node.loop`` asks for; None for that of asyncio itself."""
    if choice == "asyncio":
        return None
    try:
        import uvloop
    except ImportError as error:
        if choice == "uvloop":
            raise ConfigError('node.loop is "uvloop", which is not installed here') from error
        return None
    return uvloop.new_event_loop


async def _run(config: NodeConfig) -> int:
    loop = asyncio.get_running_loop()
    logger.debug("node %s runs on %s", config.node.id, type(loop).__module__.partition(".")[0])
    told: asyncio.Future[str] = loop.create_future()
    for each in _SIGNALS:
        loop.add_signal_handler(each, _tell, told, each.name)
    code: int | None = None
    mark = await asyncio.to_thread(read_mark, config.node.dir)
    while code is None:
        if mark is not None:
            code, mark = await _rebuild(config, mark, told), None
        else:
            code, mark = await _live(config, told)
    return code


async def _live(config: NodeConfig, told: "asyncio.Future[str]") -> tuple[int | None, Mark | None]:
    """One life of the node: how the process is to end, or why the state has to be rebuilt before the next."""
    node = Node(config, stirred=_stirred(config))
    try:
        await node.start()
    except (CorruptStore, CorruptLog) as error:
        # Its log, term and vote may be sound all the same; the log will be covered by the state that it takes over.
        reason = f"{error.path}: {error.what}" if isinstance(error, CorruptStore) else str(error)
        return None, Mark(f"it cannot start on what its disk holds: {reason}", False, {})
    except (ConfigError, StorageError, OSError) as error:
        logger.error("node %s cannot start: %s", config.node.id, error)
        return 1, None
    spare_the_old()
    keeping = asyncio.ensure_future(_keep_still(config, node))
    await asyncio.wait((told, node.failed), return_when=asyncio.FIRST_COMPLETED)
    keeping.cancel()
    failed = node.failed.done()
    if failed:
        logger.error("node %s cannot go on: %s", config.node.id, node.failed.result())
    else:
        logger.info("node %s was told to stop (%s)", config.node.id, told.result())
    try:
        async with asyncio.timeout(config.limits.stop_ms / 1000.0):
            await node.stop()
    except TimeoutError:
        logger.warning("node %s took too long to stop and leaves now; what it acknowledged is safe", config.node.id)
        return int(failed), None
    logger.info("node %s has stopped", config.node.id)
    mark = await asyncio.to_thread(read_mark, config.node.dir) if failed and not told.done() else None
    return (int(failed) if mark is None else None), mark


def _stirred(config: NodeConfig) -> Callable[[], None] | None:
    return Awake().stirred if config.node.awake == "auto" and not is_rationed() else None


async def _keep_still(config: NodeConfig, node: Node) -> None:
    if config.node.processor == "keep":
        await keep_still(lambda: _place(node.consensus))


def _place(consensus: Consensus) -> Place | None:
    if consensus.is_leader:
        return HERE
    leaders = consensus.leaders_processor
    return None if leaders is None else Place(off=leaders)


async def _rebuild(config: NodeConfig, mark: Mark, told: "asyncio.Future[str]") -> int | None:
    """Takes the state of a majority over; how the process is to end, or None if the node may start."""
    work = asyncio.ensure_future(rebuild(config, consensus_settings(config.limits), mark))
    await asyncio.wait((told, work), return_when=asyncio.FIRST_COMPLETED)
    work.cancel()
    try:
        await work
    except asyncio.CancelledError:
        logger.info("node %s was told to stop (%s) before its state was rebuilt", config.node.id, told.result())
        return 0
    except (ConfigError, StorageError, OSError) as error:
        logger.error("node %s cannot start: %s", config.node.id, error)
        return 1
    return None


def _tell(told: "asyncio.Future[str]", name: str) -> None:
    if not told.done():
        told.set_result(name)
