"""Items as a producer describes them, and what comes back."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from resourcelease import v1

__all__ = ["Enqueued", "GivenItem", "NewItem", "item_of", "new_item"]


class Enqueued(NamedTuple):
    """An item that the cluster has.

    ``sequence_id`` is its name for life. ``duplicate``: its request id was known, and nothing was added.
    """

    sequence_id: int
    duplicate: bool


class NewItem(NamedTuple):
    """An item to enqueue, as ``new_item`` makes it; the fields are those of ``ItemPayload``."""

    resource_type: str
    resource_id: str
    body: bytes
    # None: the default.
    priority: int | None
    not_before_ms: int
    request_id: str
    partition_key: str
    payload_encoding: str
    attributes: Mapping[str, str] | None

    @classmethod
    def of(cls, message: v1.ItemPayload) -> "NewItem":
        """An item from a message."""
        return cls(
            message.resource_type,
            message.resource_id,
            message.body,
            message.priority if message.HasField("priority") else None,
            message.not_before_ms,
            message.request_id,
            message.partition_key,
            message.payload_encoding,
            dict(message.attributes) or None,
        )

    def message(self) -> v1.ItemPayload:
        """The item as a message."""
        return v1.ItemPayload(**self._asdict())


GivenItem: TypeAlias = NewItem | v1.ItemPayload | Mapping[str, Any]


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
) -> NewItem:
    """An item to enqueue: work about a resource.

    ``priority`` is 0 to 9, higher first, 4 if not given; ``delay`` are seconds before which it is not granted;
    ``request_id`` makes enqueueing it twice harmless.

    >>> new_item("table", "orders", b"...", priority=9).priority
    9
    """
    if (
        type(resource_type) is type(resource_id) is str
        and type(body) is bytes
        and priority is None
        and not (delay or request_id or partition_key or payload_encoding or attributes)
        and resource_type.isascii()
        and resource_id.isascii()
    ):
        return NewItem(resource_type, resource_id, body, None, 0, "", "", "", None)
    # Whatever is wrong with a field, the message says so here, and not to those whose items travel with this one.
    message = v1.ItemPayload(
        resource_type=resource_type,
        resource_id=resource_id,
        body=body,
        priority=priority,
        not_before_ms=int(delay * 1000) if delay else 0,
        request_id=request_id,
        partition_key=partition_key,
        payload_encoding=payload_encoding,
        attributes=attributes,
    )
    return NewItem.of(message)


def item_of(given: GivenItem) -> NewItem:
    """An item from what ``new_item`` made, from a message, or from the arguments of ``new_item`` as a mapping."""
    if type(given) is NewItem:
        return given
    return NewItem.of(given) if isinstance(given, v1.ItemPayload) else new_item(**given)  # type: ignore[arg-type]
