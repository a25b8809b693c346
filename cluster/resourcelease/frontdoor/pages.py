"""What a page of a bundle holds, for people."""

import msgpack

from resourcelease import v1
from resourcelease.machine.pages import read_page

__all__ = ["summary"]


def summary(page: bytes, *, more: bool = False) -> v1.PageSummary:
    """The summary of a page that the machine has written or accepted."""
    content = read_page(page)
    if isinstance(content, str):
        raise ValueError(f"the machine took a page that is none: {content}")
    fences = [history.last.fence for history in content.histories if history is not None and history.last is not None]
    _, digest = msgpack.unpackb(page)
    return v1.PageSummary(
        cluster_id=content.cluster_id,
        namespace=content.namespace,
        bundle_id=content.bundle_id,
        page=content.number,
        items=len(content.sequence_ids),
        more=more,
        min_fence=min(fences, default=0),
        max_fence=max(fences, default=0),
        cluster_fence=content.fence,
        digest=digest.hex(),
    )
