"""Cuts between network namespaces: one direction of one link, and nothing else. They need root."""

import asyncio
import os
import subprocess
import sys

import pytest

from chaos.drills.namespaces import KernelNetwork, Namespaces
from chaos.drills.network import CLIENTS, CUT, Rule

pytestmark = pytest.mark.skipif(bool(Namespaces().why_not()), reason=Namespaces().why_not())

_PORT = 7301
# Says when it listens, and then whom it hears: the whole of each datagram.
_LISTEN = """
import socket, sys
ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ear.bind((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    print(ear.recv(99).decode(), flush=True)
"""
_SAY = """
import socket, sys
mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mouth.bind((sys.argv[1], 0))
for address in sys.argv[4:]:
    mouth.sendto(sys.argv[3].encode(), (address, int(sys.argv[2])))
"""

# Whom each of the three hears, when all say something to all.
Heard = dict[str, set[str]]

_ALL: Heard = {"n1": {"n2", CLIENTS}, "n2": {"n1", CLIENTS}, CLIENTS: {"n1", "n2"}}


class _Party:
    """Everybody listens; a round ends with a datagram from themselves, which no rule keeps away."""

    def __init__(self, network: KernelNetwork) -> None:
        self._network = network
        self._ears: dict[str, asyncio.subprocess.Process] = {}

    async def begin(self) -> None:
        for name in _ALL:
            words = [sys.executable, "-c", _LISTEN, self._network.address(name), str(_PORT)]
            ear = await asyncio.create_subprocess_exec(*self._network.inside(name), *words, stdout=subprocess.PIPE)
            self._ears[name] = ear
            assert await self._line(name) == "listening"

    async def _line(self, name: str) -> str:
        out = self._ears[name].stdout
        assert out is not None
        return (await asyncio.wait_for(out.readline(), 20)).decode().strip()

    async def _say(self, name: str, *to: str) -> None:
        network = self._network
        words = [network.address(name), str(_PORT), name, *(network.address(each) for each in to)]
        mouth = await asyncio.create_subprocess_exec(*network.inside(name), sys.executable, "-c", _SAY, *words)
        assert await mouth.wait() == 0

    async def talk(self) -> Heard:
        for name in _ALL:
            await self._say(name, *(other for other in _ALL if other != name))
        heard: Heard = {name: set() for name in _ALL}
        for name in _ALL:
            await self._say(name, name)
            while (said := await self._line(name)) != name:
                heard[name].add(said)
        return heard

    async def end(self) -> None:
        for ear in self._ears.values():
            ear.kill()
            await ear.wait()


def test_a_cut_is_one_direction_of_one_link() -> None:
    async def story() -> None:
        network = KernelNetwork(os.getpid() % 10_000)
        party = _Party(network)
        try:
            network.put_up()
            network.join("n1")
            network.join("n2")
            await party.begin()
            assert await party.talk() == _ALL
            await network.apply({("n1", "n2"): CUT})
            assert await party.talk() == {**_ALL, "n2": {CLIENTS}}
            await network.apply({("n2", "n1"): CUT, ("n1", CLIENTS): CUT, ("n1", "n2"): Rule()})
            assert await party.talk() == {**_ALL, "n1": {CLIENTS}, CLIENTS: {"n2"}}
            await network.apply({})
            assert await party.talk() == _ALL
        finally:
            await party.end()
            await network.close()

    asyncio.run(story())
    # And again, with the same names.
    asyncio.run(story())
    left = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True).stdout
    assert f"rl{os.getpid() % 10_000}" not in left.split()
