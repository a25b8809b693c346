"""AdminService.Verify: whether all nodes agree on state and history, and whether their files are sound."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from resourcelease import v1
from resourcelease.events import NO_ANSWER, Exchange, Findings, differing, first_difference
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.neighbours import Digest, Neighbours
from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.frontdoor.replica import Replica
from resourcelease.model.errors import Reason

__all__ = ["Verifier"]

# Reading all files again takes its time; a call without a deadline waits so long.
_CHECK_S = 600.0
# How long a node may take to say what it has; of a short time, a third.
_DIGEST_S = 7.0
# Of the time that a caller waits, what is left to compare and to answer; of a short time, a quarter.
_MARGIN_S = 2.0
_ENTRIES_S = 20.0


class _Node(NamedTuple):
    """What one node said, as far as it did."""

    digest: Digest | None
    findings: Findings | None


class Verifier:
    """Verify."""

    def __init__(self, replica: Replica, neighbours: Neighbours, exchange: Exchange) -> None:
        self._replica = replica
        self._consensus = replica.consensus
        self._neighbours = neighbours
        self._exchange = exchange

    async def verify(self, caller: Caller, request: v1.VerifyRequest) -> v1.VerifyResponse:
        """Compares state and history of the nodes, and has each check its files."""
        asked = self._asked(request)
        await self._replica.linearize(request.linearizable, caller.remaining_s())
        position = self._replica.position()
        own_id = self._consensus.node_id
        named = sorted({*asked, own_id})
        patience_s = min(_DIGEST_S, _left(caller) / 3)
        told = await asyncio.gather(
            *(
                self._neighbours.digest_of(node, position.raft_index, state=False, patience_s=patience_s)
                for node in named
            )
        )
        digests = dict(zip(named, told, strict=True))
        own = digests[own_id]
        assert own is not None
        # Who has not answered that is not waited for again.
        there = [node for node in named if digests[node] is not None]
        checked = [node for node in there if node in asked]
        left = _left(caller)
        seconds = left - min(_MARGIN_S, left / 4)
        (index, states), findings = await asyncio.gather(
            self._exchange.states(there, seconds),
            asyncio.gather(*(self._findings_of(node, request, seconds) for node in checked)),
        )
        files = dict(zip(checked, findings, strict=True))
        found = {node: _Node(digests[node], files.get(node)) for node in asked}
        problems = await self._differences(found, _left(caller) / 2)
        for node, problem in _state_problems(index, states, own_id).items():
            problems.setdefault(node, []).append(f"{node}: {problem}")
        nodes = _compared(found, own, problems, ranged=bool(request.from_sequence or request.to_sequence))
        for each in nodes:
            each.state_digest = states.get(each.node_id, "").rpartition(":")[2]
        return v1.VerifyResponse(
            position=position, ok=not any(node.problems for node in nodes), nodes=nodes, state_index=index
        )

    def _asked(self, request: v1.VerifyRequest) -> list[str]:
        members = sorted(self._consensus.status().members)
        asked = sorted(set(request.node_ids)) or members
        unknown = [node for node in asked if node not in members]
        if unknown:
            raise Refused(
                Reason.NOT_FOUND, f"there is no node {unknown[0]}; there are {', '.join(members)}", "node_ids"
            )
        first, last = request.from_sequence, request.to_sequence
        if first < 0:
            refuse(f"must be from 0 (the oldest event), not {first}", "from_sequence")
        if last < 0 or 0 < last < first:
            refuse(f"must be 0 (the newest event) or not below from_sequence, not {last}", "to_sequence")
        return asked

    async def _findings_of(self, node: str, request: v1.VerifyRequest, seconds: float) -> Findings | None:
        try:
            return await self._check(node, request.from_sequence, request.to_sequence, seconds)
        except NO_ANSWER:
            return None

    async def _check(self, node: str, first: int, last: int, seconds: float) -> Findings:
        if node == self._consensus.node_id:
            async with asyncio.timeout(seconds):
                return await self._exchange.checked(first, last)
        question = {"what": "check", "first": first, "last": last}
        return Findings.read(await self._neighbours.ask(node, question, seconds))

    async def _differences(self, found: Mapping[str, _Node], seconds: float) -> dict[str, list[str]]:
        """What is wrong with the files of each node, in sentences."""
        findings = {node: said.findings for node, said in found.items() if said.findings is not None}
        problems = {node: [f"{node}: {each}" for each in said.problems] for node, said in findings.items()}
        until = asyncio.get_running_loop().time() + seconds
        for node, (segment, last, honest) in differing(findings).items():
            try:
                async with asyncio.timeout_at(until):
                    event = await first_difference(self._entries, node, honest, segment)
            except NO_ANSWER:
                event = 0
            where = f"the first entry that differs ends with event {event}" if event else "where could not be seen"
            problems[node].append(f"{node}: its segment of events {segment} to {last} is not that of {honest}: {where}")
        return problems

    async def _entries(self, node: str, segment: int, after: int) -> list[tuple[int, bytes]]:
        question = {"what": "entries", "first": segment, "after": after}
        if node == self._consensus.node_id:
            said = await self._exchange.entries(question)
        else:
            said = await self._neighbours.ask(node, question, _ENTRIES_S)
        return [(int(last), bytes(chain)) for last, chain in said["entries"]]


def _left(caller: Caller) -> float:
    return caller.remaining_s() or _CHECK_S


def _compared(
    found: Mapping[str, _Node], own: Digest, wrong: Mapping[str, list[str]], *, ranged: bool
) -> list[v1.NodeDigest]:
    """Each node's part, with what differs from the majority; where there is none, from the answering node."""
    digests = [said.digest for said in found.values()]
    chains = Counter(digest.chain for digest in (*digests, own) if digest is not None and digest.chain)
    usual, votes = chains.most_common(1)[0] if chains else ("", 0)
    if votes * 2 <= sum(chains.values()):
        usual = own.chain
    nodes = []
    for node, (digest, findings) in sorted(found.items()):
        if digest is None:
            nodes.append(v1.NodeDigest(node_id=node, problems=[f"{node} did not answer"]))
            continue
        problems = _chain_problems(node, digest, usual)
        if findings is None:
            problems.append(f"{node} did not check its files in time; ask for a part of them, or give it longer")
        nodes.append(
            v1.NodeDigest(
                node_id=node,
                reachable=True,
                events_digest=findings.digest if ranged and findings is not None else digest.chain,
                first_sequence=findings.first if findings is not None else 0,
                last_sequence=findings.last if findings is not None else 0,
                problems=[*problems, *wrong.get(node, ())],
            )
        )
    return nodes


def _state_problems(index: int, states: Mapping[str, str], own: str) -> dict[str, str]:
    """Who has another state than the majority; where there is none, than the answering node."""
    told = Counter(digest for digest in states.values() if digest)
    usual, votes = told.most_common(1)[0] if told else ("", 0)
    if votes * 2 <= sum(told.values()):
        usual = states.get(own, "")
    late = f"it did not tell the digest of its state at index {index} in time"
    differs = f"its state at index {index} differs from the majority's"
    return {node: differs if digest else late for node, digest in states.items() if digest != usual or not digest}


def _chain_problems(node: str, digest: Digest, usual: str) -> list[str]:
    problems = [f"{node}: {digest.problem}"] if digest.problem else []
    if digest.chain != usual:
        seen = (
            f"its events up to index {digest.at} differ from the majority's"
            if digest.chain
            else f"it does not remember its digest at index {digest.at}; ask it soon after a start"
        )
        problems.append(f"{node}: {seen}")
    return problems
