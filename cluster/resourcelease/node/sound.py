"""Settings that are well-formed one by one and cannot be meant together, or cannot be meant at all."""

import ipaddress
from collections.abc import Iterator

from resourcelease.events.readers import EXPORTS
from resourcelease.events.stores import wrong_url
from resourcelease.model.limits import MAX_NAME
from resourcelease.node.schema import NodeConfig

__all__ = ["host_of", "is_loopback", "unsound"]

_Wrong = tuple[str, str]
# What `grpc.direct` may be beside an address.
_DIRECT_WORDS = ("auto", "off")


def unsound(config: NodeConfig) -> _Wrong | None:
    """The first key that cannot stand as it is, and why; None if all is well."""
    checks = (_names, _addresses, _members, _certificates, _open_doors, _direct, _export)
    return next((wrong for check in checks for wrong in check(config)), None)


def _names(config: NodeConfig) -> Iterator[_Wrong]:
    for key, value in (("node.id", config.node.id), ("cluster.id", config.cluster.id)):
        if not value.strip():
            yield key, 'is required: give it a name, such as "n1"' if key == "node.id" else "is required"
        if len(value) > MAX_NAME:
            yield key, f"has {len(value)} characters; {MAX_NAME} are allowed"
    if not config.node.dir.name:
        yield "node.dir", "is required: the directory that belongs to this node alone"


def _addresses(config: NodeConfig) -> Iterator[_Wrong]:
    addresses = [("grpc.listen", config.grpc.listen), ("peers.listen", config.peers.listen)]
    if config.grpc.advertise:
        addresses.append(("grpc.advertise", config.grpc.advertise))
    if config.grpc.direct not in _DIRECT_WORDS:
        addresses.append(("grpc.direct", config.grpc.direct))
    if config.grpc.direct_advertise:
        addresses.append(("grpc.direct_advertise", config.grpc.direct_advertise))
    addresses += [(f"cluster.members.{name}", address) for name, address in config.cluster.members.items()]
    for key, address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            yield key, f'must be host:port, such as "127.0.0.1:7101", not {address!r}'


def _members(config: NodeConfig) -> Iterator[_Wrong]:
    members, me = config.cluster.members, config.node.id
    if members and me not in members and not config.cluster.join:
        yield (
            "cluster.members",
            f"does not name this node, {me!r}, but {', '.join(sorted(members))}; a node that will be added later says "
            "join = true",
        )
    if len(set(members.values())) < len(members):
        yield "cluster.members", "gives two nodes the same address"


def _certificates(config: NodeConfig) -> Iterator[_Wrong]:
    tls = config.tls
    given = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
    missing = [name for name, path in given.items() if path is None]
    if missing and len(missing) < len(given):
        yield f"tls.{missing[0]}", "is missing: ca, cert and key go together"
    if len(missing) == len(given) and (tls.client_ca or tls.require_client_cert):
        yield "tls.cert", "is missing: certificates of clients are checked only where the node has its own"


def _open_doors(config: NodeConfig) -> Iterator[_Wrong]:
    if config.tls.enabled or config.tls.insecure_listen_anywhere:
        return
    doors = [("grpc.listen", config.grpc.listen), ("peers.listen", config.peers.listen)]
    if config.grpc.direct not in _DIRECT_WORDS:
        doors.append(("grpc.direct", config.grpc.direct))
    for key, address in doors:
        if not is_loopback(host_of(address)):
            yield (
                key,
                f"is {address}, which others can reach, and there is no TLS: set [tls] ca, cert and key, or say "
                "insecure_listen_anywhere = true under [tls]",
            )


def _direct(config: NodeConfig) -> Iterator[_Wrong]:
    grpc = config.grpc
    if grpc.trust_principal_header and grpc.direct not in _DIRECT_WORDS:
        yield "grpc.direct", "would lead callers round the proxy that trust_principal_header relies on; leave it out"


def _export(config: NodeConfig) -> Iterator[_Wrong]:
    export = config.export
    if export.sink and (wrong := wrong_url(export.sink)):
        yield "export.sink", f"{wrong}, not {export.sink!r}"
    if export.name and not export.sink:
        yield "export.sink", "is missing: an export that has a name needs to know where it goes"
    if len(EXPORTS + export.name) > MAX_NAME or export.name != export.name.strip():
        yield "export.name", f"must be a name of at most {MAX_NAME - len(EXPORTS)} characters, without blanks around it"


def host_of(address: str) -> str:
    """The host of ``host:port``.

    >>> host_of("[::1]:7101")
    '::1'
    """
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    >>> is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
