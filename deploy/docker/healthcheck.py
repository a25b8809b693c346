"""Asks the node in this container whether it should be sent calls (``grpc.health.v1``); the exit code says so.

It reads the configuration that the node reads: the environment, and the file that ``NODE_CONFIG`` names.
"""

import os
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from resourcelease.node.config import ConfigError, NodeConfig, load

SECONDS = 4.0
EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - a place to listen at, and not to call


def main() -> int:
    """0 if the node serves."""
    named = os.environ.get("NODE_CONFIG", "")
    try:
        config = load(Path(named) if named else None, os.environ)
        with channel(config) as opened:
            stub = health_pb2_grpc.HealthStub(opened)
            status = stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status
    except (ConfigError, OSError, grpc.RpcError) as error:
        print(error.details() if isinstance(error, grpc.Call) else error)
        return 1
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(status))
    return 0 if status == health_pb2.HealthCheckResponse.SERVING else 1


def channel(config: NodeConfig) -> grpc.Channel:
    """To the node's own port, with its own certificate where it has one."""
    host, _, port = config.grpc.listen.rpartition(":")
    target = f"{'127.0.0.1' if host in EVERYWHERE else host}:{port}"
    tls = config.tls
    if not tls.enabled:
        return grpc.insecure_channel(target)
    credentials = grpc.ssl_channel_credentials(
        Path(tls.ca).read_bytes(), Path(tls.key).read_bytes(), Path(tls.cert).read_bytes()
    )
    # The certificate names the host that clients call, and not this one.
    called = (config.grpc.advertise or config.grpc.listen).rpartition(":")[0]
    name = config.node.id if called in EVERYWHERE else called.strip("[]")
    return grpc.secure_channel(target, credentials, [("grpc.ssl_target_name_override", name)])


if __name__ == "__main__":
    sys.exit(main())
