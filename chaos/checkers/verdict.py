"""What a checker says when a promise is broken."""

__all__ = ["Violation"]


class Violation(Exception):
    """A promise was broken: which, by whom, and what was expected."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise
