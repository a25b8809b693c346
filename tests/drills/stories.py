"""Short histories to falsify: one item, told call by call."""

from chaos.drills.history import OK, REFUSED, UNKNOWN, Call

LEASE_S = 2.0


def enqueue(start: float = 0.0, end: float = 0.1, item: int = 1, outcome: str = OK) -> Call:
    return Call("p", "enqueue", start, end, outcome, item if outcome == OK else 0, request=f"request-{item}")


def grant(start: float, end: float, fence: int, *, attempt: int = 1, by: str = "w", item: int = 1) -> Call:
    return Call(by, "grant", start, end, OK, item, attempt, fence, f"request-{item}")


def ack(
    kind: str,
    start: float,
    end: float,
    fence: int,
    *,
    attempt: int = 1,
    refused: str = "",
    unknown: bool = False,
    by: str = "w",
    item: int = 1,
) -> Call:
    outcome = UNKNOWN if unknown else REFUSED if refused else OK
    return Call(by, kind, start, end, outcome, item, attempt, fence, detail=refused)


def write(at: float, fence: int, by: str = "w", item: int = 1) -> Call:
    return Call(by, "write", at, at, OK, item, 1, fence)


def look(place: str, at: float = 50.0, item: int = 1) -> Call:
    return Call("the end", "look", at, at + 0.1, OK, item, detail=place)


def life(item: int = 1) -> list[Call]:
    """An item as it should be."""
    return [
        enqueue(item=item),
        grant(0.2, 0.3, 10 + item, item=item),
        write(0.35, 10 + item, item=item),
        ack("complete", 0.4, 0.5, 10 + item, item=item),
        look("done", item=item),
    ]
