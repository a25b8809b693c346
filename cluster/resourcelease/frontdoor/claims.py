"""The leases that a worker says it holds when its stream begins, and those that it does not."""

from collections.abc import Iterable, Sequence

from resourcelease.frontdoor.workplace import Workplace
from resourcelease.model.errors import Refusal
from resourcelease.model.limits import MAX_ITEMS_PER_OP
from resourcelease.model.ops import Call, GiveBack, Heartbeat

__all__ = ["claim", "give_back", "give_back_others"]

_Lease = tuple[int, int, int]


async def claim(place: Workplace, call: Call, claimed: Sequence[_Lease]) -> list[Refusal | None]:
    """Extends the leases; why not, for each that is gone. Only the log can tell: this node may be behind."""
    ids, attempts, fences = (list(column) for column in zip(*claimed, strict=True))
    result = await place.replica.submit(Heartbeat(call, ids, attempts, fences))
    if isinstance(result, Refusal):
        return [result] * len(claimed)
    return [result.refused.get(number) for number in range(len(claimed))]


async def give_back_others(place: Workplace, call: Call, held: Iterable[int]) -> None:
    """Gives back what the peer holds under other fences than these."""
    await place.replica.linearize(True, None)
    kept = frozenset(held)
    leases = place.replica.machine.leases_of(call.namespace, call.peer)
    await give_back(place, call, [lease for lease in leases if lease[2] not in kept])


async def give_back(place: Workplace, call: Call, leases: Sequence[_Lease]) -> None:
    """Gives leases back, as many as there are."""
    for start in range(0, len(leases), MAX_ITEMS_PER_OP):
        ids, attempts, fences = zip(*leases[start : start + MAX_ITEMS_PER_OP], strict=True)
        await place.replica.submit(GiveBack(call, list(ids), list(attempts), list(fences)))
