"""Places between two steps of writing the event log; see ``resourcelease.storage.points``."""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SEGMENT_POINTS"]

SEGMENT_POINTS: Mapping[str, str] = MappingProxyType(
    {
        "segment.created": "a new file exists and is empty",
        "segment.headed": "its header is written; nothing is synced",
        "segment.written": "frames are written; nothing is synced",
        "segment.synced": "the file is synced; its name may not be",
        "segment.durable": "the name is synced too, and nobody has been told",
        "segment.footed": "the footer is written, the trailer is not",
        "segment.ended": "the trailer is written; nothing is synced",
        "segment.sealed": "the sealed file is synced; the next one does not exist",
        "resume.cut": "a torn tail is cut, the file not yet synced",
        "retention.noted": "what is about to be deleted is noted as retired",
        "retention.deleted": "one file is deleted",
        "install.drafted": "a verified segment lies beside its place, synced",
        "install.replaced": "it has taken its place; what it stands for as well is still there",
        "install.cleared": "what it stands for as well is deleted",
    }
)
