"""What Hypothesis may choose from when it drives the machine: small values that meet each other often."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from resourcelease.model.items import ItemColumns

NAMESPACES = ("calm", "tiny", "strict")
# More names and peers than the patched limits allow.
STRAY_NAMESPACES = ("four", "five", "six")
PEERS = ("p1", "p2", "p3")
STRAY_PEERS = ("p4", "p5", "p6", "p7")
PRINCIPALS = ("alice", "bob")
BUNDLES = ("b1", "b2", "b3", "b4")

# The options that the namespaces begin with; "calm" has the defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "tiny": {
        "capacity": 6,
        "high_watermark": 4,
        "low_watermark": 1,
        "max_attempts": 2,
        "dead_letter_limit": 2,
        "lease_duration_ms": 50,
        "dedup_window_ms": 300,
        "dedup_limit": 2,
        "max_body_bytes": 8,
        "peer_grace_ms": 100,
    },
    "strict": {
        "enforce_peer_health": True,
        "lease_duration_ms": 100,
        "requeue_delay_ms": 10,
        "requeue_multiplier": 2,
        "requeue_delay_cap_ms": 35,
        "max_attempts": 3,
        "dead_letter_limit": 3,
    },
}


class Caller(NamedTuple):
    """Who asks, where, and whether the op waits to share an entry with the next one."""

    cluster: str
    namespace: str
    peer: str
    # Empty: whoever the lease was granted to.
    principal: str
    # 0: none; 1: a new one; above: that of an earlier op.
    operation: int
    take: int
    hold: bool


class ItemSpec(NamedTuple):
    """One item of an enqueue."""

    resource_type: str
    resource_id: str
    body: bytes | None
    request_id: str | None
    priority: int
    not_before_ms: int


class HandlePick(NamedTuple):
    """A handle: one that lives, any one ever granted, or one that is wrong in one of its numbers."""

    kind: str
    place: int


def _weighted(*choices: tuple[int, Any]) -> SearchStrategy[Any]:
    return st.sampled_from([choice for weight, choice in choices for _ in range(weight)])


namespaces = _weighted(*((8, name) for name in NAMESPACES), *((1, name) for name in STRAY_NAMESPACES))
peers = _weighted(*((6, name) for name in PEERS), *((1, name) for name in STRAY_PEERS))

callers = st.builds(
    Caller,
    _weighted((6, "c1"), (1, "c2")),
    namespaces,
    peers,
    _weighted((6, ""), (1, "alice"), (1, "bob")),
    _weighted((3, 0), (5, 1), (1, 2), (1, 3), (1, 5)),
    _weighted((4, 0), (1, 1), (1, 2)),
    _weighted((3, False), (1, True)),
)

_good_items = st.builds(
    ItemSpec,
    st.just("table"),
    st.sampled_from(["orders", "users"]),
    _weighted((4, None), (4, b"123"), (2, b"12345678"), (1, b""), (1, b"123456789")),
    _weighted((8, None), (1, ""), *((2, f"r{n}") for n in range(8))),
    _weighted((10, 4), (3, 9), (3, 0), (2, 5)),
    _weighted((12, 0), (2, 5), (2, 30), (1, 1000)),
)
# One field of an item that is not right; which of several is named is not promised.
_wrong_fields = st.sampled_from(
    [
        *({"resource_type": wrong} for wrong in ("", " ", "t" * 257)),
        *({"resource_id": wrong} for wrong in ("", "x" * 4097)),
        *({"priority": wrong} for wrong in (10, -1)),
        *({"not_before_ms": wrong} for wrong in (-1, 1 << 40)),
        {"request_id": "r" * 257},
    ]
)
_wrong_items = st.builds(lambda item, wrong: item._replace(body=None, **wrong), _good_items, _wrong_fields)
items = st.one_of(*[_good_items] * 5, _wrong_items)
item_lists = st.lists(items, min_size=1, max_size=7)

picks = st.builds(
    HandlePick,
    _weighted((10, "live"), (4, "known"), (1, "attempt"), (1, "fence"), (1, "never"), (1, "item"), (1, "zero")),
    st.integers(0, 30),
)
pick_lists = st.lists(picks, min_size=1, max_size=4)

versions = st.lists(
    st.tuples(st.sampled_from(["v1", "v2", "v3", "v4"]), st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=4
)
effect_steps = st.lists(
    st.tuples(_weighted((3, "begin"), (2, "finish")), _weighted((3, "e1"), (1, "e2"), (1, "e3"))),
    min_size=1,
    max_size=4,
) | st.permutations(["e1", "e2", "e3"]).map(
    # All from begin to end, and then a look at which of them are still known.
    lambda effects: [(step, effect) for effect in effects for step in ("begin", "finish")] + [("begin", effects[1])]
)

delays = (
    st.none() | _weighted((2, 0), (2, 7), (1, 40)) | st.lists(st.sampled_from([None, 0, 15]), min_size=4, max_size=4)
)
requeues = _weighted((3, True), (2, False)) | st.lists(st.booleans(), min_size=4, max_size=4)

changes: SearchStrategy[Mapping[str, Any]] = st.dictionaries(
    st.sampled_from(
        [
            ("capacity", 6),
            ("capacity", 12),
            ("max_attempts", 1),
            ("max_attempts", 4),
            *[("lease_duration_ms", 20)] * 4,
            ("lease_duration_ms", 80),
            ("requeue_delay_ms", 0),
            ("requeue_delay_ms", 25),
            ("high_watermark", 3),
            ("high_watermark", None),
            ("high_watermark", 5),
            ("low_watermark", 1),
            ("low_watermark", None),
            ("low_watermark", 3),
            ("dedup_window_ms", 0),
            ("dedup_window_ms", 60),
            ("dedup_window_ms", 5000),
            ("dedup_limit", 0),
            ("dedup_limit", 3),
            ("dead_letter_limit", 0),
            ("dead_letter_limit", 1),
            ("dead_letter_limit", 5),
            ("max_body_bytes", 3),
            ("max_body_bytes", 8),
            ("peer_grace_ms", 100),
            ("enforce_peer_health", True),
            ("enforce_peer_health", False),
            ("capacity", 0),
            ("capcity", 5),
        ]
    ),
    st.none(),
    max_size=4,
).map(lambda chosen: dict(chosen.keys()))


def columns(specs: Sequence[ItemSpec]) -> bytes:
    """The items as one packed set of columns; what all have in common is said once."""
    spread: list[Any] = []
    for place in range(len(ItemSpec._fields)):
        values = [spec[place] for spec in specs]
        spread.append(values[0] if values[1:] and set(map(repr, values)) == {repr(values[0])} else values)
    resource_type, resource_id, body, request_id, priority, not_before_ms = spread
    return ItemColumns(
        len(specs),
        resource_type,
        resource_id,
        body=body if isinstance(body, list) else [body] * len(specs),
        request_id=request_id if isinstance(request_id, list) or request_id is None else [request_id] * len(specs),
        priority=priority,
        not_before_ms=not_before_ms,
    ).packed()
