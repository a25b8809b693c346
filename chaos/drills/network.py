"""What a drill may do to the network, whichever way the setting does it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["CLIENTS", "CUT", "Link", "Network", "Rule", "between", "isolated"]

# From whom, to whom: one direction.
Link = tuple[str, str]

# The name of all clients together, as an end of a link.
CLIENTS = "clients"


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to the bytes of one direction of one link.

    What is cut is held back, as the sender's kernel would, and goes on when the cut ends.
    """

    cut: bool = False
    delay_ms: float = 0.0
    # 0: no bound.
    bytes_per_s: float = 0.0


CUT = Rule(cut=True)


class Network(Protocol):
    """The network between the nodes, and between clients and nodes."""

    @property
    def delays(self) -> bool:
        """Whether it can hold bytes back for a while."""
        ...

    @property
    def one_way(self) -> bool:
        """Whether it can cut one direction of a link and leave the other."""
        ...

    @property
    def resets(self) -> bool:
        """Whether it can reset connections."""
        ...

    async def apply(self, rules: Mapping[Link, Rule]) -> None:
        """These rules hold from now on, and no others."""
        ...

    async def reset(self, links: Iterable[Link]) -> None:
        """The connections of these links are reset once, where it can do that."""
        ...

    async def set_names(self, there: bool) -> None:
        """Whether the names of nodes can be resolved."""
        ...

    async def close(self) -> None:
        """Takes down what it put up."""
        ...


def between(left: Iterable[str], right: Iterable[str], rule: Rule = CUT) -> dict[Link, Rule]:
    """The rule for both directions of every link between two groups.

    >>> sorted(between(["a"], ["b", "c"]))
    [('a', 'b'), ('a', 'c'), ('b', 'a'), ('c', 'a')]
    """
    pairs = [(one, other) for one in left for other in right]
    return {link: rule for one, other in pairs for link in ((one, other), (other, one))}


def isolated(name: str, everyone: Iterable[str], rule: Rule = CUT) -> dict[Link, Rule]:
    """The rule for all links of one node with the others.

    >>> sorted(isolated("a", ["a", "b"]))
    [('a', 'b'), ('b', 'a')]
    """
    return between([name], [other for other in everyone if other != name], rule)
