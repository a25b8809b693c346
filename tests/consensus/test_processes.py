"""Three real processes, real sockets, real stores, the real machine; killed, stopped, filled and wiped under load.

Each test ends with the same check: all nodes hold the same state, and whatever was answered is in it, once.
"""

import shutil
from pathlib import Path

import pytest

from .processes import Nodes

# So few entries that the journal is cut often, and a node that was away needs a snapshot.
SHORT = {"flush_entries": 40, "flush_s": 0.2, "keep_entries": 5}


def test_a_leader_and_a_follower_are_killed_under_load(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes:
        leader = nodes.start_all()
        survivor, follower = nodes.others(leader)
        for name in nodes.addresses:
            nodes[name].ask("load")
        nodes[survivor].ask("answers", more=50)
        nodes.kill(leader)
        nodes[survivor].ask("answers", more=50)
        nodes.start(leader)
        nodes[leader].ask("load")
        nodes[leader].ask("answers", more=20)
        nodes.kill(follower)
        nodes[survivor].ask("answers", more=50)
        nodes.start(follower)
        assert len(nodes.check()) >= 170


def test_all_are_killed_at_once(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3, **SHORT) as nodes:
        for turn in range(3):
            nodes.start_all()
            for name in nodes.addresses:
                nodes[name].ask("load")
            nodes["n1"].ask("answers", more=60)
            nodes["n3"].ask("answers", more=10)
            nodes.kill(*nodes.addresses)
            assert len(list(nodes.acked())) >= 70 * (turn + 1)
        nodes.start_all()
        nodes.check()


def test_a_leader_whose_time_stands_still_comes_back(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes:
        leader = nodes.start_all()
        for name in nodes.addresses:
            nodes[name].ask("load")
        nodes[leader].ask("answers", more=20)
        other = nodes.others(leader)[0]
        nodes.stop_time(leader)
        # Three seconds of answers, counted by the others' clock.
        successor = nodes[other].ask("leader", but=leader)
        assert successor != leader
        with pytest.raises(RuntimeError, match="TimeoutError"):
            nodes[other].ask("leader", but=successor, timeout_s=3.0)
        nodes[other].ask("answers", more=50)
        nodes.go_on(leader)
        assert nodes[leader].ask("leader", but=leader) == successor
        nodes[leader].ask("answers", more=20)
        nodes.check()


def test_a_member_that_lost_its_disk_helps_to_elect_nobody(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes:
        leader = nodes.start_all()
        behind, wiped = nodes.others(leader)
        nodes[behind].ask("applied", index=nodes[leader].ask("barrier"))
        # What is answered now is on two disks: the leader's, and the one that will be lost.
        nodes.kill(behind)
        nodes[leader].ask("load")
        nodes[leader].ask("answers", more=30)
        nodes.kill(wiped, leader)
        shutil.rmtree(tmp_path / wiped)
        nodes.start(behind, wiped)
        # They are a majority, and would agree on a history in which it never happened.
        for name in (behind, wiped):
            with pytest.raises(RuntimeError, match="TimeoutError"):
                nodes[name].ask("leader", timeout_s=2.0)
        # Nor does it after a restart, with its directory begun.
        nodes.kill(wiped)
        nodes.start(wiped)
        with pytest.raises(RuntimeError, match="TimeoutError"):
            nodes[behind].ask("leader", timeout_s=2.0)
        nodes.start(leader)
        assert len(nodes.check()) >= 30
        # It has caught up, so it counts again.
        nodes.kill(behind)
        nodes[wiped].ask("load")
        nodes[wiped].ask("answers", more=10)
        nodes.kill(leader)
        nodes.start(leader, behind)
        nodes.check()


def test_a_wiped_node_is_added_again(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3, **SHORT) as nodes:
        leader = nodes.start_all()
        wiped, other = nodes.others(leader)
        nodes[leader].ask("load")
        nodes[leader].ask("answers", more=100)
        nodes.kill(wiped)
        shutil.rmtree(tmp_path / wiped)
        nodes[leader].ask("remove", node=wiped)
        nodes[leader].ask("answers", more=100)
        nodes.start(wiped, bootstrap={})
        nodes[other].ask("add", node=wiped, address=nodes.addresses[wiped])
        nodes[wiped].ask("load")
        nodes[wiped].ask("answers", more=20)
        assert sorted(nodes[wiped].ask("status")["members"]) == ["n1", "n2", "n3"]
        nodes.check()


def test_one_node_grows_to_three_under_load(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3, **SHORT) as nodes:
        nodes.start("n1", bootstrap={"n1": nodes.addresses["n1"]})
        nodes["n1"].ask("load")
        nodes["n1"].ask("answers", more=100)
        for name in ("n2", "n3"):
            nodes.start(name, bootstrap={})
            nodes["n1"].ask("add", node=name, address=nodes.addresses[name])
            nodes[name].ask("load")
            nodes[name].ask("answers", more=20)
        assert sorted(nodes["n3"].ask("status")["members"]) == ["n1", "n2", "n3"]
        nodes.kill("n1")
        nodes["n2"].ask("answers", more=20)
        nodes.start("n1", bootstrap={"n1": nodes.addresses["n1"]})
        nodes.check()


def test_a_removed_node_and_a_handed_over_lead(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes:
        leader = nodes.start_all()
        target, removed = nodes.others(leader)
        for name in (leader, target):
            nodes[name].ask("load")
        nodes[leader].ask("answers", more=20)
        nodes[removed].ask("transfer", node=target)
        assert nodes[target].ask("leader", but=leader) == target
        nodes[target].ask("remove", node=removed)
        nodes.kill(removed)
        nodes[leader].ask("answers", more=20)
        # Two of two: without either there is no majority, and with both there is.
        assert sorted(nodes[leader].ask("status")["members"]) == sorted((leader, target))
        nodes.check()


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_full_disk_leaves_the_cluster_serving(tmp_path: Path, who: str) -> None:
    with Nodes(tmp_path, 3) as nodes:
        leader = nodes.start_all()
        full = leader if who == "leader" else nodes.others(leader)[0]
        well = next(name for name in nodes.others(full) if name != leader)
        nodes[well].ask("load")
        nodes[well].ask("answers", more=20)
        nodes[full].ask("fill_disk")
        nodes[well].ask("answers", more=50)
        if full == leader:
            assert nodes[well].ask("leader", but=leader) != leader
        nodes[full].ask("free_disk")
        nodes.check()


def test_a_node_behind_the_journal_catches_up_by_a_snapshot(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3, **SHORT) as nodes:
        leader = nodes.start_all()
        behind, other = nodes.others(leader)
        nodes[other].ask("load")
        nodes[other].ask("answers", more=20)
        nodes.kill(behind)
        nodes[other].ask("answers", more=400)
        nodes.start(behind)
        nodes[behind].ask("applied", index=nodes[leader].ask("status")["applied"])
        nodes[behind].ask("load")
        nodes[behind].ask("answers", more=20)
        nodes.check()
