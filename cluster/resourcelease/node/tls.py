"""Certificates from files, as contexts for connections; what is wrong is said with the file's name."""

import ssl
from pathlib import Path

from resourcelease.consensus.peers import TlsContexts
from resourcelease.node.config import ConfigError
from resourcelease.node.schema import TlsSection

__all__ = ["client_context", "peer_contexts", "read_pem"]


def peer_contexts(tls: TlsSection) -> TlsContexts | None:
    """For connections between nodes: both sides show a certificate of the authority. None without TLS."""
    if not tls.enabled:
        return None
    assert tls.cert is not None
    assert tls.key is not None
    assert tls.ca is not None
    contexts = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Any certificate of the authority may speak for any node, under whatever name it is reached.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        _load_chain(context, tls.cert, tls.key)
        _load_authority(context, tls.ca)
        contexts.append(context)
    return contexts[0], contexts[1]


def client_context(tls: TlsSection) -> ssl.SSLContext | None:
    """For direct streams of clients, who show what they show on the gRPC port. None without TLS."""
    if not tls.enabled:
        return None
    assert tls.cert is not None
    assert tls.key is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, tls.cert, tls.key)
    if tls.require_client_cert:
        authority = tls.client_ca or tls.ca
        assert authority is not None
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authority(context, authority)
    return context


def read_pem(path: Path, key: str) -> bytes:
    """A PEM file's text; ``key`` is the setting that names it."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls.{key}: {path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in text:
        raise ConfigError(f"tls.{key}: {path} is not a PEM file: it has no -----BEGIN line")
    return text


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    read_pem(cert, "cert")
    read_pem(key, "key")
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls.key: {key} is not the key of the certificate in {cert}") from error
        raise ConfigError(f"tls.cert: {cert} and {key} cannot be used: {error.reason or error}") from error


def _load_authority(context: ssl.SSLContext, ca: Path) -> None:
    read_pem(ca, "ca")
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ConfigError(f"tls.ca: {ca} holds no certificate that can be used: {error.reason or error}") from error
