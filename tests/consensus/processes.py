"""Real nodes as processes, and what must be true of them whatever was done to them."""

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.processes import Process, free_ports

CHILD = str(Path(__file__).parent / "node_child.py")


class Nodes:
    """Processes of one cluster below one directory; killed at the end of a ``with``."""

    def __init__(self, directory: Path, count: int, **settings: Any) -> None:
        self.directory = directory
        self.settings = settings
        ports = free_ports(count)
        self.addresses = {f"n{place}": f"127.0.0.1:{port}" for place, port in enumerate(ports, 1)}
        self.running: dict[str, Process] = {}
        # Once each: a disk that is empty at a later start was lost.
        self._founded: set[str] = set()

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.kill(name)

    def __getitem__(self, name: str) -> Process:
        return self.running[name]

    def start(self, *names: str, bootstrap: Mapping[str, str] | None = None) -> None:
        """Starts nodes and returns once they listen; ``bootstrap`` is empty for one that is to be added."""
        members = json.dumps(dict(self.addresses if bootstrap is None else bootstrap))
        for name in names:
            how = json.dumps({"settings": self.settings, "founding": name not in self._founded})
            self._founded.add(name)
            arguments = [name, str(self.directory), self.addresses[name], members, how]
            self.running[name] = Process([CHILD], arguments, errors=self.directory / f"{name}.errors")
        for name in names:
            self[name].answer()

    def start_all(self) -> str:
        """Starts all of them; the leader's name."""
        self.start(*self.addresses)
        return str(self[next(iter(self.addresses))].ask("leader"))

    def kill(self, *names: str) -> None:
        """Kill -9."""
        for name in names:
            self.running.pop(name).kill()

    def stop_time(self, name: str) -> None:
        """SIGSTOP."""
        self[name].signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """SIGCONT."""
        self[name].signal(signal.SIGCONT)

    def others(self, name: str) -> list[str]:
        """Those that run beside it."""
        return [other for other in self.running if other != name]

    def acked(self) -> Iterator[tuple[str, int]]:
        """Every call that was answered, by any node in any run: the item's name, and the id that the caller got."""
        for path in sorted(self.directory.glob("*.acked")):
            for line in path.read_text().splitlines():
                name, number = line.split()
                yield name, int(number)

    def check(self) -> dict[str, str]:
        """Equal states everywhere, every answered call in them once, under the id it was answered with."""
        for node in self.running.values():
            node.ask("rest")
        index = max(int(node.ask("barrier")) for node in self.running.values())
        states = []
        for node in self.running.values():
            node.ask("applied", index=index)
            states.append(node.ask("state"))
        assert all(state == states[0] for state in states), [state["digest"] for state in states]
        items: dict[str, str] = states[0]["items"]
        assert len(set(items.values())) == len(items), "an item is there twice"
        missing = [(name, number) for name, number in self.acked() if items.get(str(number)) != name]
        assert not missing, f"answered, and not there: {missing[:5]} and {len(missing)} in all"
        return items
