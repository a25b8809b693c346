"""Items as a producer describes them, and what comes back."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from resourcelease import v1

__all__ = ["Enqueued", "item_of", "new_item"]


class Enqueued(NamedTuple):
    """An item that the cluster has.

    ``sequence_id`` is its name for life. ``duplicate``: its request id was known, and nothing was added.
    """

    sequence_id: int
    duplicate: bool


def new_item(
    resource_type: str,
    resource_id: str,
    body: bytes = b"",
    *,
    priority: int | None = None,
    delay: float = 0.0,
    request_id: str = "",
    partition_key: str = "",
    payload_encoding: str = "",
    attributes: Mapping[str, str] | None = None,
) -> v1.ItemPayload:
    """An item to enqueue: work about a resource.

    ``priority`` is 0 to 9, higher first, 4 if not given; ``delay`` are seconds before which it is not granted;
    ``request_id`` makes enqueueing it twice harmless.

    >>> new_item("table", "orders", b"...", priority=9).priority
    9
    """
    item = v1.ItemPayload(resource_type=resource_type, resource_id=resource_id, body=body)
    if priority is not None:
        item.priority = priority
    if delay:
        item.not_before_ms = int(delay * 1000)
    if request_id:
        item.request_id = request_id
    if partition_key:
        item.partition_key = partition_key
    if payload_encoding:
        item.payload_encoding = payload_encoding
    if attributes:
        item.attributes.update(attributes)
    return item


def item_of(given: "v1.ItemPayload | Mapping[str, Any]") -> v1.ItemPayload:
    """An item from a message, or from the arguments of ``new_item`` as a mapping."""
    return given if isinstance(given, v1.ItemPayload) else new_item(**given)
