"""The history as immutable objects in S3, GCS, Azure or a folder, by fsspec.

An object is gzipped JSON, one event a line, under ``events/<first event, 20 digits>.jsonl.gz``. Its name says where it
begins and its content where it ends, so the objects themselves are the checkpoint. None is ever written over.
"""

import gzip
import json
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from resourcelease import v1
from resourcelease.events.sink import Checkpoint, Mark, SinkError, StaleWriter, WrongSource, check_writer, fresh

__all__ = ["ObjectSink"]

_DIGITS = 20
_SUFFIX = ".jsonl.gz"
_ABOUT = "about.json"


class ObjectSink:
    """Objects below a URL that fsspec knows.

    Two writers cannot both make the object of one first event, where the store can create a name once only (folders,
    S3, GCS and Azure can); the one that comes second is told. The fence stands in each object's first line.
    """

    def __init__(self, url: str, **options: Any) -> None:
        try:
            import fsspec
        except ModuleNotFoundError as error:
            raise SinkError("object storage needs fsspec: pip install 'resourcelease[export]'") from error
        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise SinkError(f"{url}: {error}") from error
        self._root = self._root.rstrip("/")
        self._checkpoint = Checkpoint(0)
        self._cluster_id = ""

    def open(self, cluster_id: str, start: int) -> Checkpoint:
        """Where to go on, from the newest object."""
        self._fs.invalidate_cache()
        self._fs.makedirs(f"{self._root}/events", exist_ok=True)
        if self._is_folder:
            _check_writable(f"{self._root}/events")
        self._cluster_id = cluster_id
        about = {"format": "resourcelease-events", "version": 1, "cluster_id": cluster_id}
        self._create(_ABOUT, json.dumps(about, indent=1).encode() + b"\n")
        theirs = self._about()
        if theirs != cluster_id:
            raise WrongSource(f"{self.url} holds the history of cluster {theirs}, not of {cluster_id}")
        firsts = sorted(self._firsts())
        # While nothing was copied, what is said now counts, and not what was said at another time.
        self._checkpoint = self._ending(firsts[-1]) if firsts else Checkpoint(start - 1)
        return self._checkpoint

    def apply(self, events: Sequence[v1.Event], fence: int) -> Checkpoint:
        """Keeps a batch as one object."""
        check_writer(self._checkpoint, fence)
        new = fresh(events, self._checkpoint.position)
        if not new:
            return self._checkpoint
        first, last = new[0].sequence_number, new[-1].sequence_number
        lines = [json.dumps({"cluster_id": self._cluster_id, "first": first, "last": last, "fence": fence})]
        lines += [json.dumps(_plain(event), ensure_ascii=False, sort_keys=True) for event in new]
        content = gzip.compress("\n".join([*lines, ""]).encode(), mtime=0)
        if not self._create(f"events/{first:0{_DIGITS}}{_SUFFIX}", content):
            raise StaleWriter(f"another exporter has written event {first} to {self.url}; open the sink again")
        self._checkpoint = Checkpoint(last, fence)
        return self._checkpoint

    def close(self) -> None:
        """There is nothing to let go of."""

    @property
    def _is_folder(self) -> bool:
        protocol = self._fs.protocol
        return "file" in (protocol if isinstance(protocol, tuple) else (protocol,))

    def _firsts(self) -> list[int]:
        names = [str(name).rsplit("/", 1)[-1] for name in self._fs.ls(f"{self._root}/events", detail=False)]
        digits = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return [int(name) for name in digits if len(name) == _DIGITS and name.isdecimal()]

    def _ending(self, first: int) -> Checkpoint:
        name = f"events/{first:0{_DIGITS}}{_SUFFIX}"
        try:
            lines = gzip.decompress(self._fs.cat_file(f"{self._root}/{name}")).splitlines()
            head = json.loads(lines[0])
            if head["first"] != first or head["last"] - first + 2 != len(lines):
                raise ValueError("it does not hold what its first line says")
            last = json.loads(lines[-1])
            mark = Mark(*(int(last.get(field, 0)) for field in Mark._fields))
            return Checkpoint(int(head["last"]), int(head["fence"]), mark)
        except (ValueError, LookupError, TypeError, AttributeError, EOFError, gzip.BadGzipFile) as error:
            raise SinkError(f"{self.url}/{name} is damaged ({error}): move it away, and it is written again") from error

    def _about(self) -> str:
        try:
            about = json.loads(self._fs.cat_file(f"{self._root}/{_ABOUT}"))
            if about["version"] > 1:
                raise WrongSource(f"{self.url} was written by a newer release, in version {about['version']}")
            return str(about["cluster_id"])
        except (ValueError, LookupError, TypeError) as error:
            raise WrongSource(f"{self.url}/{_ABOUT} is not that of an exported history: {error}") from error

    def _create(self, name: str, content: bytes) -> bool:
        """Makes an object, whole or not at all; False if there is one of that name."""
        path = f"{self._root}/{name}"
        if self._fs.exists(path):
            return False
        try:
            if self._is_folder:
                _create_file(path, content)
            else:
                self._fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            return False
        return True


def _check_writable(folder: str) -> None:
    """Fails where nobody may write, by a file that nobody sees. (Of a bucket only the next object tells.)"""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        error.filename = folder
        raise


def _create_file(path: str, content: bytes) -> None:
    """In a folder a name appears only once all of its content is there."""
    draft = f"{path}.{os.getpid()}.draft"
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    finally:
        os.unlink(draft)


def _plain(event: v1.Event) -> dict[str, Any]:
    told: dict[str, Any] = MessageToDict(event, preserving_proto_field_name=True, use_integers_for_enums=False)
    return told
