"""What all worker streams of a node share."""

from collections.abc import Callable

from resourcelease.frontdoor.acks import Acks
from resourcelease.frontdoor.granter import Granter
from resourcelease.frontdoor.replica import Replica
from resourcelease.frontdoor.streams import Streams
from resourcelease.model.options import DEFAULT_OPTIONS, QueueOptions

__all__ = ["Workplace"]


class Workplace:
    """The node, as a worker's stream sees it."""

    def __init__(
        self,
        *,
        node_id: str,
        replica: Replica,
        granter: Granter,
        streams: Streams,
        next_operation_id: Callable[[], str],
    ) -> None:
        self.node_id = node_id
        self.replica = replica
        self.granter = granter
        self.streams = streams
        self.next_operation_id = next_operation_id
        self.acks = Acks(replica)
        self.default_options: QueueOptions = DEFAULT_OPTIONS
