"""Several nodes' findings against each other: who differs from the majority, and where that begins."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from resourcelease.events.exchange import Findings

__all__ = ["Entries", "differing", "first_difference"]

# (node, first event of a segment, last event known) -> last event and chain of each entry that follows.
Entries = Callable[[str, int, int], Awaitable[list[tuple[int, bytes]]]]


def differing(found: Mapping[str, Findings]) -> dict[str, tuple[int, int, str]]:
    """For each node that tells a segment otherwise than most: its first and last event, and a node to compare with.

    Where no majority tells one story, all nodes but the first by name differ from that one.
    """
    told: dict[int, dict[str, tuple[int, str]]] = {}
    for node, findings in sorted(found.items()):
        for first, last, digest in findings.segments:
            told.setdefault(first, {})[node] = (last, digest)
    wrong: dict[str, tuple[int, int, str]] = {}
    for first, stories in sorted(told.items()):
        if len(set(stories.values())) == 1:
            continue
        usual = Counter(stories.values()).most_common(1)[0][0]
        honest = next(node for node, story in stories.items() if story == usual)
        for node, story in stories.items():
            if story != usual:
                wrong.setdefault(node, (first, story[0], honest))
    return wrong


async def first_difference(entries: Entries, one: str, other: str, segment: int) -> int:
    """The last event of the first entry of a segment that two nodes tell differently; 0 if none was found."""
    after = segment - 1
    while True:
        theirs = await entries(one, segment, after)
        ours = await entries(other, segment, after)
        for left, right in zip(theirs, ours, strict=False):
            if tuple(left) != tuple(right):
                return min(left[0], right[0])
        common = min(len(theirs), len(ours))
        if not common:
            return after + 1 if theirs or ours else 0
        after = theirs[common - 1][0]
