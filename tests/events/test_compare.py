"""Who differs from the others, and where that begins."""

import asyncio

from resourcelease.events import Findings, differing, first_difference


def test_the_one_that_differs_is_named_and_compared_with_the_majority() -> None:
    same = [(1, 9, "aa"), (10, 19, "bb"), (20, 29, "cc")]
    other = [(1, 9, "aa"), (10, 18, "xx"), (19, 30, "yy")]
    found = {name: Findings(1, 29, [], story) for name, story in (("n1", same), ("n2", other), ("n3", same))}
    assert differing(found) == {"n2": (10, 18, "n1")}
    # A node that has less history differs in nothing.
    assert differing({"n1": found["n1"], "n2": Findings(20, 29, [], same[2:])}) == {}


def test_the_first_entry_that_differs() -> None:
    told = {
        "n1": [(number, b"%d" % number) for number in range(10, 30, 2)],
        "n2": [(number, b"%d" % number if number < 22 else b"?") for number in range(10, 30, 2)],
        "n3": [(number, b"%d" % number) for number in range(10, 20, 2)],
    }

    async def entries(node: str, segment: int, after: int) -> list[tuple[int, bytes]]:
        return [entry for entry in told[node] if entry[0] > after][:3]

    async def scenario() -> None:
        assert await first_difference(entries, "n1", "n2", 10) == 22
        assert await first_difference(entries, "n1", "n1", 10) == 0
        # One ends where the other goes on.
        assert await first_difference(entries, "n1", "n3", 10) == 19

    asyncio.run(scenario())
