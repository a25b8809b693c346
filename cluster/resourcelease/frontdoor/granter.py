"""Who waits for work on this node, and when the node asks for it on their behalf.

A seeker that comes is asked for at once, since only the machine knows. If there was nothing, it waits in line, and is
asked for again when an applied entry has left work pending: the oldest first, the namespaces in turn. Nothing polls.
"""

import asyncio
import logging
from collections import deque
from typing import Any, Protocol

from resourcelease.errands import Told
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.replica import Replica
from resourcelease.model.errors import Refusal
from resourcelease.model.ops import Call, GiveBack, Lease
from resourcelease.model.results import Granted

__all__ = ["Granter", "Seeker"]

logger = logging.getLogger(__name__)


class Seeker(Protocol):
    """Somebody who wants leases of one namespace."""

    # The order of arrival; set by the granter.
    ticket: int

    @property
    def namespace(self) -> str:
        """Whose items."""

    def wish(self, share: int) -> Lease | None:
        """What to ask for now; None if nothing is wanted any more. ``share``: a fair part of what is pending."""

    def granted(self, granted: Granted) -> bool:
        """Takes leases, or learns that there are none; False if there is nobody left to take them."""

    def refused(self, refused: Refused) -> bool:
        """Learns why there are none; whether to wait on in line."""


class Granter:
    """The lines of a node, one a namespace."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        # By ticket; sorted before use where an early one has come back behind later ones.
        self._lines: dict[str, dict[int, Seeker]] = {}
        self._shuffled: set[str] = set()
        # Leases asked for and not answered yet, by namespace.
        self._asked: dict[str, int] = {}
        self._tickets = 0
        self._looking = False

    def seek(self, seeker: Seeker) -> None:
        """Asks for a new seeker, and has it wait if there is nothing."""
        self._tickets += 1
        seeker.ticket = self._tickets
        queue = self._replica.machine.queue(seeker.namespace)
        pending = 0 if queue is None else queue.pending - self._asked.get(seeker.namespace, 0)
        self._ask(seeker, max(1, pending))

    def line_up(self, seeker: Seeker) -> None:
        """A seeker that has been asked for before waits for its next turn."""
        self._tickets += 1
        seeker.ticket = self._tickets
        self._back_in_line(seeker)
        self._look_soon()

    def leave(self, seeker: Seeker) -> None:
        """A seeker has gone; if it has been asked for, what comes is given back."""
        line = self._lines.get(seeker.namespace)
        if line is not None:
            line.pop(seeker.ticket, None)
            if not line:
                del self._lines[seeker.namespace]

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return sum(map(len, self._lines.values()))

    def look(self) -> None:
        """Something was applied: asks for as many as there is work for."""
        if not self._lines:
            return
        turns: deque[tuple[str, int, int]] = deque()
        machine = self._replica.machine
        for namespace, line in self._lines.items():
            budget = machine.grantable(namespace) - self._asked.get(namespace, 0)
            if budget > 0:
                turns.append((namespace, budget, max(1, budget // len(line))))
        while turns:
            namespace, budget, share = turns.popleft()
            seeker = self._first(namespace)
            if seeker is not None:
                budget -= self._ask(seeker, share)
                if budget > 0:
                    turns.append((namespace, budget, share))

    def coming(self, namespace: str, count: int) -> None:
        """Items were just proposed here: asks in the same entry of the log for those who wait for them.

        That saves them a round through the cluster. Should the items be refused, the ask finds nothing, and whoever
        stood in line stands there again.
        """
        line = self._lines.get(namespace)
        if not line:
            return
        queue = self._replica.machine.queue(namespace)
        if queue is not None:
            if queue.paused:
                return
            count += queue.pending - self._asked.get(namespace, 0)
        share = max(1, count // len(line))
        while count > 0:
            seeker = self._first(namespace)
            if seeker is None:
                return
            count -= self._ask(seeker, share)

    def is_remembered(self, call: Call) -> bool:
        """Whether the call's operation id has an answer already."""
        return self._replica.machine.remembers(call)

    def give_back(self, call: Call, granted: Granted) -> None:
        """Returns leases that nobody took, unless the call was made again and has taken them over; costs no attempt."""
        if not granted.sequence_ids:
            return
        untold = call.operation_id
        call = Call(call.namespace, call.peer, call.principal, take=call.take)
        columns = (list(granted.sequence_ids), list(granted.attempts), list(granted.fences))
        returned = self._replica.submit(GiveBack(call, *columns, untold))
        returned.add_done_callback(_given_back)

    def _first(self, namespace: str) -> Seeker | None:
        line = self._lines.get(namespace)
        if not line:
            return None
        if namespace in self._shuffled:
            self._shuffled.discard(namespace)
            line = self._lines[namespace] = dict(sorted(line.items()))
        ticket = next(iter(line))
        seeker = line.pop(ticket)
        if not line:
            del self._lines[namespace]
        return seeker

    def _ask(self, seeker: Seeker, share: int) -> int:
        """Proposes a grant; how many leases it asks for."""
        wish = seeker.wish(share)
        if wish is None:
            return 0
        namespace = seeker.namespace
        self._asked[namespace] = self._asked.get(namespace, 0) + wish.limit
        self._replica.ask(wish).then(lambda told: self._answered(seeker, wish, told))
        return wish.limit

    def _answered(self, seeker: Seeker, wish: Lease, told: Told) -> None:
        namespace = seeker.namespace
        left = self._asked[namespace] - wish.limit
        if left:
            self._asked[namespace] = left
        else:
            del self._asked[namespace]
        self._look_soon()
        error = told.exception()
        if error is not None:
            refused = error if isinstance(error, Refused) else None
            if refused is None:
                logger.error("a grant failed: %r", error)
                return
            if seeker.refused(refused):
                self._back_in_line(seeker)
            return
        result: Granted | Refusal = told.result()
        if isinstance(result, Refusal):
            if seeker.refused(Refused.of(result, {"limit": "max_items"})):
                self._back_in_line(seeker)
        elif not seeker.granted(result):
            self.give_back(wish.call, result)
        elif not result.sequence_ids:
            self._back_in_line(seeker)

    def _back_in_line(self, seeker: Seeker) -> None:
        line = self._lines.setdefault(seeker.namespace, {})
        if line and next(reversed(line)) > seeker.ticket:
            self._shuffled.add(seeker.namespace)
        line[seeker.ticket] = seeker

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look_now)

    def _look_now(self) -> None:
        self._looking = False
        self.look()


def _given_back(done: "asyncio.Future[Any]") -> None:
    error = done.exception()
    if error is not None:
        logger.warning("leases whose caller has gone could not be given back and will expire: %s", error)
