"""The library's own test-suite, run against our transport, journal and store where a case is about them.

The newest suite that its repository has under a commit of its own is 0.3.14's; its cases hold for 0.3.17 as well.
"""

import ast
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pysyncobj
import pytest

from .journal import StoredJournal
from .source import upstream_source
from .standin import StandIn, World

# About ten seconds in all.
RUN = (
    "test_syncTwoObjects",
    "test_hasQuorum",
    "test_singleObject",
    "test_syncThreeObjectsLeaderFail",
    "test_checkCallbacksSimple",
    "test_logCompactionRegressionTest2",
    "test_journalTest1",
    "test_journalTest2",
    "test_ipv6",
    "test_localhost",
    "test_leaderFallback",
)
# These wait for their time to pass, whatever happens: from eight seconds up to two minutes.
SLOW = (
    "test_manyActionsLogCompaction",
    "test_checkDumpToFile",
    "test_checkBigStorage",
    "test_randomTest1",
    "test_applyJournalAfterRestart",
    "test_autoTick1",
    "test_batteriesCommon",
)

_PASSWORD = "the library's password; here connections are TLS with certificates (tests/consensus/test_cluster.py)"
_ADMIN = "its admin tool's protocol on the nodes' port; here administration is a call (tests/consensus)"
_ORDER = "it adds a node that does not run yet; here one must have caught up before it counts"
_PICKLE = "it is about pickles, of which none is ever read here"
_LOCAL = "a data structure of the library's alone: neither transport nor journal is in it"
_READERS = "nodes that only read, which this cluster does not have"
NOT_APPLICABLE = {
    "test_encryptionCorrectPassword": _PASSWORD,
    "test_encryptionWrongPassword": _PASSWORD,
    "test_syncobjAdminStatus": _ADMIN,
    "test_syncobjAdminSetVersion": _ADMIN,
    "test_syncobjAdminAddRemove": f"{_ADMIN}; and {_ORDER}",
    "test_journalWithAddNodes": f"{_ADMIN}; and {_ORDER}",
    "test_doChangeClusterUT1": "it hands pickled changes of membership to the core; here they are entries of our own",
    "test_doChangeClusterUT2": _ORDER,
    "test_unpickle": _PICKLE,
    "test_readOnlyNodes": _READERS,
    "test_readOnlyDrop": _READERS,
    "test_ReplCounter": _LOCAL,
    "test_ReplList": _LOCAL,
    "test_ReplDict": _LOCAL,
    "test_ReplSet": _LOCAL,
    "test_ReplQueue": _LOCAL,
    "test_ReplPriorityQueue": _LOCAL,
    "test_zeroDeployVersions": "the library's tables of replicated methods: neither transport nor journal is in it",
    "test_dnsResolverBug": "the library's resolver, which is not used: addresses go to asyncio",
    "test_logCompactionRegressionTest1": "it loads the library's dump file, which is never written here",
    "test_largeCommands": "one command of 20 MB; an entry is bounded here, and a larger one refused (TooLarge)",
    "test_syncobjWaitBinded": "the library's retries when its port is taken; here start() raises what the system says",
    "test_consumers": "one of its three nodes never runs; here a cluster is founded by all its founders",
    "test_filterParners": "a node that is listed twice; members are a mapping by id here",
}


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The upstream module, with our stand-ins in the library's places."""
    source = upstream_source()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pysyncobj, "SyncObj", StandIn)
    monkeypatch.setattr(pysyncobj, "createJournal", StoredJournal)
    module = types.ModuleType("upstream_suite")
    exec(compile(source, "test_syncobj.py", "exec"), module.__dict__)
    world = World(tmp_path)
    monkeypatch.setattr(StandIn, "world", world, raising=False)
    yield module
    world.close()


@pytest.mark.parametrize("case", [*RUN, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
@pytest.mark.timeout(300)
def test_case(case: str, suite: Any) -> None:
    getattr(suite, case)()


def test_every_case_runs_or_stands_on_the_list() -> None:
    there = {
        node.name
        for node in ast.parse(upstream_source()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert there == {*RUN, *SLOW, *NOT_APPLICABLE}
    assert len(there) == len(RUN) + len(SLOW) + len(NOT_APPLICABLE)
