"""The readers that retention waits for, as the replicated state and the events tell of them to every node.

An exporter is registered by the one item of its namespace, which it holds under a lease; how far its copy is stands in
the heartbeats of that lease. A heartbeat becomes an event only while the lease holds, so no exporter that has lost it
moves the bound. Both reach all nodes, in order, also those that export nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from resourcelease.events.archive import Archive
from resourcelease.machine import Machine
from resourcelease.machine.views import ItemView
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Record

__all__ = ["EXPORTS", "POSITION", "REGISTERED", "Reader", "Readers", "standing_item"]

logger = logging.getLogger(__name__)

# The namespace of an export is this and its name.
EXPORTS = "resourcelease.system.export-"
# The resource type of the item of an export that retention waits for.
REGISTERED = "exporter"
# In the metadata of a heartbeat: the last event in the copy.
POSITION = "export_position"


class Reader(NamedTuple):
    """A registered reader, as this node knows it."""

    name: str
    # The peer that exports; "" while nobody does.
    holder: str
    # The last event in its copy; -1 as long as this node has not heard of it.
    position: int


def standing_item(machine: Machine, namespace: str) -> ItemView | None:
    """The one item that an export stands for."""
    for ids in (machine.active_ids, machine.pending_ids, machine.delayed_ids):
        for sequence_id in ids(namespace):
            return machine.item(namespace, sequence_id)
    return None


class Readers:
    """Keeps the register of a node's log in step with the cluster. Belongs to the loop; the disk is left to threads.

    A reader whose item is not there is let go only after a while: a node that starts reads its journal again, and meets
    states in which the item was not there yet.
    """

    release_after_s = 30.0

    def __init__(self, archive: Archive, machine: Callable[[], Machine]) -> None:
        self._archive = archive
        self._machine = machine
        register = archive.writer.register
        # The first event that each has yet to take; 0 where that is not known, and everything is kept.
        self._firsts: dict[str, int] = dict(register.readers)
        # Those that seem to be gone, and when they are let go.
        self._leaving: dict[str, float] = {}
        self._writing = threading.Lock()
        self._written = dict(self._firsts)
        self._asked = False

    def reconcile(self) -> None:
        """Looks at the whole state: at the start, and when a snapshot took its place."""
        there = {name for name in self._machine().namespaces() if name.startswith(EXPORTS)}
        for namespace in there | {EXPORTS + name for name in self._firsts}:
            self._look(namespace)
        self._keep()

    def applied(self, records: Iterable[Record]) -> None:
        """These events happened."""
        if self._leaving:
            self._let_go()
        for record in records:
            namespace = record.call.namespace
            if namespace.startswith(EXPORTS):
                self._note(namespace, record)

    def registered(self) -> list[Reader]:
        """All of them, by name."""
        if self._leaving:
            self._let_go()  # also where nothing has happened since
        found = []
        for name, first in sorted(self._firsts.items()):
            item = standing_item(self._machine(), EXPORTS + name)
            found.append(Reader(name, item.peer if item is not None else "", first - 1))
        return found

    def _note(self, namespace: str, record: Record) -> None:
        position = (record.call.metadata or {}).get(POSITION, "")
        name = namespace.removeprefix(EXPORTS)
        if record.type is not EventType.HEARTBEAT:
            self._look(namespace)
        elif name in self._firsts and position.isascii() and position.isdecimal() and len(position) < 20:
            self._firsts[name] = int(position) + 1
        self._keep()

    def _look(self, namespace: str) -> None:
        item = standing_item(self._machine(), namespace)
        name = namespace.removeprefix(EXPORTS)
        if item is not None and item.item.resource_type == REGISTERED:
            self._firsts.setdefault(name, 0)
            self._leaving.pop(name, None)
        elif name in self._firsts:
            self._leaving.setdefault(name, time.monotonic() + self.release_after_s)

    def _let_go(self) -> None:
        if self._machine().sequence_number < self._archive.durable_sequence:
            return  # the journal is being read again
        now = time.monotonic()
        for name in [name for name, due in self._leaving.items() if due <= now]:
            del self._leaving[name], self._firsts[name]
            logger.info("no history is kept any more for the export %s", name)
        self._keep()

    def _keep(self) -> None:
        if self._firsts != self._written and not self._asked:
            self._asked = True
            self._archive.submit(self._write)

    def _write(self) -> None:
        """On a thread: whatever is known by then."""
        with self._writing:
            self._asked = False
            wanted = dict(self._firsts)
            register = self._archive.writer.register
            for name, first in wanted.items():
                register.protect(name, first)
            for name in set(register.readers) - set(wanted):
                register.release(name)
            self._written = wanted
