"""Fails when a release of pysyncobj moves anything that consensus reaches for."""

import inspect
import pickle
import random
import time
from pathlib import Path
from zlib import crc32

import pysyncobj.version
import pytest
from pysyncobj import syncobj
from pysyncobj.serializer import Serializer
from pysyncobj.transport import Transport

import resourcelease.consensus
from resourcelease.consensus import seams

# Of the methods whose inner working the guards rely on. A new value means: read the change, run the simulator's
# plants and sweeps, and only then write it down here.
SOURCES = {
    "_SyncObj__applyLogEntries": 113692494,
    "_SyncObj__getEntries": 1369237453,
    "_SyncObj__loadDumpFile": 2753032541,
    "_SyncObj__onBecomeLeader": 3429425042,
    "_SyncObj__onMessageReceived": 3723728943,
    "_SyncObj__sendAppendEntries": 172517562,
    "_SyncObj__sendNextNodeIdx": 1453033091,
    "_SyncObj__tryLogCompaction": 2641218289,
    "__init__": 3390957284,
    "_checkCommandsToApply": 1542853703,
    "_onTick": 3721633733,
    "transferLeadership": 1502319449,
}


def test_the_release_is_the_one_that_was_read() -> None:
    assert pysyncobj.version.VERSION == seams.LIBRARY_VERSION


@pytest.mark.parametrize("name", SOURCES)
def test_what_the_guards_rely_on_has_not_changed(name: str) -> None:
    source = inspect.getsource(getattr(syncobj.SyncObj, name))
    assert crc32(source.encode()) == SOURCES[name], f"{name} is not what it was in pysyncobj {seams.LIBRARY_VERSION}"


@pytest.mark.parametrize("name", seams.USED["methods"])
def test_methods_are_there(name: str) -> None:
    assert callable(getattr(syncobj.SyncObj, name))


@pytest.mark.parametrize("name", seams.USED["attributes"])
def test_attributes_are_set_by_the_library(name: str) -> None:
    assert f"self.{name.removeprefix('_SyncObj')}" in inspect.getsource(syncobj.SyncObj)


@pytest.mark.parametrize("name", seams.USED["module"])
def test_module_names_are_looked_up_when_used(name: str) -> None:
    assert hasattr(syncobj, name)
    assert f"{name}" in inspect.getsource(syncobj.SyncObj)


def test_nodes_are_told_apart_by_their_whole_id() -> None:
    """And hash alike in every process, whatever PYTHONHASHSEED is."""
    one, same = seams.Peer("n1"), seams.Peer("n1")
    assert one == same
    assert hash(one) == hash(same) == int.from_bytes(b"n1", "big")
    assert (one.id, str(one)) == ("n1", "n1")
    assert "n1" in repr(one)
    long = [seams.Peer(f"{name}-with-the-same-end") for name in ("a", "b")]
    assert len({*long, one, same}) == 3
    copied = pickle.loads(pickle.dumps(long[0]))
    assert (copied, copied.id) == (long[0], long[0].id)


def test_fields_of_the_library_are_read_as_they_are() -> None:
    """Under our names; that they cannot be set under them keeps what changes them in one place."""
    raft = seams.LibRaft.__new__(seams.LibRaft)
    names = {
        "term": "_SyncObj__raftCurrentTerm",
        "state": "_SyncObj__raftState",
        "commit_index": "_SyncObj__raftCommitIndex",
        "applied_index": "_SyncObj__raftLastApplied",
        "election_at": "_SyncObj__raftElectionDeadline",
        "heartbeat_at": "_SyncObj__newAppendEntriesTime",
    }
    for value, (ours, theirs) in enumerate(names.items()):
        setattr(raft, theirs, value)
        assert getattr(raft, ours) == value
        assert theirs in seams.USED["attributes"]
        with pytest.raises(AttributeError):
            setattr(raft, ours, 7)


def test_a_turn_within_a_turn_has_its_own_time() -> None:
    seams.patch_library()
    outer, inner = random.Random(1), random.Random(2)
    with seams.ambient(5.0, outer):
        with seams.ambient(7.0, inner, 0.5):
            assert (syncobj.monotonicTime(), syncobj.monotonicTime()) == (7.0, 7.5)
            assert syncobj.random.random() == random.Random(2).random()
        assert syncobj.monotonicTime() == 5.0
        assert syncobj.random.random() == random.Random(1).random()
    before = time.monotonic()
    assert before <= syncobj.monotonicTime() <= time.monotonic()


def test_stand_ins_answer_every_call_of_the_library() -> None:
    called = {"checkSerializing", "serialize", "getTransmissionData", "setTransmissionData", "deserialize"}
    called.add("cancelTransmisstion")
    public = {name for name, _ in inspect.getmembers(Serializer, inspect.isfunction) if not name.startswith("_")}
    assert public == called
    assert {name for name in called if not hasattr(seams._Serializer, name)} == set()
    for name in ("_onMessageReceived", "_onNodeConnected", "_onNodeDisconnected", "addNode", "dropNode", "destroy"):
        assert hasattr(Transport, name)


def test_private_names_of_the_library_stand_in_one_module() -> None:
    room = Path(resourcelease.consensus.__file__).parent
    elsewhere = [
        path.name for path in room.glob("*.py") if path.name != "seams.py" and "_SyncObj__" in path.read_text()
    ]
    assert elsewhere == []
    imports = [
        path.name
        for path in room.glob("*.py")
        if "pysyncobj" in path.read_text() and "import pysyncobj" in path.read_text()
    ]
    assert imports == ["seams.py"]
