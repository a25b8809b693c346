"""One node: its store, its consensus and its front door, started and stopped in the right order."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from resourcelease.consensus import Applied, Consensus, NotAllowed, Settings
from resourcelease.events.exporter import Export, Exporter
from resourcelease.frontdoor import DoorLimits, DoorSettings, FrontDoor, Replica
from resourcelease.node.collector import all_stays
from resourcelease.node.eventlog import EventLog
from resourcelease.node.schema import LimitsSection, NodeConfig
from resourcelease.node.statewatch import StateWatch
from resourcelease.node.takeout import check_not_out
from resourcelease.node.tls import client_context, peer_contexts, read_pem
from resourcelease.node.upkeep import Upkeep
from resourcelease.storage import LmdbStore, StoreOptions, StoreState, StoreStatus, StoreStopped

__all__ = ["Node", "consensus_settings"]

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_HAND_OVER_S = 2.0


class Node:
    """A node in this process; there may be several, on one loop.

    >>> async def hold(config: NodeConfig) -> None:
    ...     async with Node(config) as node:
    ...         print("clients call", node.grpc_address)
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        settings: Settings | None = None,
        store_options: StoreOptions | None = None,
        stirred: Callable[[], None] | None = None,
    ) -> None:
        """``stirred`` is called whenever entries were applied."""
        self.config = config
        self._stirred = stirred
        self._settings = settings or consensus_settings(config.limits)
        self._store_options = store_options
        self._store: LmdbStore | None = None
        self._consensus: Consensus | None = None
        self._log: EventLog | None = None
        self._replica: Replica | None = None
        self._door: FrontDoor | None = None
        self._upkeep: Upkeep | None = None
        self._watch = StateWatch()
        # Where the node has the option.
        self.exporter: Exporter | None = None
        # Ends when the node cannot go on, with the reason.
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> "Node":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def id(self) -> str:
        """The node's name."""
        return self.config.node.id

    @property
    def grpc_address(self) -> str:
        """Where clients reach it, with the port that was really opened."""
        return self._door.address if self._door else self.config.grpc.listen

    @property
    def peer_address(self) -> str:
        """Where the other nodes reach it."""
        return self._consensus.address if self._consensus else self.config.peers.listen

    @property
    def consensus(self) -> Consensus:
        """The node's consensus, once it has started."""
        assert self._consensus is not None, "the node has not started"
        return self._consensus

    @property
    def log(self) -> EventLog:
        """The node's log of events, once it has started."""
        assert self._log is not None, "the node has not started"
        return self._log

    @property
    def upkeep(self) -> Upkeep:
        """What keeps the node in order, once it has started."""
        assert self._upkeep is not None, "the node has not started"
        return self._upkeep

    @property
    def door(self) -> FrontDoor:
        """The node's front door, once it has started."""
        assert self._door is not None, "the node has not started"
        return self._door

    async def start(self) -> None:
        """Opens the directory, takes part in the cluster, and lets clients in."""
        config = self.config
        contexts = peer_contexts(config.tls)
        door_settings = _door_settings(config)
        self._store = store = await asyncio.to_thread(self._open_store)
        self._watch.attach(store)
        try:
            cluster_id = store.identity.cluster_id
            with all_stays():
                self._consensus = Consensus(
                    store=store,
                    machines=self._watch.machines(cluster_id),
                    listen=config.peers.listen,
                    bootstrap=config.founders,
                    settings=self._settings,
                    tls=contexts,
                    on_applied=self._applied,
                    on_failure=self._fail,
                )
            self._log = log = await asyncio.to_thread(
                EventLog.resume, config.node.dir, self._consensus, cluster_id, config.events, self._fail_from_afar
            )
            self._consensus.follow(self._watch.hold(log.writer))
            self._replica = Replica(self._consensus, config.limits.answer_ms / 1000.0, lambda: log.has_room)
            self._door = FrontDoor(self._replica, store, log.archive, door_settings)
            self._upkeep = Upkeep(
                config.node.dir, self._consensus, self._door, log, config.events, self._watch, self._fail
            )
            await self._consensus.start()
            await self._door.start()
            self._upkeep.start()
            if config.export.sink:
                self.exporter = self._export(cluster_id)
                self.exporter.start()
        except BaseException:
            await self.stop()
            raise
        logger.info("node %s of cluster %s serves clients at %s", self.id, cluster_id, self.grpc_address)

    async def stop(self) -> None:
        """Hands over, lets calls finish, and lets go of everything; a second call does nothing."""
        door, consensus, store = self._door, self._consensus, self._store
        self._store = None
        if store is None:
            return
        grace_s = self.config.limits.stop_ms / 1000.0 / 2
        if self.exporter is not None:
            # First of all: its lease is given back through the log.
            await self.exporter.stop()
        if consensus is not None and not self.failed.done():
            await self._hand_over(consensus)
        if self._upkeep is not None:
            await self._upkeep.stop()
        await self._watch.close()
        if door is not None:
            await door.stop(grace_s)
        if consensus is not None:
            await consensus.stop()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)
        await asyncio.to_thread(store.close)

    def _export(self, cluster_id: str) -> Exporter:
        section, door, replica = self.config.export, self.door, self._replica
        assert replica is not None
        export = Export(section.sink, section.name, section.first, section.batch_events, section.gather_ms / 1000.0)
        return Exporter(export, self.id, cluster_id, replica, lambda first: door.history(first, bodies=section.bodies))

    def _applied(self, entries: Sequence[Applied]) -> None:
        # Not within the net below: without its log the node must not go on. Who waited for these entries has been
        # answered; they are committed, and are read again from the journal.
        assert self._log is not None
        self._log.applied(entries)
        try:
            if self._door is not None:
                self._door.applied(entries)
        except Exception:  # what is applied is applied: callers may miss a word of it, the node must not
            logger.exception("the front door of node %s stumbled over entry %s", self.id, entries[-1].index)
        if self._stirred is not None:
            self._stirred()

    async def _hand_over(self, consensus: Consensus) -> None:
        status = consensus.status()
        reachable = [node for node in status.connected if node in status.members]
        if not consensus.is_leader or not reachable:
            return
        try:
            await consensus.transfer_leadership(timeout_s=_HAND_OVER_S)
        except NotAllowed as error:
            logger.info("node %s stops without handing over: %s", self.id, error)

    def _open_store(self) -> LmdbStore:
        config = self.config
        check_not_out(config.node.dir)
        return LmdbStore(
            config.node.dir,
            cluster_id=config.cluster.id,
            node_id=config.node.id,
            options=self._store_options,
            on_status=self._disk_changed,
        )

    def _disk_changed(self, status: StoreStatus) -> None:
        """Called on other threads."""
        if status.state is StoreState.FULL:
            logger.warning("the disk of node %s is full; writes wait: %s", self.id, status.reason)
        elif status.state is StoreState.STOPPED:
            self._fail_from_afar(StoreStopped(status.reason))

    def _fail_from_afar(self, error: BaseException) -> None:
        """From another thread."""
        loop = self.failed.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


def consensus_settings(limits: LimitsSection) -> Settings:
    """Entries as large as the messages that clients may send, and frames that hold them."""
    entry = limits.message_bytes + _MIB
    return Settings(entry_bytes_max=entry, append_bytes_max=entry + 4 * _MIB, frame_bytes_max=2 * entry)


def _door_settings(config: NodeConfig) -> DoorSettings:
    limits, tls = config.limits, config.tls
    key = certificate = client_ca = b""
    if tls.enabled:
        assert tls.key is not None
        assert tls.cert is not None
        assert tls.ca is not None
        key, certificate = read_pem(tls.key, "key"), read_pem(tls.cert, "cert")
        if tls.require_client_cert:
            client_ca = read_pem(tls.client_ca or tls.ca, "client_ca")
    return DoorSettings(
        listen=config.grpc.listen,
        advertise=config.grpc.advertise,
        trust_principal_header=config.grpc.trust_principal_header,
        key=key,
        certificate=certificate,
        client_ca=client_ca,
        direct=config.direct,
        direct_advertise=config.grpc.direct_advertise,
        direct_tls=client_context(tls),
        limits=DoorLimits(
            message_bytes=limits.message_bytes,
            calls=limits.calls,
            calls_per_peer=limits.calls_per_peer,
            streams_per_peer=limits.streams_per_peer,
            answer_s=limits.answer_ms / 1000.0,
            tail_events=limits.tail_events,
            tail_bytes=limits.tail_bytes,
        ),
    )
