"""The log of events on disk: segment files, their writer, their readers; see ``docs/segment-format.md``."""

from resourcelease.storage.segments.directory import (
    Owner,
    Register,
    has_history,
    log_directory,
    put_aside,
    segment_paths,
)
from resourcelease.storage.segments.errors import (
    CorruptSegment,
    Damage,
    HistoryGone,
    HistoryMissing,
    SegmentRefused,
    SegmentsDiverged,
    SegmentsStopped,
)
from resourcelease.storage.segments.file import SegmentFile
from resourcelease.storage.segments.footer import Footer
from resourcelease.storage.segments.format import SEGMENT_VERSION, Header, segment_name
from resourcelease.storage.segments.frames import Frame
from resourcelease.storage.segments.install import install
from resourcelease.storage.segments.log import Log, SegmentInfo
from resourcelease.storage.segments.options import LogOptions, LogState, LogStats
from resourcelease.storage.segments.points import SEGMENT_POINTS
from resourcelease.storage.segments.query import Query
from resourcelease.storage.segments.retention import Retention
from resourcelease.storage.segments.summary import Span
from resourcelease.storage.segments.verify import Checked, Problem, Report, verify, verify_content, verify_file
from resourcelease.storage.segments.writer import SegmentWriter

__all__ = [
    # Writing.
    "SegmentWriter",
    "LogOptions",
    "LogState",
    "LogStats",
    "Retention",
    "Owner",
    "Register",
    # Reading.
    "Log",
    "SegmentInfo",
    "Query",
    "SegmentFile",
    "Frame",
    "Header",
    "Footer",
    "Span",
    "has_history",
    "log_directory",
    "segment_name",
    "segment_paths",
    "SEGMENT_VERSION",
    # Verifying and mending.
    "verify",
    "verify_content",
    "verify_file",
    "install",
    "put_aside",
    "Report",
    "Checked",
    "Problem",
    # Errors.
    "CorruptSegment",
    "Damage",
    "HistoryGone",
    "HistoryMissing",
    "SegmentRefused",
    "SegmentsDiverged",
    "SegmentsStopped",
    # For tests.
    "SEGMENT_POINTS",
]
