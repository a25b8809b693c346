"""From a store to a journal, a configuration and a loaded machine that agree with each other."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from resourcelease.consensus.api import ConsensusBroken, Machine, Machines
from resourcelease.consensus.journal import NEWBORN, Journal
from resourcelease.consensus.members import MEMBERS_ROW, Membership, unpack_members
from resourcelease.consensus.settings import Guards
from resourcelease.storage.api import Loaded, Store

__all__ = ["Recovered", "recover"]


class Recovered(NamedTuple):
    """What a node starts from."""

    machine: Machine
    journal: Journal
    membership: Membership
    # What the loaded state stands for; 0 for a new node.
    rows_index: int


def recover(
    store: Store, machines: Machines, bootstrap: Mapping[str, str], guards: Guards, *, founding: bool = False
) -> Recovered:
    """Loads the machine from the stored rows, and the journal that goes on from there.

    Guard **align**: the library clears a journal that does not begin exactly where its state ends, and with it whatever
    was acknowledged after. Here rows and journal change in one transaction, so the journal covers the end of
    the state; where it does not, the disk is damaged and the node stops.

    Guard **journal**: the store checks every entry; a bad one raises here.
    """
    loaded = store.load()
    entries = [(entry.data, entry.index, entry.term) for entry in store.entries(loaded.first_index, loaded.last_index)]
    blank = not loaded.rows_index and loaded.last_index <= 1
    newborn = loaded.voted_for.startswith(NEWBORN) or (blank and not loaded.term)
    # Also at a later start: so a cluster gets going whose first leader was lost before the others had anything of it.
    newborn = newborn and not (founding and blank)
    journal = Journal(entries, loaded.term, loaded.voted_for.removeprefix(NEWBORN), newborn=newborn)
    members = dict(bootstrap)
    machine = machines.new()
    if loaded.rows_index:
        found: list[bytes] = []
        machine = machines.load(_without_members(store.rows(), found))
        if found:
            members = unpack_members(found[0])
        if guards.align:
            _check_alignment(journal, loaded)
        else:
            _clear_as_the_library_does(journal, loaded)
    membership = Membership(loaded.rows_index, members)
    for command, index, _ in journal[:]:
        if index > loaded.rows_index:
            membership.appended(index, command)
    return Recovered(machine, journal, membership, loaded.rows_index)


def _without_members(rows: Iterator[tuple[bytes, bytes]], found: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in rows:
        if key == MEMBERS_ROW:
            found.append(value)
        else:
            yield key, value


def _check_alignment(journal: Journal, loaded: Loaded) -> None:
    index = loaded.rows_index
    if not journal.holds(index - 1) or not journal.holds(index):
        raise ConsensusBroken(
            f"the stored state stands for index {index}, but the journal holds {loaded.first_index} to "
            f"{loaded.last_index}; the directory is damaged: remove this node from the cluster and add it again "
            "with an empty one"
        )
    if journal.term_at(index) != loaded.rows_term:
        raise ConsensusBroken(
            f"the stored state stands for index {index} of term {loaded.rows_term}, but the journal has it in term "
            f"{journal.term_at(index)}; the directory is damaged: remove this node and add it again with an empty one"
        )


def _clear_as_the_library_does(journal: Journal, loaded: Loaded) -> None:
    index = loaded.rows_index
    if journal.first_index == index - 1:
        return
    kept = [journal.entry(index - 1), journal.entry(index)]
    journal.clear()
    for entry in kept:
        journal.add(*entry)
