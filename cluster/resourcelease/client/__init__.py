"""The client: producing, working, and steering, from asyncio. ``resourcelease.sync`` is the same without await."""

import os

# gRPC's own lines about connections that come and go help nobody who has our errors; who wants them asks for them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from resourcelease.client.client import Client
from resourcelease.client.errors import (
    AlreadySettled,
    Backpressure,
    Conflict,
    Forbidden,
    InvalidArgument,
    LeaseLost,
    NoLeader,
    NotFound,
    OutcomeUnknown,
    Paused,
    PeerUnhealthy,
    QueueFull,
    Refused,
    ResourceLeaseError,
    SomeRefused,
    Unauthenticated,
    Unreachable,
)
from resourcelease.client.items import Enqueued, new_item
from resourcelease.client.lease import FailItem, Lease
from resourcelease.client.options import Backoff, Tls
from resourcelease.client.stream import LeaseStream
from resourcelease.client.workers import Worker, worker

__all__ = [
    "Client",
    "Lease",
    "LeaseStream",
    "Worker",
    "worker",
    # What goes in and out.
    "Backoff",
    "Enqueued",
    "FailItem",
    "Tls",
    "new_item",
    # Errors.
    "ResourceLeaseError",
    "AlreadySettled",
    "Backpressure",
    "Conflict",
    "Forbidden",
    "InvalidArgument",
    "LeaseLost",
    "NoLeader",
    "NotFound",
    "OutcomeUnknown",
    "Paused",
    "PeerUnhealthy",
    "QueueFull",
    "Refused",
    "SomeRefused",
    "Unauthenticated",
    "Unreachable",
]
