"""Which sink a URL names."""

from pathlib import Path

from resourcelease.events.object_sink import ObjectSink
from resourcelease.events.sink import Sink
from resourcelease.events.sqlite_sink import SqliteSink

__all__ = ["sink_at", "wrong_url"]

_SQLITE = "sqlite://"


def sink_at(url: str) -> Sink:
    """The sink that a URL names: ``sqlite:///path/file.db``, or what fsspec knows. ``SinkError`` if there is none."""
    if url.startswith(_SQLITE + "/"):
        return SqliteSink(Path(url.removeprefix(_SQLITE)))
    return ObjectSink(url)


def wrong_url(url: str) -> str:
    """What is wrong with the form of a URL; "" if nothing is.

    >>> wrong_url("sqlite://history.db")
    'must name the file by its whole path, such as sqlite:///var/lib/history.db'
    >>> wrong_url("s3://bucket/history"), wrong_url("sqlite:///var/lib/history.db")
    ('', '')
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme or not rest:
        return "must be a URL, such as sqlite:///var/lib/history.db or s3://bucket/history"
    if url.startswith(_SQLITE) and (not rest.startswith("/") or rest.endswith("/")):
        return "must name the file by its whole path, such as sqlite:///var/lib/history.db"
    return ""
