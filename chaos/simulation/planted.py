"""Machines with a defect: each breaks one rule that the real machine keeps."""

from typing import Any, ClassVar

import msgpack

from chaos.simulation.machines import Watched
from resourcelease.machine.answers import Answers
from resourcelease.machine.machine import Applied
from resourcelease.machine.moves import end_leases
from resourcelease.machine.state import PRIORITY, Namespace
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType, IdsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call, pack_entry, pack_ops
from resourcelease.model.results import Acked, Granted, Result

__all__ = [
    "AcceptsLateAcks",
    "AnswersAnother",
    "AppliesTwice",
    "ChangesInSilence",
    "DropsAnswerRows",
    "DropsItemRows",
    "DropsRequestRows",
    "Diverges",
    "ExpiresByWallClock",
    "ForgetsAnswers",
    "ForgetsEffects",
    "ForgetsRequests",
    "ForgetsVerdicts",
    "GrantsAgain",
    "HidesAnEvent",
    "IgnoresFences",
    "CutsLeasesShort",
    "RefusesTheRightful",
    "ReusesAFence",
    "SaysYes",
    "SleepsThrough",
]

_COMPLETE = 4
_CUT_MS = 150
_EMPTY_ENTRY_BYTES = 25
_NO_RECORD = Record(EventType.LEASE_EXPIRED, IdsData([], 0), call=Call(""))
_LOST = Refusal(Reason.LEASE_LOST, "planted")
# Every so many entries, at this one of them, the meddling machines meddle.
_EVERY, _AT = 20, 7


class _Meddled(Watched):
    """Does something to its own state between two entries, the same on every node."""

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """One entry, after the meddling."""
        if index % _EVERY == _AT:
            self._meddle()
        return super().apply(index, term, data)

    def _meddle(self) -> None:
        raise NotImplementedError

    def _spaces(self) -> list[Namespace]:
        return list(self._state.namespaces.values())


class ReusesAFence(_Meddled):
    """Draws a fence that was drawn before."""

    def _meddle(self) -> None:
        self._state.fence = max(0, self._state.fence - 1)


class GrantsAgain(_Meddled):
    """Puts a leased item back in line, and nobody is told that its lease has ended."""

    def _meddle(self) -> None:
        for ns in self._spaces():
            for sequence_id in list(self.active_ids(ns.name))[:1]:
                end_leases(self._state, ns, _NO_RECORD, [sequence_id])
                priority = ns.items[sequence_id][PRIORITY]
                ns.ready.put_back(priority, sequence_id, ns.ticket_of(sequence_id), ns.ticket_of)


class ForgetsVerdicts(Watched):
    """Does not know any more which items were completed, and says so to those who ask again."""

    def _run(self, raw: Any) -> Result:
        before = self._state.sequence
        result = super()._run(raw)
        again = msgpack.unpackb(raw)[0] == _COMPLETE and self._state.sequence == before
        if again and isinstance(result, Acked):
            return result._replace(refused=dict.fromkeys(range(result.total), _LOST))
        return result


class ForgetsAnswers(_Meddled):
    """Does not know any more what it was asked."""

    def _meddle(self) -> None:
        self._state.answers = Answers()


class ForgetsRequests(_Meddled):
    """Does not know any more under which request ids items came."""

    def _meddle(self) -> None:
        for ns in self._spaces():
            ns.requests.clear()
            ns.ended_requests = type(ns.ended_requests)()


class ForgetsEffects(_Meddled):
    """Does not know any more which effects were begun or done."""

    def _meddle(self) -> None:
        for ns in self._spaces():
            ns.effects.clear()


class ChangesInSilence(_Meddled):
    """Changes its state, and no event says so."""

    def _meddle(self) -> None:
        for ns in self._spaces():
            ns.redriven += 1


class Diverges(_Meddled):
    """Is not the same function on every node."""

    def _meddle(self) -> None:
        if self.node == "n2":
            self._state.fence += 1


class HidesAnEvent(Watched):
    """Keeps an event to itself."""

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """Less than what came of an entry."""
        applied = super().apply(index, term, data)
        hides = index % _EVERY == _AT and applied.records
        return applied._replace(records=applied.records[1:]) if hides else applied


class ExpiresByWallClock(Watched):
    """Reads the wall clock of the entry for the clock of the log."""

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """One entry, its clock replaced."""
        try:
            _, _, wall_ms, ops = msgpack.unpackb(data)
        except ValueError:
            return super().apply(index, term, data)
        return super().apply(index, term, pack_entry(wall_ms, wall_ms, pack_ops(ops)))


class AcceptsLateAcks(Watched):
    """Looks at deadlines when there is nothing else to do, and believes in a lease until then."""

    _idle = False

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """One entry."""
        self._idle = len(data) <= _EMPTY_ENTRY_BYTES
        return super().apply(index, term, data)

    def _let_time_pass(self) -> None:
        if self._idle:
            super()._let_time_pass()


class SleepsThrough(Watched):
    """Does not say when something falls due, so nobody sees to it before the next call."""

    _awake = False

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """One entry."""
        self._awake = True
        applied = super().apply(index, term, data)
        self._awake = False
        return applied

    def next_due_ms(self) -> int | None:
        """Nothing, unless an entry is there already."""
        return super().next_due_ms() if self._awake else None


class CutsLeasesShort(Watched):
    """Ends leases before the deadline that the history and their holders were told."""

    def _emit(self, records: list[Record]) -> None:
        _lengthen(records, -_CUT_MS)
        super()._emit(records)
        for record in _lengthen(records, _CUT_MS):
            record.encoded = record.encode()


def _lengthen(records: list[Record], by_ms: int) -> list[Record]:
    granted = [record for record in records if record.type is EventType.LEASE_GRANTED]
    for record in granted:
        data: Any = record.data
        record.data = data._replace(deadline_ms=data.deadline_ms + by_ms)
    return granted


class AppliesTwice(Watched):
    """Now and then decides an op twice."""

    def _run(self, raw: object) -> Result:
        if self._state.index % 10 == 3:
            super()._run(raw)
            self._state.answers = Answers()
        return super()._run(raw)


class IgnoresFences(Watched):
    """Takes an ack under any fence for one under the live one."""

    def _run(self, raw: Any) -> Result:
        code, call, *fields = msgpack.unpackb(raw)
        if code == _COMPLETE:
            for place, sequence_id in enumerate(fields[0]):
                item = self.item(call[0], sequence_id)
                if item is not None and item.fence:
                    fields[1][place], fields[2][place] = item.attempt, item.fence
            raw = msgpack.packb((code, call, *fields))
        return super()._run(raw)


class SaysYes(Watched):
    """Accepts a completion and forgets to do it."""

    def _run(self, raw: Any) -> Result:
        code, _, sequence_ids, *_ = msgpack.unpackb(raw)
        if code == _COMPLETE and self._state.index % 10 == 3:
            return Acked(len(sequence_ids), {})
        return super()._run(raw)


class AnswersAnother(Watched):
    """Tells the holder of a lease another fence than the history has."""

    def _run(self, raw: object) -> Result:
        result = super()._run(raw)
        if isinstance(result, Granted) and result.sequence_ids and self._state.index % 10 == 3:
            return result._replace(fences=[fence + 1 for fence in result.fences])
        return result


class RefusesTheRightful(Watched):
    """Tells a holder that completed in time that it came too late."""

    def _run(self, raw: object) -> Result:
        result = super()._run(raw)
        if isinstance(result, Acked) and self._state.index % 10 == 3:
            return result._replace(refused={0: _LOST})
        return result


class _DropsRows(Watched):
    """Of the rows that changed, those of a kind do not reach the disk: a restart or a snapshot loses them."""

    letter: ClassVar[bytes]

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        puts, deletes = super().take_changes()
        return [row for row in puts if row[0][:1] != self.letter], deletes


class DropsAnswerRows(_DropsRows):
    """Answers by operation id."""

    letter = b"a"


class DropsRequestRows(_DropsRows):
    """Request ids of items that have ended."""

    letter = b"r"


class DropsItemRows(_DropsRows):
    """Items."""

    letter = b"i"
