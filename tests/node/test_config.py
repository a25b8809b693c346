"""Configuration: what is right is read, and what is wrong is said so that one can put it right."""

from pathlib import Path

import pytest

from resourcelease.node.config import ConfigError, load

FULL = """
[node]
id = "n1"
dir = "/var/lib/resourcelease"
[cluster]
id = "prod"
[cluster.members]  # the first configuration
n1 = "10.0.0.1:7201"
n2 = "10.0.0.2:7201"
[grpc]
listen = "127.0.0.1:7101"
[peers]
listen = "127.0.0.1:7201"
[log]
format = "json"
level = "debug"
[limits]
calls = 7
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "node.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    config = load(write(tmp_path, FULL))
    assert (config.node.id, config.node.dir, config.cluster.id) == ("n1", Path("/var/lib/resourcelease"), "prod")
    assert config.founders == {"n1": "10.0.0.1:7201", "n2": "10.0.0.2:7201"}
    assert (config.log.format, config.log.level, config.limits.calls) == ("json", "debug", 7)
    assert config.limits.calls_per_peer == 2_000


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    env = {
        "RESOURCELEASE_NODE_ID": "n2",
        "RESOURCELEASE_LIMITS_CALLS": "9",
        "RESOURCELEASE_CLUSTER_MEMBERS": "n2=h:1, n3=h:2",
        "RESOURCELEASE_TLS_INSECURE_LISTEN_ANYWHERE": "true",
        "RESOURCELEASE_ENDPOINTS": "not of the node",
        "PATH": "/bin",
    }
    config = load(write(tmp_path, FULL), env, {"limits.calls": 11, "grpc.listen": "0.0.0.0:1", "log.level": None})
    assert (config.node.id, config.limits.calls, config.grpc.listen) == ("n2", 11, "0.0.0.0:1")
    assert config.founders == {"n2": "h:1", "n3": "h:2"}
    assert config.log.level == "debug"


def test_a_lone_node_and_one_that_joins() -> None:
    base = {"node.id": "n1", "node.dir": "/d", "cluster.id": "c"}
    assert load(overrides=base).founders == {"n1": "127.0.0.1:7201"}
    assert load(overrides=base | {"cluster.join": True}).founders == {}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[node]", "[nodes]", "node.toml:2: there is no section [nodes]; did you mean 'node'?"),
        ('id = "n1"', 'idd = "n1"', "node.toml:3: [node] has no key 'idd'; did you mean 'id'?"),
        ('format = "json"', 'fromat = "json"', "node.toml:15: [log] has no key 'fromat'; did you mean 'format'?"),
        ('format = "json"', 'format = "xml"', "node.toml:15: log.format must be one of 'text', 'json', not 'xml'"),
        ("calls = 7", 'calls = "7"', "node.toml:18: limits.calls must be a whole number from 1, not '7'"),
        ("calls = 7", "calls = 0", "node.toml:18: limits.calls must be a whole number from 1, not 0"),
        ("calls = 7", "calls = true", "node.toml:18: limits.calls must be a whole number from 1, not True"),
        ('n2 = "10.0.0.2:7201"', "n2 = 5", "node.toml:7: cluster.members.n2 must be an address, such as"),
        ('n2 = "10.0.0.2:7201"', 'n2 = "x"', "node.toml:7: cluster.members.n2 must be host:port"),
        ('n2 = "10.0.0.2:7201"', 'n2 = "10.0.0.1:7201"', "gives two nodes the same address"),
        ('id = "n1"', 'id = "n7"', "cluster.members does not name this node, 'n7', but n1, n2"),
        ('id = "n1"', 'id = ""', 'node.toml:3: node.id is required: give it a name, such as "n1"'),
        ('id = "prod"', "", "node.toml: cluster.id is required"),
        ('"127.0.0.1:7101"', '"0.0.0.0:7101"', "node.toml:11: grpc.listen is 0.0.0.0:7101, which others can reach"),
        ('"127.0.0.1:7101"', "7101", "node.toml:11: grpc.listen must be text, not 7101"),
        ('"127.0.0.1:7101"', '"7101"', "node.toml:11: grpc.listen must be host:port"),
        ('"127.0.0.1:7101"', '"127.0.0.1:7101"\ndirect = "on"', "node.toml:12: grpc.direct must be host:port"),
        ('"127.0.0.1:7101"', '"127.0.0.1:7101"\ndirect = "0.0.0.0:1"', "node.toml:12: grpc.direct is 0.0.0.0:1, which"),
        (
            '"127.0.0.1:7101"',
            '"127.0.0.1:7101"\ndirect = "127.0.0.1:1"\ntrust_principal_header = true',
            "node.toml:12: grpc.direct would lead callers round the proxy",
        ),
        (
            '"127.0.0.1:7101"',
            '"127.0.0.1:7101"\ndirect_advertise = "me"',
            "node.toml:12: grpc.direct_advertise must be",
        ),
        ('level = "debug"', 'level = "debug', "node.toml: is not TOML: "),
        ("[limits]\ncalls = 7", '[tls]\ncert = "c.pem"', "tls.ca is missing: ca, cert and key go together"),
        ("[limits]\ncalls = 7", "[tls]\nrequire_client_cert = true", "tls.cert is missing"),
        ("[limits]\ncalls = 7", "[tls]\nrequire_client_cert = 1", "node.toml:18: tls.require_client_cert must be true"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in FULL
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, FULL.replace(old, new, 1)))
    message = str(caught.value)
    assert told in message
    assert "\n" not in message


def test_a_wrong_variable_or_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment variable RESOURCELEASE_NODE_DRI.*did you mean 'dir'"):
        load(env={"RESOURCELEASE_NODE_DRI": "/x"})
    with pytest.raises(ConfigError, match=r"setting node\.dri"):
        load(overrides={"node.dri": "/x"})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "bytes.toml")
