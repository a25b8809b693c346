"""PostgreSQL: a table, SKIP LOCKED, and two synchronous standbys of which one has to have it on disk."""

import asyncio
import getpass
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.peers.base import Peer, Session, no_client, optional, version_of
from bench.peers.postgres_client import SCHEMA, PostgresSession
from bench.peers.servers import Server, find, free_ports, libraries_of, postgres_tree, until, words

__all__ = ["Postgres", "PostgresAlone"]

_SETTINGS: dict[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "512MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_compression": "on",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "5s",
    "huge_pages": "off",
    "wal_level": "replica",
    "jit": "off",
}


def _somebody() -> str:
    """Who runs it where we are root, which PostgreSQL will not be."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


class Postgres(Peer):
    """A primary and its standbys; copies of one freshly made data directory, which is made once a run."""

    name = "postgres"
    title = "PostgreSQL, ANY 1 of 2 standbys"
    standbys: ClassVar[int] = 2
    fails_over = False
    notes: ClassVar[tuple[str, ...]] = (
        "Nothing in PostgreSQL promotes a standby by itself, so it takes no part in the failover shape.",
        "Each worker has its own connection; lists travel as arrays, so that a step is one statement and one commit.",
    )

    @classmethod
    def _program(cls, name: str) -> Path | None:
        return find(name, f"{postgres_tree()}/usr/lib/postgresql/*/bin", "/usr/lib/postgresql/*/bin")

    @classmethod
    def missing(cls) -> str | None:
        """Server and client, and a user to be where we are root."""
        if cls._program("postgres") is None or cls._program("initdb") is None:
            return "no PostgreSQL server is installed"
        return no_client("asyncpg", "asyncpg")

    def start(self) -> None:
        """The primary first, then the standbys; returns when both stream."""
        self._user = _somebody() if os.getuid() == 0 else None
        self._name = self._user or getpass.getuser()
        self._open_to_user(self.directory)
        template = self._template()
        ports = free_ports(1 + self.standbys)
        self._port = ports[0]
        for number, port in enumerate(ports):
            self.servers.append(self._prepare(template, number, port))
        for server in self.servers:
            server.start()
        until(self.servers[0].listens, "the primary's start")
        asyncio.run(self._make_ready())

    def _open_to_user(self, directory: Path) -> None:
        if self._user:
            for folder in (directory, *directory.parents[:2]):
                if folder.stat().st_uid == os.getuid() and folder not in (Path("/"), Path("/tmp")):
                    folder.chmod(folder.stat().st_mode | 0o011)

    def _template(self) -> Path:
        template = self.directory.parent / "postgres-template"
        if not template.exists():
            template.mkdir()
            if self._user:
                shutil.chown(template, self._user)
            initdb = self._program("initdb")
            assert initdb is not None
            found = os.environ | libraries_of(postgres_tree())
            options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--no-locale", f"--username={self._name}"]
            command: list[str | Path] = [initdb, "-D", template, *options]
            subprocess.run(command, check=True, capture_output=True, user=self._user, cwd="/", env=found)
        return template

    def _prepare(self, template: Path, number: int, port: int) -> Server:
        data = self.directory / ("primary" if number == 0 else f"s{number}")
        subprocess.run(["cp", "-a", template, data], check=True)
        settings = _SETTINGS | {"port": str(port), "cluster_name": data.name}
        if number == 0 and self.standbys:
            settings["synchronous_standby_names"] = "ANY 1 (s1, s2)"
        if number:
            upstream = f"host=127.0.0.1 port={self._port} user={self._name} application_name={data.name}"
            settings["primary_conninfo"] = upstream
            settings["wal_retrieve_retry_interval"] = "100ms"
            (data / "standby.signal").touch()
        lines = [f"{key} = '{value}'" for key, value in settings.items()]
        with (data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")
        program = self._program("postgres")
        assert program is not None
        # SIGQUIT has it end at once and leave no shared memory behind.
        libraries = libraries_of(postgres_tree())
        command: list[str | Path] = [program, "-D", data]
        return Server(data.name, command, data, port=port, user=self._user, environment=libraries, end=signal.SIGQUIT)

    async def _make_ready(self) -> None:
        asyncpg = optional("asyncpg")
        connection = None
        while connection is None:
            try:
                connection = await asyncpg.connect(self._address())
            except (OSError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            asked = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            while await connection.fetchval(asked) < self.standbys:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
            await connection.execute(SCHEMA)
        await connection.close()

    def _address(self) -> str:
        return f"postgresql://{self._name}@127.0.0.1:{self._port}/postgres"

    def connect(self) -> dict[str, Any]:
        """The primary's address."""
        return {"address": self._address()}

    @classmethod
    async def session(cls, connect: dict[str, Any], workers: int, batch: int) -> Session:
        """Connections are made with the workers."""
        return PostgresSession(connect["address"])

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Server and client."""
        return {"server": words(cls._program("postgres"), "--version"), "asyncpg": version_of("asyncpg")}

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """What is in its configuration."""
        kept = {
            key: value for key, value in _SETTINGS.items() if key not in ("listen_addresses", "unix_socket_directories")
        }
        names: Sequence[str] = ("synchronous_standby_names",) if cls.standbys else ()
        return {"nodes": 1 + cls.standbys, **kept, **dict.fromkeys(names, "ANY 1 (s1, s2)")}

    def data(self) -> list[Path]:
        """The servers' directories, without the template."""
        return [server.directory for server in self.servers]


class PostgresAlone(Postgres):
    """The same without standbys: what it costs when one disk has to be enough."""

    name = "postgres-alone"
    title = "PostgreSQL, alone"
    standbys = 0
    replicated = False
    notes: ClassVar[tuple[str, ...]] = ("A reference: one node, so nothing survives its disk.",)
