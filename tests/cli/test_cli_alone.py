"""What the command line does without a cluster: help, mistakes, certificates, and the processes it starts."""

import json
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from cli_cluster import COMMAND, closed_port, dev, node_is_gone, run

from resourcelease.cli import main
from resourcelease.cli.app import COMMANDS, app


def test_help_names_every_command_and_starts_fast() -> None:
    started = time.monotonic()
    done = run("--help")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    # 300 ms on a quiet machine; what would really break it is an import of gRPC, which is looked for below.
    assert time.monotonic() - started < 5


def test_help_loads_none_of_what_is_slow() -> None:
    code = (
        "import sys; from resourcelease.cli import main; main(['--help']); "
        "print([each for each in ('grpc', 'google', 'rich', 'cryptography', 'asyncio') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_help_that_the_list_promises(name: str, capsys: Any) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"resourcelease {name}" in shown or "Usage:" in shown
    promised = COMMANDS[name].help.rstrip(".").split(",")[0].split(";")[0].split()[:3]
    assert promised[0] in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["stauts"], 2, "there is no command 'stauts'; did you mean 'status'?"),
        (["status", "--jsno"], 2, "--json"),
        (["enqueue"], 2, "TYPE and ID are missing"),
        (["complete"], 2, "no handle is given"),
        (["complete", "12"], 2, "one looks like 12:1:40"),
        (["heartbeat"], 2, "give handles, or --all"),
        (["redrive"], 2, "give ids, or --limit"),
        (["status", "--endpoints", "localhost"], 2, "is not host:port"),
        (["status", "--cert", __file__], 2, "--cert and --key belong together"),
        (["node", "--config", "/nowhere.toml"], 1, "/nowhere.toml: cannot be read"),
        (["node", "--set", "nonsense"], 2, "SECTION.KEY=VALUE"),
        (["node", "--set", "grpc.lisen=1"], 1, "did you mean 'listen'?"),
        (["restore", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(arguments: list[str], code: int, said: str, capsys: Any) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("resourcelease: ")
    assert error.count("\n") == 1


def test_nobody_there_is_one_line_too(capsys: Any) -> None:
    with closed_port() as endpoint:
        assert main(["status", "--endpoints", endpoint, "--timeout", "0.2"]) == 1
    error = capsys.readouterr().err
    assert f"{endpoint} cannot be reached" in error
    assert "check the endpoints, and that nodes run there" in error
    assert error.count("\n") == 1


def test_no_colour_where_there_is_no_terminal() -> None:
    assert "\x1b" not in run("--help").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: Any) -> None:
    assert main(["completion", shell]) == 0
    assert "_RESOURCELEASE_COMPLETE" in capsys.readouterr().out


def test_completion_completes() -> None:
    env = {"_RESOURCELEASE_COMPLETE": "bash_complete", "COMP_WORDS": "resourcelease re", "COMP_CWORD": "1"}
    done = run(env=env)
    assert {line.partition(",")[2] for line in done.stdout.split()} == {"restore", "resume", "redrive"}


def test_certificates_that_know_each_other(tmp_path: Path, capsys: Any) -> None:
    assert main(["certs", str(tmp_path), "--host", "node.example"]) == 0
    assert "[tls]" in capsys.readouterr().out
    assert (tmp_path / "node-key.pem").stat().st_mode & 0o077 == 0
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "node.pem", tmp_path / "node-key.pem")
    assert main(["certs", str(tmp_path)]) == 1, "nothing is overwritten"
    assert main(["certs", str(tmp_path), "--node", "n2", "--client", "other"]) == 0


def test_a_configuration_is_checked(capsys: Any, tmp_path: Path) -> None:
    settings = ["node.id=n1", f"node.dir={tmp_path / 'n1'}", "cluster.id=demo"]
    assert main(["node", "--check", *(part for setting in settings for part in ("--set", setting))]) == 0
    assert "good: node n1 of cluster demo" in capsys.readouterr().out


def test_dev_goes_on_with_its_directory_and_leaves_no_process(tmp_path: Path) -> None:
    place = str(tmp_path / "cluster")
    with dev("--nodes", "3", "--dir", place) as told:
        done = run("enqueue", "table", "orders", env={"RESOURCELEASE_ENDPOINTS": ",".join(told["endpoints"])})
        assert done.stdout == "item 1\n"
        pids = [node["pid"] for node in told["nodes"]]
    assert all(map(node_is_gone, pids))
    with dev("--dir", place, stop=signal.SIGTERM) as again:
        assert again["endpoints"] == told["endpoints"]
        shown = run("items", "1", "--json", "--linearizable", "--endpoints", again["endpoints"][0])
        assert json.loads(shown.stdout)[0]["payload"]["resource_id"] == "orders"
    assert "a cluster of 3 nodes" in run("dev", "--nodes", "5", "--dir", place).stderr


def test_nodes_end_with_dev_even_if_it_is_killed() -> None:
    process = subprocess.Popen(
        [*COMMAND, "dev", "--json", "--nodes", "1", "--first-port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    process.kill()
    process.communicate()
    until = time.monotonic() + 15
    while not node_is_gone(told["nodes"][0]["pid"]) and time.monotonic() < until:
        time.sleep(0.02)
    assert node_is_gone(told["nodes"][0]["pid"])


def test_the_demo_in_short() -> None:
    done = run("demo", "--seconds", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert list(summary) == ["enqueued", "completed", "lost", "double_grants", "failover_ms", "lifecycles_per_s"]
    assert summary["enqueued"] == summary["completed"] > 0
    assert summary["lost"] == summary["double_grants"] == 0
    assert "kill -9" in done.stdout


def test_the_demo_interrupted_leaves_no_process() -> None:
    process = subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "at work" not in process.stdout.readline():
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 3
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.strip().splitlines()[-1] == "resourcelease: interrupted; all nodes are stopped"
    assert all(node_is_gone(int(child)) for child in children)


def test_tls_from_the_certificates_that_certs_makes(tmp_path: Path) -> None:
    place = tmp_path / "certs"
    assert run("certs", str(place)).returncode == 0
    with closed_port() as clients, closed_port() as peers:
        pass
    settings = {
        "node.id": "n1",
        "node.dir": tmp_path / "n1",
        "cluster.id": "tls",
        "grpc.listen": clients,
        "peers.listen": peers,
        "tls.ca": place / "ca.pem",
        "tls.cert": place / "node.pem",
        "tls.key": place / "node-key.pem",
        "tls.require_client_cert": "true",
    }
    command = [*COMMAND, "node", *(part for name, value in settings.items() for part in ("--set", f"{name}={value}"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        ours = ("--ca", place / "ca.pem", "--cert", place / "client.pem", "--key", place / "client-key.pem")
        done = run("enqueue", "table", "orders", "--endpoints", clients, *map(str, ours))
        assert (done.stdout, done.returncode) == ("item 1\n", 0), done.stderr
        stranger = run("status", "--endpoints", clients, "--timeout", "0.5", "--ca", str(place / "ca.pem"))
        assert stranger.returncode == 1
        plain = run("status", "--endpoints", clients, "--timeout", "0.5")
        assert plain.returncode == 1
        assert plain.stderr.startswith("resourcelease: UNREACHABLE: ")
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("command", [("events", "--follow"), ("backpressure", "--watch")])
def test_ctrl_c_is_how_one_leaves_what_has_no_end(command: tuple[str, ...]) -> None:
    with dev("--nodes", "1") as told:
        endpoint = told["endpoints"][0]
        run("enqueue", "table", "orders", "--endpoints", endpoint)
        more = ("--from", "1") if command[0] == "events" else ()
        process = subprocess.Popen(
            [*COMMAND, *command, *more, "--json", "--endpoints", endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--to", "100000"), 130)])
def test_ctrl_c_ends_an_export_which_is_early_only_where_an_end_was_named(
    more: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    with dev("--nodes", "1") as told:
        endpoint = told["endpoints"][0]
        run("enqueue", "table", "orders", "--endpoints", endpoint)
        process = subprocess.Popen(
            [*COMMAND, "export", "--sink", f"sqlite://{tmp_path}/copy.db", *more, "--endpoints", endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("exporting"):
                break
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (code, "")
        assert "what follows is kept for it; to end that: the same command with --forget" in said


def test_a_node_that_is_told_to_stop_stops_without_a_complaint(tmp_path: Path) -> None:
    with dev("--nodes", "1", "--dir", str(tmp_path / "cluster")):
        pass
    words = (tmp_path / "cluster" / "n1" / "node.log").read_text()
    assert words.splitlines()[-1].endswith("has stopped")
    assert "Fatal" not in words
