"""The machine and a naive model of its rules, driven in lock step through whatever Hypothesis comes up with."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import strategies
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model_lockstep import Lockstep
from model_state import Handle, Page, Space
from strategies import BUNDLES, Caller, HandlePick, ItemSpec

from resourcelease.model import limits
from resourcelease.model.items import Failure
from resourcelease.model.ops import (
    BeginEffect,
    Call,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    FinishEffect,
    GiveBack,
    Heartbeat,
    Lease,
    Op,
    Pause,
    Redrive,
    RequireVersion,
    Restore,
    Resume,
)
from resourcelease.model.results import Drained, Granted

EXAMPLES = int(os.environ.get("RESOURCELEASE_EXAMPLES", "500"))

# Bounds small enough to be met within one example.
SMALL_LIMITS = {
    "MAX_NAMESPACES": 4,
    "MAX_PEERS": 5,
    "ANSWER_WINDOW_MS": 400,
    "ANSWERS_PER_PEER": 3,
    "SETTLED_BLOCK": 4,
    "SETTLED_BLOCKS": 2,
    "RESTORED_PAGES_KEPT": 3,
    "MAX_OPEN_BUNDLES": 2,
    "MAX_EFFECTS": 2,
    "MAX_GATES": 2,
    "THIN_BATCH_PART": 2,
    "THIN_BATCHES": 1,
}

callers = strategies.callers


class MachineAgainstModel(RuleBasedStateMachine):
    """Two clusters, each a machine and a model; the rules make ops from choices and from what has happened so far."""

    def __init__(self) -> None:
        super().__init__()
        pages: dict[bytes, Page] = {}
        self.clusters = {name: Lockstep(name, pages) for name in ("c1", "c2")}
        self.waiting: dict[str, list[Op]] = {"c1": [], "c2": []}
        self.sent: list[tuple[str, Op]] = []
        # Ops whose answers were remembered, for a while at least.
        self.answered: list[tuple[str, Op]] = []
        self.granted: dict[tuple[str, str], list[Handle]] = {}
        self.principals: dict[tuple[str, str, int], str] = {}
        self.pages: list[bytes] = []

    # How ops get on their way.

    def send(self, who: Caller, op: Op) -> None:
        """Into the next entry, which goes off now unless the op is to wait for company."""
        if op.call.operation_id:
            self.sent.append((who.cluster, op))
        self.waiting[who.cluster].append(op)
        if not who.hold:
            self.apply(who.cluster)

    def apply(self, cluster: str, clock_ms: int | None = None) -> None:
        """One entry with everything that waits for it."""
        ops, self.waiting[cluster] = self.waiting[cluster], []
        for op, result in zip(ops, self.clusters[cluster].apply(ops, clock_ms), strict=True):
            if self.clusters[cluster].model.keeps_answer(op):
                self.answered.append((cluster, op))
            if isinstance(result, Granted):
                rows = zip(result.sequence_ids, result.attempts, result.fences, strict=True)
                known = self.granted.setdefault((cluster, op.call.namespace), [])
                known.extend(handle for handle in map(Handle._make, rows) if handle not in known)
                for fence in result.fences:
                    self.principals.setdefault((cluster, op.call.namespace, fence), op.call.principal)
            if isinstance(result, Drained) and result.page not in self.pages:
                self.pages.append(result.page)

    def call(self, who: Caller, namespace: str = "", principal: str | None = None) -> Call:
        """The caller's card, with the operation id that it chose."""
        operation_id = f"op{len(self.sent)}" if who.operation == 1 else ""
        if who.operation > 1 and self.sent:
            operation_id = self.sent[-min(who.operation - 1, len(self.sent))][1].call.operation_id
        return Call(
            namespace or who.namespace,
            who.peer,
            who.principal if principal is None else principal,
            operation_id,
            who.take,
        )

    def holder(self, who: Caller, picks: Sequence[HandlePick]) -> tuple[Call, list[Handle]]:
        """A caller with handles, in a namespace where there are some if there is any."""
        name = self.somewhere(who, Space.active)
        space = self.clusters[who.cluster].model.space(name)
        live = [thing.handle for thing in space.active()] if space else []
        known = self.granted.get((who.cluster, name), [])
        handles = [_picked(pick, live, known) for pick in picks]
        principal = who.principal or self.principals.get((who.cluster, name, handles[0].fence), "")
        return self.call(who, name, principal), handles

    def somewhere(self, who: Caller, wanted: Callable[[Space], Sequence[object]]) -> str:
        """The caller's namespace, or another one if only that has what is wanted."""
        spaces = sorted(self.clusters[who.cluster].model.spaces, key=lambda space: space.name != who.namespace)
        return next((space.name for space in spaces if wanted(space)), who.namespace)

    @initialize(leased=st.integers(0, 3), waiting=st.integers(0, 2), beating=st.booleans())
    def set_up(self, leased: int, waiting: int, beating: bool) -> None:
        for lockstep in self.clusters.values():
            lockstep.apply([Configure(Call(name), options) for name, options in strategies.OPTIONS.items()])
        for namespace, peer in zip(strategies.NAMESPACES, strategies.PEERS, strict=True):
            who = Caller("c1", namespace, peer, "", 0, 0, hold=True)
            self.work(who, leased + waiting, leased)
        if beating:
            # An older lease that ends later, and another peer's beside it.
            self.clusters["c1"].clock_ms += 10
            self.send(who, Heartbeat(Call(namespace, peer), [1], 1, [1 + 2 * leased]))
            self.send(who, Lease(Call(namespace, "p1"), 1))
        self.apply("c1")

    @rule(who=callers, specs=strategies.item_lists)
    def enqueue(self, who: Caller, specs: list[ItemSpec]) -> None:
        self.send(who, Enqueue(self.call(who), strategies.columns(specs)))

    @rule(who=callers, limit=st.integers(1, 5), max_bytes=st.sampled_from([0, 0, 0, 1, 150]))
    def lease(self, who: Caller, limit: int, max_bytes: int) -> None:
        self.send(who, Lease(self.call(who), limit, max_bytes))

    @rule(who=callers, count=st.integers(1, 4), limit=st.integers(1, 4), request=st.none() | st.integers(0, 9))
    def work(self, who: Caller, count: int, limit: int, request: int | None = None) -> None:
        """Items that are leased at once: without leases there is little to see."""
        requests = [None if request is None else f"r{request + place}" for place in range(count)]
        specs = [ItemSpec("table", f"t{place}", None, requests[place], 4, 0) for place in range(count)]
        if specs:
            self.send(who._replace(hold=True), Enqueue(Call(who.namespace), strategies.columns(specs)))
        if limit:
            self.send(who, Lease(self.call(who), limit))

    @precondition(lambda self: self.granted)
    @rule(who=callers, picks=strategies.pick_lists)
    def heartbeat(self, who: Caller, picks: list[HandlePick]) -> None:
        call, handles = self.holder(who, picks)
        self.send(who, Heartbeat(call, *_columns(handles)))

    @rule(who=callers)
    def heartbeat_of_peer(self, who: Caller) -> None:
        self.send(who, Heartbeat(self.call(who)))

    @precondition(lambda self: self.granted)
    @rule(who=callers, picks=strategies.pick_lists)
    def complete(self, who: Caller, picks: list[HandlePick]) -> None:
        call, handles = self.holder(who, picks)
        self.send(who, Complete(call, *_columns(handles)))

    @precondition(lambda self: self.granted)
    @rule(who=callers, picks=strategies.pick_lists, requeue=strategies.requeues, delays=strategies.delays)
    def fail(self, who: Caller, picks: list[HandlePick], requeue: Any, delays: Any) -> None:
        call, handles = self.holder(who, picks)
        failures = [None, [Failure("E", "it broke")]][len(picks) % 2]
        if len(picks) == 3:
            failures = [Failure(f"E{place}", "it broke", {"at": "night"}) for place in range(3)]
        requeue, delays = (value[: len(handles)] if isinstance(value, list) else value for value in (requeue, delays))
        self.send(who, Fail(call, *_columns(handles), requeue, delays, failures))

    @precondition(lambda self: self.granted)
    @rule(who=callers, picks=strategies.pick_lists)
    def give_back(self, who: Caller, picks: list[HandlePick]) -> None:
        call, handles = self.holder(who, picks)
        # As a node says it of a lease call, or without a word.
        leased = [op.call.operation_id for _, op in self.sent if isinstance(op, Lease)]
        untold = leased[-1] if len(picks) == 2 and leased else ""
        self.send(who, GiveBack(call, *_columns(handles), untold))

    @rule(who=callers, change=strategies.changes | st.sampled_from([Pause, Resume]))
    def configure(self, who: Caller, change: Any) -> None:
        call = self.call(who)
        self.send(who, Configure(call, change) if isinstance(change, dict) else change(call))

    @rule(who=callers, places=st.none() | st.lists(st.integers(0, 6), min_size=1, max_size=3), limit=st.integers(1, 3))
    def redrive(self, who: Caller, places: list[int] | None, limit: int) -> None:
        name = self.somewhere(who, Space.dead)
        space = self.clusters[who.cluster].model.space(name)
        dead = [thing.sequence_id for thing in space.dead()] if space else []
        ids = None if places is None else [dead[place] if place < len(dead) else place for place in places]
        delay_ms = 20 if limit == 3 else 0
        self.send(who, Redrive(self.call(who, name), ids, 0 if ids else limit, delay_ms))

    @rule(
        who=callers,
        bundle=st.sampled_from([BUNDLES[0], *BUNDLES]),
        page=st.sampled_from([None, None, None, 0, 1, 2]),
        limit=st.sampled_from([0, 0, 1, 2, 3]),
        max_bytes=st.sampled_from([1 << 20, 150]),
        include_active=st.booleans(),
    )
    def drain(
        self, who: Caller, bundle: str, page: int | None, limit: int, max_bytes: int, include_active: bool
    ) -> None:
        name = self.somewhere(who, Space.pending)
        space = self.clusters[who.cluster].model.space(name)
        if page is None:
            numbers = {one.id: one.next_number for one in space.bundles} if space else {}
            page = numbers.get(bundle, 0)
        self.send(who, Drain(self.call(who, name), bundle, page, limit, max_bytes, include_active))

    @precondition(lambda self: self.pages)
    @rule(who=callers, place=st.sampled_from([0, 0, 0, 1, 2, 3, 7]), damage=st.sampled_from([False] * 9 + [True]))
    def restore(self, who: Caller, place: int, damage: bool) -> None:
        page = self.pages[-1 - place % len(self.pages)]
        if damage:
            page = page[:-1] + bytes([page[-1] ^ 1])
        self.send(who, Restore(self.call(who), page))

    @rule(
        who=callers,
        towards=st.sampled_from([("c1", "calm"), ("c1", "tiny"), ("c2", "calm"), ("c2", "tiny"), ("c1", "four")]),
        bundle=st.sampled_from(BUNDLES),
        limit=st.integers(1, 4),
        times=st.integers(1, 2),
        room=st.none() | st.integers(-1, 1),
    )
    def move(
        self, who: Caller, towards: tuple[str, str], bundle: str, limit: int, times: int, room: int | None
    ) -> None:
        """A page from one queue to another, or back to where it came from; sometimes there is just room for it."""
        self.drain(who._replace(hold=False), bundle, None, limit, 1 << 20, include_active=True)
        cluster, name = towards if who.take else (who.cluster, who.namespace)
        space = self.clusters[cluster].model.space(name)
        if room is not None and space is not None:
            capacity = max(1, space.unsettled() + limit + room)
            self.send(_somebody(cluster, hold=True), Configure(Call(name), {"capacity": capacity}))
        for _ in range(times):
            self.put_back(who._replace(cluster=cluster, namespace=name))
        if times == 2:
            self.drain(who, bundle, None, 0, 1, include_active=False)

    def put_back(self, who: Caller, place: int = -1) -> None:
        """A restore of the newest page, or another one, if there is any."""
        if self.pages:
            self.send(who, Restore(self.call(who), self.pages[min(place, len(self.pages) - 1)]))

    @rule(who=callers, bundle=st.sampled_from(BUNDLES), limit=st.integers(1, 2))
    def drain_on(self, who: Caller, bundle: str, limit: int) -> None:
        """Two pages, each under its own operation id, and then the first once more."""
        who = who._replace(hold=False, operation=1)
        for _ in range(2):
            self.drain(who, bundle, None, limit, 1 << 20, include_active=True)
        cluster, op = self.sent[-2]
        self.send(_somebody(cluster), op)

    @rule(who=callers, bundle=st.sampled_from(BUNDLES), rounds=st.integers(1, 3))
    def circle(self, who: Caller, bundle: str, rounds: int) -> None:
        """Out and back again, a few times; then the first page, whose items are out by a later one."""
        who = who._replace(hold=False, namespace=self.somewhere(who, Space.pending))
        before = len(self.pages)
        for _ in range(rounds):
            self.drain(who, bundle, None, 3, 1 << 20, include_active=True)
            self.put_back(who)
        self.drain(who, bundle, None, 3, 1 << 20, include_active=True)
        self.put_back(who, before)

    @rule(who=callers, limit=st.integers(1, 4), moved=st.booleans(), room=st.none() | st.integers(-1, 1))
    def second_life(self, who: Caller, limit: int, moved: bool, room: int | None) -> None:
        """Dead letters that are redriven, perhaps taken elsewhere and back, leased and failed: with a new budget."""
        who = who._replace(hold=False, namespace=self.somewhere(who, Space.dead))
        space = self.clusters[who.cluster].model.space(who.namespace)
        dead = [thing.sequence_id for thing in space.dead()][:limit] if space else []
        if room is not None and space is not None:
            capacity = max(1, space.unsettled() + len(dead) + room)
            self.send(who._replace(hold=True), Configure(Call(who.namespace), {"capacity": capacity}))
        self.send(who, Redrive(self.call(who), dead if dead and room is not None else None, limit))
        if moved:
            self.drain(who, BUNDLES[0], None, limit, 1 << 20, include_active=False)
            self.put_back(who)
        self.send(who, Lease(self.call(who), limit))
        self.fail(who, [HandlePick("live", place) for place in range(limit)], True, None)

    @rule(who=callers, names=st.permutations(BUNDLES), last=st.sampled_from(BUNDLES))
    def many_bundles(self, who: Caller, names: list[str], last: str) -> None:
        """More bundles, one after the other, than are known; then one of them goes on."""
        who = who._replace(hold=False)
        specs = [ItemSpec("table", "t", None, None, 4, 0)] * (len(names) + 1)
        self.send(who, Enqueue(Call(who.namespace), strategies.columns(specs)))
        for bundle in names:
            self.drain(who, bundle, None, 1, 1 << 20, include_active=False)
            self.drain(who, bundle, None, 0, 1 << 20, include_active=False)
        self.drain(who, last, None, 1, 1 << 20, include_active=False)

    @rule(who=callers, limit=st.integers(0, 1))
    def fewer_dead(self, who: Caller, limit: int) -> None:
        """A lower limit of dead letters is kept when the next item dies."""
        who = who._replace(hold=False, namespace=self.somewhere(who, Space.dead))
        self.send(who, Configure(Call(who.namespace), {"dead_letter_limit": limit}))
        self.work(who, 1, 1)
        if self.granted:
            self.fail(who, [HandlePick("live", 0)], False, None)

    @precondition(lambda self: self.granted)
    @rule(who=callers, wait_ms=st.integers(1, 20), after=st.integers(0, 1), early_ms=st.integers(0, 1))
    def complete_slowly(self, who: Caller, wait_ms: int, after: int, early_ms: int) -> None:
        """Two items complete, one after the other; the first is asked for when it, or the second, is forgotten."""
        who = who._replace(hold=False, namespace=self.somewhere(who, lambda space: space.active()[1:]))
        lockstep = self.clusters[who.cluster]
        space = lockstep.model.space(who.namespace)
        done_ms = []
        handles = [thing.handle for thing in space.active()[:2]] if space else []
        for handle in handles:
            principal = self.principals.get((who.cluster, who.namespace, handle.fence), "")
            self.send(who, Complete(Call(who.namespace, who.peer, principal), *handle))
            done_ms.append(lockstep.clock_ms)
            lockstep.clock_ms += wait_ms
        if handles:
            lockstep.clock_ms = done_ms[-after] + limits.ANSWER_WINDOW_MS - early_ms
            self.send(who, Complete(Call(who.namespace, who.peer), *handles[0]))

    @rule(who=callers, count=st.integers(1, 5))
    def many_answers(self, who: Caller, count: int) -> None:
        """Calls of one peer under so many operation ids, and then the first once more."""
        who = who._replace(hold=False, operation=1)
        for place in range(count):
            self.send(who, Pause(self.call(who)) if place % 2 == 0 else Resume(self.call(who)))
        cluster, op = self.sent[-count]
        self.send(_somebody(cluster), op)

    @rule(
        who=callers,
        sizes=st.lists(st.integers(0, 4), min_size=2, max_size=5),
        whole=st.integers(1, 3),
        over=st.integers(-1, 9),
    )
    def by_weight(self, who: Caller, sizes: list[int], whole: int, over: int) -> None:
        """Items that just fit, or just do not."""
        specs = [ItemSpec("täble", "t", b"x" * size, None, 9, 0) for size in sizes]
        bytes_ = whole * (64 + len("täble".encode()) + 1) + over
        self.send(who._replace(hold=True), Enqueue(Call(who.namespace), strategies.columns(specs)))
        if len(sizes) % 2:
            self.send(who, Lease(self.call(who), len(sizes), bytes_))
        else:
            who = who._replace(hold=False)
            self.apply(who.cluster)
            self.drain(who, BUNDLES[0], None, len(sizes), bytes_, include_active=False)

    @rule(
        who=callers, wrong=st.booleans(), room=st.integers(0, 1), fill=st.booleans(), mores=st.lists(st.integers(0, 2))
    )
    def full_again(self, who: Caller, wrong: bool, room: int, fill: bool, mores: list[int]) -> None:
        """A queue that is full for a while, and retries of a call that it refused in part or whole."""
        who = who._replace(hold=False, operation=1)
        call, name = self.call(who), who.namespace
        known = ItemSpec("table", "t", None, "r0", 4, 0)
        specs = [known, known._replace(request_id=None), known._replace(request_id="r1")]
        specs += [known._replace(resource_id="")] if wrong else []
        if fill:
            self.send(who, Enqueue(Call(name), strategies.columns([known])))
        space = self.clusters[who.cluster].model.space(name)
        capacity = max(1, (space.unsettled() if space else 0) + room)
        self.send(who, Configure(Call(name), {"capacity": capacity}))
        op = Enqueue(call, strategies.columns(specs))
        self.send(who, op)
        self.send(who, Configure(Call(name), {"capacity": capacity + 3}))
        for more in mores[:3]:
            self.send(who, op._replace(call=call._replace(take=call.take + more)))

    @rule(who=callers, limit=st.integers(0, 2), place=st.integers(0, 3))
    def fewer_requests(self, who: Caller, limit: int, place: int) -> None:
        """Ended request ids beyond a new limit are as good as new."""
        who = who._replace(namespace=self.somewhere(who, lambda space: space.ended_requests))
        space = self.clusters[who.cluster].model.space(who.namespace)
        ended = space.ended_requests if space else []
        self.send(who._replace(hold=True), Configure(Call(who.namespace), {"dedup_limit": limit}))
        if ended:
            spec = ItemSpec("table", "t", None, ended[place % len(ended)].request_id, 4, 0)
            self.send(who, Enqueue(self.call(who), strategies.columns([spec])))

    @rule(who=callers, limit=st.integers(1, 3), ack=st.sampled_from([Heartbeat, Complete, GiveBack]))
    def lease_again(self, who: Caller, limit: int, ack: type[Complete]) -> None:
        """A lease call whose answer was lost, after something has become of one of the leases."""
        who = who._replace(hold=False, operation=1, namespace=self.somewhere(who, Space.pending))
        self.send(who, Lease(self.call(who), limit))
        cluster, op = self.sent[-1]
        self.clusters[cluster].clock_ms += 5
        known = self.granted.get((cluster, who.namespace))
        if known:
            self.send(who, ack(self.call(who), *known[-1]))
        self.send(_somebody(cluster), op)

    @rule(who=callers, duration_ms=st.sampled_from([20, 20, 80]), then=st.sampled_from(["lease", "beat", "beat all"]))
    def shorter_leases(self, who: Caller, duration_ms: int, then: str) -> None:
        """A change of the duration takes no time away from anyone who has been promised more."""
        name = self.somewhere(who, Space.active)
        held = self.clusters[who.cluster].model.space(name)
        options = {"lease_duration_ms": duration_ms}
        self.send(who._replace(hold=True), Heartbeat(Call(name, who.peer)))
        self.send(who._replace(hold=True), Configure(Call(name), options))
        call = self.call(who, name)
        if then == "lease":
            self.send(who, Lease(call, 2))
        elif then == "beat" and held is not None and held.active():
            self.send(who, Heartbeat(call, *held.active()[0].handle))
        else:
            self.send(who, Heartbeat(call))

    @rule(who=callers, wishes=strategies.versions)
    def require_versions(self, who: Caller, wishes: list[tuple[str, int, int]]) -> None:
        call = self.call(who)
        for change, low, high in wishes:
            self.send(who._replace(hold=True), RequireVersion(call, change, low, high))
            call = call._replace(operation_id="")

    @precondition(lambda self: self.granted)
    @rule(who=callers, picks=strategies.pick_lists, steps=strategies.effect_steps)
    def effects(self, who: Caller, picks: list[HandlePick], steps: list[tuple[str, str]]) -> None:
        call, handles = self.holder(who, picks)
        for step, effect in steps:
            handle = handles[int(effect[1:]) % len(handles)]
            op: Op = BeginEffect(call, effect, *handle)
            if step == "finish":
                op = FinishEffect(call, effect, *handle, str(len(self.sent)).encode())
            self.send(who._replace(hold=True), op)
            call = call._replace(operation_id="")
        if not who.hold:
            self.apply(who.cluster)

    @precondition(lambda self: self.answered)
    @rule(place=st.integers(0, 7), more=st.sampled_from([0, 0, -1, 1]), hold=st.booleans())
    def retry(self, place: int, more: int, hold: bool) -> None:
        """An op once more under its operation id, as another take of the same call."""
        cluster, op = self.answered[-1 - place % len(self.answered)]
        again = op._replace(call=op.call._replace(take=max(0, op.call.take + more)))
        self.send(_somebody(cluster, hold), again)

    @precondition(lambda self: self.answered or self.granted)
    @rule(
        cluster=st.sampled_from(["c1", "c1", "c2"]),
        what=st.sampled_from(["answer", "request id", "settled"]),
        place=st.integers(0, 5),
        early_ms=st.integers(0, 1),
        kind=st.sampled_from([Complete, Complete, Fail, GiveBack, Heartbeat]),
    )
    def remind(self, cluster: str, what: str, place: int, early_ms: int, kind: type[Complete]) -> None:
        """What is remembered is asked for in the moment in which it is forgotten, or just before."""
        lockstep = self.clusters[cluster]
        now_ms, memory = lockstep.clock_ms, lockstep.model
        edges: list[tuple[int, Op]] = []
        if what == "answer":
            ops = {op.call[:2] + op.call[3:4]: op for name, op in self.answered if name == cluster}
            edges = [
                (answer.at_ms + limits.ANSWER_WINDOW_MS, ops[answer.key])
                for answer in memory.answers
                if answer.key in ops
            ]
        for space in memory.spaces:
            call = Call(space.name, "p1")
            if what == "request id":
                for ended in space.ended_requests:
                    spec = ItemSpec("table", "t", None, ended.request_id, 4, 0)
                    edges.append((ended.forget_ms, Enqueue(call, strategies.columns([spec]))))
            if what == "settled":
                for block in space.settled_blocks:
                    at_ms = block.written_ms + limits.ANSWER_WINDOW_MS
                    edges += [(at_ms, kind(call, *settled.handle)) for settled in block.settled]
        edges = [edge for edge in edges if edge[0] - early_ms >= now_ms]
        if edges:
            at_ms, op = edges[-1 - place % len(edges)]
            lockstep.clock_ms = at_ms - early_ms
            self.send(_somebody(cluster), op)

    @rule(who=callers, which=st.integers(0, 6), by_ms=st.integers(1, 50))
    def oddity(self, who: Caller, which: int, by_ms: int) -> None:
        """What should not happen: an old entry, a new leader's clock that lies behind, a call that is never right."""
        lockstep, call = self.clusters[who.cluster], self.call(who)
        wrong: list[Op] = [
            Lease(call._replace(peer=""), 1),
            Lease(call, 0),
            Lease(call._replace(namespace=""), 1),
            Drain(call._replace(peer=""), "b1", 0),
            Resume(call._replace(namespace="n" * 257)),
        ]
        if which < len(wrong):
            self.send(who, wrong[which])
        elif which == len(wrong):
            lockstep.replay(lockstep.index, [Pause(call)])
        else:
            self.apply(who.cluster, max(0, lockstep.clock_ms - by_ms))

    @invariant()
    def says_the_same(self) -> None:
        for lockstep in self.clusters.values():
            lockstep.check()


def _somebody(cluster: str, hold: bool = False) -> Caller:
    """For an op whose call is known already."""
    return Caller(cluster, "", "", "", 0, 0, hold)


def _picked(pick: HandlePick, live: list[Handle], known: list[Handle]) -> Handle:
    handles = live if pick.kind == "live" and live else known
    if not handles:
        return Handle(1 + pick.place % 3, 1, 1 + pick.place % 5)
    handle = handles[-1 - pick.place % len(handles)]
    match pick.kind:
        case "attempt":
            return handle._replace(attempt=handle.attempt + 1)
        case "fence":
            return handle._replace(fence=handle.fence + 1)
        case "never":
            return handle._replace(fence=handle.fence + 100_000)
        case "item":
            return handle._replace(sequence_id=handle.sequence_id + 1 + pick.place)
        case "zero":
            return handle._replace(sequence_id=0)
    return handle


def _columns(handles: Sequence[Handle]) -> tuple[Any, Any, Any]:
    """The handles as columns; a number that all share stands alone, except where no column would be left."""
    ids, attempts, fences = ([handle[place] for handle in handles] for place in range(3))
    return ids, attempts[0] if len(set(attempts)) == 1 else attempts, fences


def test_the_machine_does_what_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL_LIMITS.items():
        monkeypatch.setattr(limits, name, value)
    run_state_machine_as_test(
        MachineAgainstModel,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
