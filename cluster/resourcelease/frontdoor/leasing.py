"""One unary Lease call that waits for its leases."""

import asyncio

from resourcelease.frontdoor.granter import Granter
from resourcelease.frontdoor.refusals import Refused
from resourcelease.model.errors import Reason
from resourcelease.model.ops import Lease
from resourcelease.model.results import Granted

__all__ = ["NOTHING", "LeaseWaiter"]

_TAKES_A_TRY = 1 << 10
NOTHING = Granted([], [], [], [], {}, 0, 0)


class LeaseWaiter:
    """Waits until there is something to grant, its time is over, or its caller has gone."""

    def __init__(self, granter: Granter, op: Lease, tried: int = 0) -> None:
        self.ticket = 0
        self._granter = granter
        # A later try's takes are above all those of an earlier one.
        self._first_take = tried * _TAKES_A_TRY
        self._op = op._replace(call=op.call._replace(take=self._first_take))
        self._operation_id = op.call.operation_id
        self._renewals = 0
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Granted] = self._loop.create_future()
        self._in_line = False
        self._time_over = False
        self._paused: Refused | None = None
        self.since = self._loop.time()

    @property
    def namespace(self) -> str:
        """Whose items."""
        return self._op.call.namespace

    async def wait(self, wait_s: float) -> Granted:
        """The leases, possibly none; raises ``Refused``. If the caller goes, so does what it would have got."""
        self._granter.seek(self)
        timer = self._loop.call_later(wait_s, self.end_wait)
        try:
            return await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            if self._answer.done() and not self._answer.cancelled() and self._answer.exception() is None:
                self._granter.give_back(self._op.call, self._answer.result())
            self._answer.cancel()
            self._granter.leave(self)
            raise
        finally:
            timer.cancel()

    def end_wait(self) -> None:
        """The time to wait is over; a grant that is under way is still waited for."""
        self._time_over = True
        if self._in_line and not self._answer.done():
            self._granter.leave(self)
            self._answer_nothing()

    def stop(self, refused: Refused) -> None:
        """The node stops: the caller is told to ask elsewhere."""
        self.send_away(refused)
        self._time_over = True

    def send_away(self, refused: Refused) -> None:
        """The same, unless there is a grant under way."""
        if self._in_line and not self._answer.done():
            self._granter.leave(self)
            self._answer.set_exception(refused)

    # What the granter asks and tells.

    def wish(self, share: int) -> Lease | None:
        """The same each time; None once the caller has gone."""
        self._in_line = False
        return None if self._answer.done() else self._op

    def granted(self, granted: Granted) -> bool:
        """Takes the leases; nothing means to wait on, if there is time."""
        if self._answer.done():
            return False
        self._paused = None
        if 0 < granted.next_take <= self._first_take + _TAKES_A_TRY:
            # An earlier try's leases: taken over before they are told, so that its node cannot give them back. A later
            # try's are left to it: giving them back under this try's take has no effect.
            take = max(granted.next_take, self._first_take)
            self._op = self._op._replace(call=self._op.call._replace(take=take))
            self._granter.seek(self)
            return True
        if granted.sequence_ids:
            self._answer.set_result(granted)
            return True
        self._renew()
        return self._wait_on()

    def refused(self, refused: Refused) -> bool:
        """A pause is waited out; anything else ends the call."""
        if self._answer.done():
            return False
        if refused.refusal.reason is Reason.PAUSED:
            self._paused = refused
            return self._wait_on()
        self._answer.set_exception(refused)
        return False

    def _renew(self) -> None:
        """Asks on under a further id where this one is used up: its leases came to an earlier try, and are over."""
        call = self._op.call
        if self._granter.is_remembered(call):
            self._renewals += 1
            name = f"{self._operation_id}~{self._renewals}"
            self._op = self._op._replace(call=call._replace(operation_id=name, take=self._first_take))

    def _wait_on(self) -> bool:
        if self._time_over:
            self._answer_nothing()
            return False
        self._in_line = True
        return True

    def _answer_nothing(self) -> None:
        if self._paused is not None:
            self._answer.set_exception(self._paused)
        else:
            self._answer.set_result(NOTHING)
