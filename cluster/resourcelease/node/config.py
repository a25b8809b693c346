"""The configuration of a node, from a TOML file, the environment and flags; the later of these wins.

Strict: an unknown key is an error that names its place and what would be right, for a setting that is not read is a
setting that somebody believes in.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from resourcelease.node.schema import NodeConfig
from resourcelease.node.sound import unsound

__all__ = ["ConfigError", "NodeConfig", "load"]

_PREFIX = "RESOURCELEASE_"
_SECTIONS: dict[str, Any] = get_type_hints(NodeConfig)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class ConfigError(Exception):
    """What is wrong with the configuration, in one line."""


class _Given(NamedTuple):
    """A value that somebody set, and where, in words."""

    section: str
    key: str
    value: Any
    where: str
    # Values of the environment and of flags are text that is still to be read.
    is_text: bool


def load(
    path: Path | None = None, env: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> NodeConfig:
    """The configuration that a file, the environment and flags (``{"grpc.listen": "…"}``) add up to.

    >>> config = load(env={"RESOURCELEASE_NODE_DIR": "/tmp/n1"}, overrides={"node.id": "n1", "cluster.id": "demo"})
    >>> config.node.id, config.grpc.listen
    ('n1', '127.0.0.1:7101')
    """
    places: dict[str, str] = {}
    values: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for given in (*_from_file(path), *_from_env(env or {}), *_from_flags(overrides or {})):
        values[given.section][given.key] = _read(given)
        places[f"{given.section}.{given.key}"] = given.where
    config = NodeConfig(**{name: _SECTIONS[name](**values[name]) for name in _SECTIONS})
    wrong = unsound(config)
    if wrong:
        key, message = wrong
        setting = ".".join(key.split(".")[:2])
        where = places.get(setting) or (f"{path}" if path else "configuration")
        raise ConfigError(f"{where}: {key} {message}")
    return config


def _from_file(path: Path | None) -> Iterator[_Given]:
    if path is None:
        return
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    for section, table in tables.items():
        if section not in _SECTIONS:
            where = f"{path}:{_line(text, section)}"
            raise ConfigError(f"{where}: there is no section [{section}]{_meant(section, list(_SECTIONS))}")
        if not isinstance(table, dict):
            raise ConfigError(f"{path}:{_line(text, section)}: {section} is a section: write [{section}]")
        for key, value in table.items():
            where = f"{path}:{_line(text, section, key)}"
            _check_known(section, key, where)
            yield _Given(section, key, value, where, is_text=False)


def _from_env(env: Mapping[str, str]) -> Iterator[_Given]:
    for name, value in env.items():
        section, _, key = name.removeprefix(_PREFIX).lower().partition("_")
        if name.startswith(_PREFIX) and section in _SECTIONS and key:
            _check_known(section, key, f"environment variable {name}")
            yield _Given(section, key, value, f"environment variable {name}", is_text=True)


def _from_flags(overrides: Mapping[str, object]) -> Iterator[_Given]:
    for name, value in overrides.items():
        section, _, key = name.partition(".")
        where = f"setting {name}"
        if section not in _SECTIONS:
            raise ConfigError(f"{where}: there is no section [{section}]{_meant(section, list(_SECTIONS))}")
        _check_known(section, key, where)
        if value is not None:
            yield _Given(section, key, value, where, is_text=isinstance(value, str))


def _check_known(section: str, key: str, where: str) -> None:
    known = [each.name for each in fields(_SECTIONS[section])]
    if key not in known:
        raise ConfigError(f"{where}: [{section}] has no key {key!r}{_meant(key, known)}")


def _meant(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


def _read(given: _Given) -> Any:
    """The value as its key wants it."""
    kind = get_type_hints(_SECTIONS[given.section])[given.key]
    value = given.value
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            raise _wrong(given, f"must be one of {', '.join(map(repr, choices))}")
        return value
    if kind is bool:
        return _truth(given)
    if kind is int:
        return _number(given)
    if get_args(kind) == (str, str):
        return _members(given)
    if not isinstance(value, str | Path):
        raise _wrong(given, "must be text")
    if kind is str:
        return str(value)
    return Path(value)


def _wrong(given: _Given, what: str) -> ConfigError:
    return ConfigError(f"{given.where}: {given.section}.{given.key} {what}, not {given.value!r}")


def _truth(given: _Given) -> bool:
    value = _TRUTH.get(given.value.lower()) if given.is_text else given.value
    if not isinstance(value, bool):
        raise _wrong(given, "must be true or false")
    return value


def _number(given: _Given) -> int:
    value = given.value
    if given.is_text and re.fullmatch(r"\d+", value):
        value = int(value)
    if type(value) is not int or value < 1:
        raise _wrong(given, "must be a whole number from 1")
    return value


def _members(given: _Given) -> Mapping[str, str]:
    """A table of node ids and addresses; as text, ``n1=host:port,n2=host:port``."""
    members = given.value
    if given.is_text:
        pairs = [part.partition("=") for part in given.value.split(",") if part.strip()]
        members = {name.strip(): address.strip() for name, _, address in pairs}
    if not isinstance(members, Mapping):
        raise _wrong(given, "must be a table of node ids and addresses")
    for name, address in members.items():
        if not isinstance(name, str) or not isinstance(address, str) or not name or not address:
            raise ConfigError(f'{given.where}: cluster.members.{name} must be an address, such as "10.0.0.1:7201"')
    return MappingProxyType(dict(members))


def _line(text: str, section: str, key: str = "") -> int:
    """The line that a section, or a key of it, stands on; the section's where the key is written in another way."""
    here = ""
    found = 1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]\s]+)\s*\]+", line)
        if header:
            here = header[1].replace('"', "")
            if here == section or (key and here == f"{section}.{key}") or here.startswith(f"{section}."):
                found = number if not key or here != section else max(found, number)
                if not key or here == f"{section}.{key}":
                    return number
            continue
        name = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if name and ((here == section and name[1] == key) or (not here and name[1] in (section, f"{section}.{key}"))):
            return number
    return found
