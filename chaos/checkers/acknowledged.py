"""What was acknowledged stays, once."""

from collections.abc import Mapping

from chaos.checkers.verdict import Violation

__all__ = ["Acknowledged"]


class Acknowledged:
    """Every acknowledged operation is in every later state, exactly once, with the answer that was given."""

    def __init__(self) -> None:
        self._answers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def acknowledged(self, operation: bytes, answer: int) -> None:
        """A caller was told so."""
        before = self._answers.setdefault(operation, answer)
        if before != answer:
            raise Violation("one answer", f"{operation!r} was answered {before}, and then {answer}")

    def check(self, node: str, answers: Mapping[bytes, int], effects: Mapping[bytes, int]) -> None:
        """A node's state, once it has caught up: the answers it remembers, and how often each operation took effect."""
        lost = [operation for operation in self._answers if operation not in effects]
        if lost:
            raise Violation(
                "acknowledged operations stay",
                f"{len(lost)} of {len(self._answers)} are not in the state of {node}, the first is {lost[0]!r}",
            )
        for operation, times in effects.items():
            if times != 1:
                raise Violation("exactly once", f"{operation!r} took effect {times} times at {node}")
        for operation, answer in self._answers.items():
            if answers.get(operation) != answer:
                raise Violation(
                    "one answer", f"{operation!r} was answered {answer}; {node} has {answers.get(operation)}"
                )
