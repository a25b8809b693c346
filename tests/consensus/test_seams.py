"""Fails when a release of pysyncobj moves anything that consensus reaches for."""

import inspect
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
