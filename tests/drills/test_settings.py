"""Settings say what they cannot do before a drill begins; containers leave nothing behind."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from chaos.drills import containers
from chaos.drills.catalog import DRILLS, mix
from chaos.drills.containers import ContainerNode, Containers, EngineNetwork, Plan
from chaos.drills.engine import EngineError, docker, why_no_engine
from chaos.drills.loopback import Loopback, ProxyNetwork
from chaos.drills.namespaces import KernelNetwork, Namespaces
from chaos.drills.network import CLIENTS, CUT, Rule, between, isolated
from chaos.drills.program import main
from chaos.drills.run import run_drill
from chaos.drills.settings import SETTINGS, why_skipped


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings can be used, whatever this machine has."""
    for setting in SETTINGS.values():
        monkeypatch.setattr(setting, "why_not", lambda self: "")


@pytest.mark.usefixtures("able")
def test_what_containers_cannot_do_is_skipped_and_says_why() -> None:
    skipped = {name for name, drill in DRILLS.items() if why_skipped(Containers(), drill)}
    cannot = {"one-way", "slow-link", "names-away", "cloned-node", "rolling-upgrade"}
    assert cannot <= skipped
    assert skipped - cannot == {name for name, drill in DRILLS.items() if drill.shim or drill.why_skipped()} - cannot
    assert "--setting" in why_skipped(Containers(), DRILLS["one-way"])
    assert "planted defect" in why_skipped(Containers(), DRILLS["kill-leader"], plant="twins")


@pytest.mark.usefixtures("able")
def test_what_other_settings_cannot_do() -> None:
    assert "names" in why_skipped(Loopback(), DRILLS["names-away"])
    assert why_skipped(Loopback(), DRILLS["one-way"]) == why_skipped(Loopback(), DRILLS["cloned-node"]) == ""
    assert "delays" in why_skipped(Namespaces(), DRILLS["slow-link"])
    assert why_skipped(Namespaces(), DRILLS["kill-leader"], plant="twins") == ""


@pytest.mark.parametrize(
    ("network", "cannot"),
    [(ProxyNetwork, set()), (KernelNetwork, {"slow", "reset"}), (EngineNetwork, {"one_way", "slow", "reset"})],
)
def test_a_mix_has_no_trouble_that_the_network_cannot_make(network: Any, cannot: set[str]) -> None:
    # What a network can do stands in its class.
    weights = {trouble.__name__.strip("_"): weight for trouble, weight in mix._troubles(network).items()}
    assert {name for name, weight in weights.items() if not weight} == cannot


def test_without_an_engine_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    assert main(["kill-leader", "--setting", "containers"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "docker" in said.lower()


def plan(directory: Path, *names: str) -> Plan:
    made = Plan(directory, "image:1")
    made.ports = {name: 40_000 + at for at, name in enumerate(names)}
    return made


def test_everything_is_named_after_the_run_and_closed_to_others(tmp_path: Path) -> None:
    first, second = plan(tmp_path, "n1", "n2", "n3"), plan(tmp_path, "n1")
    assert first.project != second.project
    first.write()
    content: dict[str, Any] = json.loads(first.path.read_text())
    assert set(content["networks"]) == {"outer", "n1-n2", "n1-n3", "n2-n3"}
    assert all(content["networks"][name] == {"internal": True} for name in content["networks"] if name != "outer")
    assert set(content["volumes"]) == set(content["services"]) == {"n1", "n2", "n3"}
    for name, service in content["services"].items():
        assert service["container_name"] == f"{first.project}-{name}"
        assert service["ports"] == [f"127.0.0.1:{first.ports[name]}:7101"]
        assert set(service["networks"]) == {"outer", *(each for each in content["networks"] if name in each)}
        # Nodes are called by names that the clients' network does not know.
        assert service["networks"]["outer"] == {}
        device = content["volumes"][name]["driver_opts"]["device"]
        assert device == str((tmp_path / name / "data").resolve())


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engine was told, instead of an engine."""
    told: list[str] = []

    def docker(*words: str, seconds: float = 0.0) -> str:
        told.append(" ".join(words))
        return ""

    monkeypatch.setattr(containers, "docker", docker)
    return told


def test_a_cut_is_a_container_that_leaves_a_network_and_its_end_one_that_enters_it(
    tmp_path: Path, orders: list[str]
) -> None:
    made = plan(tmp_path, "n1", "n2", "n3")
    network, run = EngineNetwork(made), made.project

    async def scenario() -> None:
        await network.apply(isolated("n3", ["n1", "n2", "n3"]))
        assert sorted(orders) == [
            f"network disconnect {run}_n1-n3 {run}-n1",
            f"network disconnect {run}_n2-n3 {run}-n2",
        ]
        orders.clear()
        await network.apply({**between(["n1"], ["n3"]), **between([CLIENTS], ["n2"])})
        assert sorted(orders) == [
            f"network connect --alias n2.peers {run}_n2-n3 {run}-n2",
            f"network disconnect {run}_outer {run}-n2",
        ]
        orders.clear()
        await network.apply({})
        assert sorted(orders) == [
            f"network connect --alias n1.peers {run}_n1-n3 {run}-n1",
            f"network connect {run}_outer {run}-n2",
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "rules",
    [{("n1", "n2"): CUT}, between(["n1"], ["n2"], Rule(delay_ms=5)), between(["n1"], ["n2"], Rule(False, 0, 9))],
)
def test_what_a_network_of_containers_cannot_do_is_refused(tmp_path: Path, orders: list[str], rules: Any) -> None:
    network = EngineNetwork(plan(tmp_path, "n1", "n2"))
    with pytest.raises(OSError, match="network"):
        asyncio.run(network.apply(rules))
    assert orders == []


@pytest.mark.parametrize(("code", "meant"), [(0, 0), (1, 1), (137, -9), (143, -15)])
def test_a_container_that_a_signal_ended_is_told_from_one_that_ended_by_itself(
    tmp_path: Path, code: int, meant: int
) -> None:
    node = ContainerNode(plan(tmp_path, "n1"), "n1", {})
    node._process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    node._process.wait()
    assert node.exit_code == meant
    assert node.pid is None


@pytest.mark.parametrize("program", ["docker compose", "docker-compose"])
def test_what_failed_stays_and_says_how_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(containers, "compose_words", lambda: tuple(program.split()))
    setting = Containers()
    assert setting.clear(keep=False) == []
    made = setting._plan = plan(tmp_path, "n1")
    look, remove = setting.clear(keep=True)
    assert f"project={made.project}" in look
    assert remove.startswith(f"remove: {program} --project-name")
    assert f"--project-name {made.project}" in remove
    assert remove.endswith("down --volumes")


def test_what_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(self: Plan, *words: str) -> str:
        raise EngineError("the engine is gone")

    monkeypatch.setattr(Plan, "compose", busy)
    setting = Containers()
    setting._plan = plan(tmp_path, "n1")
    said, remove = setting.clear(keep=False)
    assert "the engine is gone" in said
    assert "down --volumes" in remove


def test_what_is_being_made_when_somebody_interrupts_is_taken_away_once_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def compose(self: Plan, *words: str) -> str:
        orders.append(f"{words[0]} begins")
        if words[0] == "up":
            begun.set()
            assert go_on.wait(20)
        orders.append(f"{words[0]} ends")
        return ""

    monkeypatch.setattr(Plan, "compose", compose)
    monkeypatch.setattr(containers, "build_image", lambda: "image:1")
    setting = Containers()

    async def interrupted() -> None:
        making = asyncio.create_task(setting.found(tmp_path, 3, DRILLS["kill-leader"]))
        assert await asyncio.to_thread(begun.wait, 20)
        making.cancel()
        try:
            await making
        finally:
            go_on.set()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())
    setting.clear(keep=False)
    assert orders == ["up begins", "up ends", "down begins", "down ends"]


def test_what_could_not_be_made_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[str] = []

    def compose(self: Plan, *words: str) -> str:
        orders.append(words[0])
        if words[0] == "up":
            raise EngineError("no room for networks")
        return ""

    monkeypatch.setattr(Plan, "compose", compose)
    monkeypatch.setattr(containers, "build_image", lambda: "image:1")
    setting = Containers()
    with pytest.raises(EngineError):
        asyncio.run(setting.found(tmp_path, 3, DRILLS["kill-leader"]))
    assert orders == ["up", "down"]
    assert setting.clear(keep=True) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_drill_in_containers_leaves_nothing_behind(tmp_path: Path) -> None:
    if reason := why_no_engine():
        pytest.skip(reason)
    setting = Containers()

    async def whole() -> list[str]:
        drill = DRILLS["kill-leader"]
        cluster = await setting.found(tmp_path, 3, drill)
        outcome = await run_drill(drill, cluster, tmp_path, seconds=5.0, seed=7, tell=lambda _: None)
        return outcome.problems

    try:
        problems = asyncio.run(whole())
        assert setting._plan is not None
        run = setting._plan.project
    finally:
        setting.clear(keep=False)
    assert problems == []
    for kind in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        assert docker(*kind, "--quiet", "--filter", f"name={run}") == ""
