"""The protected store: what work is about. It takes writes by fence only, and knows nothing of leases."""

__all__ = ["ProtectedStore"]


class ProtectedStore:
    """Rows, each with the highest fence that it has seen; a write under a lower one is refused.

    >>> store = ProtectedStore()
    >>> store.write(7, fence=3, writer="a"), store.write(7, fence=2, writer="b"), store.value(7)
    (True, False, 'a')
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, str]] = {}
        self.refused = 0

    def write(self, row: int, *, fence: int, writer: str) -> bool:
        """Puts the writer's name into a row, if no newer fence has been there."""
        if fence < self._rows.get(row, (0, ""))[0]:
            self.refused += 1
            return False
        self._rows[row] = (fence, writer)
        return True

    def value(self, row: int) -> str:
        """Who wrote last."""
        return self._rows[row][1] if row in self._rows else ""
