"""``status``, ``verify``, ``members``, ``transfer``, ``snapshot``: the nodes of a cluster."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from resourcelease.cli.look import LINEARIZABLE
from resourcelease.cli.output import plain, since
from resourcelease.cli.session import Session, on_cluster

__all__ = ["members", "snapshot", "status", "transfer", "verify"]

# How long a node that may be down is waited for.
LOOK_SECONDS = 2.0


@click.command()
@on_cluster
@LINEARIZABLE
async def status(session: Session, linearizable: bool) -> int:
    """Show the nodes, who leads, and the namespaces. Exits 1 if no node leads."""
    client = session.client
    first = await client.status(linearizable=linearizable)
    nodes = {member.client_address: member for member in await client.members()}
    answers = await asyncio.gather(*(_status(session, address) for address in nodes))
    if session.out.as_json:
        shown = [
            {"node_id": member.node_id, "address": address, "reachable": answer is not None,
             "status": plain(answer) if answer is not None else None}
            for (address, member), answer in zip(nodes.items(), answers, strict=True)
        ]  # fmt: skip
        session.out.data({"cluster_id": first.cluster_id, "leader_id": first.leader_id, "nodes": shown})
    else:
        _show_status(session, first, nodes, answers)
    return 0 if first.leader_id else 1


async def _status(session: Session, address: str) -> Any:
    from resourcelease.client import ResourceLeaseError

    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await session.client.status(node=address)
    except (ResourceLeaseError, TimeoutError):
        return None


def _show_status(session: Session, first: Any, nodes: dict[str, Any], answers: Sequence[Any]) -> None:
    rows = []
    for (address, member), answer in zip(nodes.items(), answers, strict=True):
        if answer is None:
            rows.append((member.node_id, address, "does not answer", "", "", "", "", ""))
            continue
        rows.append(
            (answer.node_id, address, _role(answer.role), answer.term, answer.applied_index,
             answer.last_sequence, since(answer.uptime_ms), answer.versions.software)
        )  # fmt: skip
    columns = ("node", "address", "role", ">term", ">applied", ">events", ">up", "version")
    session.out.table(columns, sorted(rows), title=f"cluster {first.cluster_id}")
    for reader in first.history.readers:
        holder = reader.holder or "nobody"
        session.out.say(f"export {reader.name}: up to event {reader.position:,}, {reader.lag:,} behind, by {holder}")
    for answer in answers:
        if answer is not None and answer.history.files_damaged:
            found, mended = answer.history.files_damaged, answer.history.segments_mended
            session.out.say(f"{answer.node_id}: {found} damaged files were found since its start, {mended} mended")
    for words in _states(answers):
        session.out.say(words)
    if not first.leader_id:
        session.out.say("no node leads: a majority of the nodes must be up and connected")
    if first.namespaces:
        spaces = [
            (space.namespace, space.depth.pending, space.depth.active, space.depth.delayed, space.dead_letters)
            for space in first.namespaces
        ]
        session.out.table(("namespace", ">pending", ">active", ">delayed", ">dead letters"), spaces)


def _states(answers: Sequence[Any]) -> list[str]:
    """What there is to say of nodes whose state is, or was, not that of the others."""
    said = []
    for answer in answers:
        if answer is None:
            continue
        node, state = answer.node_id, answer.history.state
        if state.rebuilds:
            ago = since(answer.wall_time_ms - state.rebuilt_at_ms)
            said.append(
                f"{node}: {ago} ago it took over the state at index {state.rebuilt_index} from {state.rebuilt_from} "
                f"({state.rebuilds} times so far), because {state.rebuilt_because}"
            )
        if state.compared_index and state.agreeing < state.compared_nodes:
            found = f"{state.agreeing} of {state.compared_nodes} nodes told its state at index {state.compared_index}"
            said.append(f"{node}: {found} when they were compared last")
    out = sorted(
        {name for answer in answers if answer is not None for name in answer.history.state.rebuilding_node_ids}
    )
    return [*said, *(f"{name}: it is out, and takes over the state of the others" for name in out)]


def _role(number: int) -> str:
    from resourcelease.v1 import NodeRole

    return NodeRole.Name(number).removeprefix("NODE_ROLE_").lower().replace("unspecified", "starting")  # type: ignore[arg-type]


@click.command()
@on_cluster
@click.argument("node_ids", metavar="[NODE…|DIR]", nargs=-1)
@click.option(
    "--from", "from_sequence", default=0, metavar="N", type=click.IntRange(0),
    help="The first event to check.  [default: the oldest]",
)  # fmt: skip
@click.option("--to", "to_sequence", default=0, metavar="N", type=click.IntRange(0),
              help="The last event to check.  [default: the newest]")  # fmt: skip
@LINEARIZABLE
async def verify(
    session: Session, node_ids: Sequence[str], from_sequence: int, to_sequence: int, linearizable: bool
) -> int:
    """Compare the nodes: state and history must be the same on all, byte for byte. Exits 1 if they are not.

    Each node also reads its files of the history again. That takes its time; the --timeout for it is 60 s unless a
    longer one is given.

    \b
    resourcelease verify            all nodes
    resourcelease verify n1 n3      some
    resourcelease verify ./n1       a node's directory, without any node
    """
    directory = _directory(node_ids)
    if directory is not None:
        from resourcelease.cli.offline import verify_directory

        return verify_directory(directory, from_sequence, to_sequence, session.out)
    answer = await session.client.verify(
        *node_ids, from_sequence=from_sequence, to_sequence=to_sequence, linearizable=linearizable,
        timeout=max(session.client.timeout, 60.0),
    )  # fmt: skip
    if session.out.as_json:
        session.out.data(plain(answer))
        return 0 if answer.ok else 1
    rows = [
        (node.node_id, "; ".join(node.problems) or "good" if node.reachable else "does not answer",
         node.state_digest[:16], node.events_digest[:16], f"{node.first_sequence} to {node.last_sequence}")
        for node in answer.nodes
    ]  # fmt: skip
    session.out.table(("node", "finding", "state", "events", "checked"), rows)
    session.out.say("all nodes agree" if answer.ok else "the nodes do not all agree, or could not all be asked")
    return 0 if answer.ok else 1


def _directory(node_ids: Sequence[str]) -> Path | None:
    """The directory that is meant, if that is not a node's name."""
    if len(node_ids) != 1:
        return None
    path = Path(node_ids[0])
    if not path.is_dir() and path.name != node_ids[0]:
        raise click.UsageError(f"there is no directory {path}")
    return path if path.is_dir() else None


@click.command()
@on_cluster
@click.argument("action", type=click.Choice(["list", "add", "remove"]), default="list")
@click.argument("node_id", metavar="[NODE]", required=False)
@click.option("--raft-address", metavar="HOST:PORT", help="add: where the other nodes reach it.")
@click.option("--client-address", metavar="HOST:PORT", help="add: where clients reach it.")
async def members(
    session: Session, action: str, node_id: str | None, raft_address: str | None, client_address: str | None
) -> None:
    """List the nodes, add one, or remove one.

    \b
    resourcelease members
    resourcelease members add n4 --raft-address 10.0.0.4:7201 --client-address 10.0.0.4:7101
    resourcelease members remove n2

    Start a node that is to be added first, with `join = true` in its configuration.
    """
    client = session.client
    if action == "list":
        found = await client.members()
    elif node_id is None:
        raise click.UsageError(f"which node? such as: resourcelease members {action} n4")
    elif action == "remove":
        found = await client.remove_member(node_id)
    elif raft_address is None or client_address is None:
        raise click.UsageError("add needs --raft-address and --client-address")
    else:
        found = await client.add_member(node_id, raft_address=raft_address, client_address=client_address)
    if session.out.as_json:
        session.out.data([plain(member) for member in found])
        return
    rows = [
        (member.node_id, _role(member.role), member.client_address, member.raft_address, member.reachable)
        for member in found
    ]
    session.out.table(("node", "role", "for clients", "for nodes", "reachable"), rows)


@click.command()
@on_cluster
@click.argument("node_id", metavar="[NODE]", default="")
async def transfer(session: Session, node_id: str) -> None:
    """Hand leadership to NODE, or to the node that is furthest along."""
    answer = await session.client.transfer(node_id)
    session.out.say(f"{answer.leader_id} leads, in term {answer.term}")
    if session.out.as_json:
        session.out.data({"leader_id": answer.leader_id, "term": answer.term})


@click.command()
@on_cluster
@click.option("--all", "everywhere", is_flag=True, help="On every node, not only on the one that answers.")
async def snapshot(session: Session, everywhere: bool) -> None:
    """Have a node write a snapshot of its state to its own disk; work goes on meanwhile."""
    addresses: list[str | None] = [None]
    if everywhere:
        addresses = [member.client_address for member in await session.client.members()]
    answers = []
    with session.out.progress("snapshots written", len(addresses)) as advance:
        for address in addresses:
            answers.append(await session.client.snapshot(node=address, timeout=max(session.client.timeout, 60.0)))
            advance(1)
    if session.out.as_json:
        session.out.data([plain(answer) for answer in answers])
        return
    rows = [(answer.node_id, answer.path, answer.size_bytes, answer.digest[:16]) for answer in answers]
    session.out.table(("node", "path", ">bytes", "digest"), rows)
