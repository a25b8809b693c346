"""The leases of one stream."""

from collections.abc import Iterator

__all__ = ["Held"]

_Lease = tuple[int, int, int]


class Held:
    """Sequence id, attempt and fence of each, by fence.

    >>> held = Held()
    >>> held.add(7, 1, 40, pushed=True)
    >>> held.fence_of(7), list(held), held.drop(40), len(held)
    (40, [40], (7, 1, 40), 0)
    """

    def __init__(self) -> None:
        self._leases: dict[int, _Lease] = {}
        self._fences: dict[int, int] = {}
        # Claimed by the worker, not pushed on this stream.
        self._claimed: set[int] = set()

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, fence: int) -> bool:
        return fence in self._leases

    def __iter__(self) -> Iterator[int]:
        return iter(self._leases)

    def add(self, sequence_id: int, attempt: int, fence: int, *, pushed: bool) -> None:
        """Holds one more."""
        self._leases[fence] = (sequence_id, attempt, fence)
        self._fences[sequence_id] = fence
        if not pushed:
            self._claimed.add(fence)

    def drop(self, fence: int) -> _Lease | None:
        """Holds it no more; what it was."""
        lease = self._leases.pop(fence, None)
        if lease is not None:
            self._claimed.discard(fence)
            if self._fences.get(lease[0]) == fence:
                del self._fences[lease[0]]
        return lease

    def fence_of(self, sequence_id: int) -> int:
        """The lease on an item; 0 for none."""
        return self._fences.get(sequence_id, 0)

    def all(self) -> list[_Lease]:
        """Every lease."""
        return list(self._leases.values())

    def pushed(self) -> list[_Lease]:
        """Those that came by this stream."""
        return [lease for fence, lease in self._leases.items() if fence not in self._claimed]
