"""The calls of LeaseService that are about more than single leases: bundles, and work that must have one outcome."""

from resourcelease import v1
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.intake import handle_columns
from resourcelease.frontdoor.pages import summary
from resourcelease.frontdoor.refusals import refuse
from resourcelease.frontdoor.replica import Replica, expect
from resourcelease.model.limits import MAX_EFFECT_RESULT, MAX_ITEMS_PER_OP, MAX_NAME
from resourcelease.model.ops import BeginEffect, Drain, FinishEffect, RequireVersion, Restore
from resourcelease.model.results import Drained, EffectState, Restored, VersionFixed

__all__ = ["Shared"]

_PAGE_BYTES = 3 * 1024 * 1024
_PAGE_ITEMS = 1000
_MAX_VERSION = 1 << 31


class Shared:
    """Drain, Restore, RequireVersion, BeginEffect and FinishEffect."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def drain(self, caller: Caller, request: v1.DrainRequest) -> v1.DrainResponse:
        """Takes the next page of a bundle."""
        _check_name(request.bundle_id, "bundle_id")
        if request.page < 0:
            refuse(f"pages are numbered from 0, not {request.page}", "page")
        if not 0 <= request.limit <= MAX_ITEMS_PER_OP:
            refuse(f"must be from 0 ({_PAGE_ITEMS}) to {MAX_ITEMS_PER_OP}, not {request.limit}", "limit")
        call = caller.call(request, needs_peer=True)
        limit = request.limit or _PAGE_ITEMS
        op = Drain(call, request.bundle_id, request.page, limit, _PAGE_BYTES, request.include_active)
        result = expect(await self._replica.run(op, caller.remaining_s()), Drained)
        return v1.DrainResponse(
            position=self._replica.position(call.namespace),
            page=result.page,
            summary=summary(result.page, more=result.more),
        )

    async def restore(self, caller: Caller, request: v1.RestoreRequest) -> v1.RestoreResponse:
        """Puts a page back."""
        if not request.page:
            refuse("is required: the page, byte for byte as Drain gave it", "page")
        call = caller.call(request)
        op = Restore(call, request.page)
        result = expect(await self._replica.run(op, caller.remaining_s()), Restored)
        return v1.RestoreResponse(
            position=self._replica.position(call.namespace),
            restored=result.restored,
            present=result.present,
            summary=summary(request.page),
        )

    async def require_version(self, caller: Caller, request: v1.RequireVersionRequest) -> v1.RequireVersionResponse:
        """Asks which version of a change everyone follows."""
        _check_name(request.change_id, "change_id")
        if not 0 <= request.min_version <= _MAX_VERSION:
            refuse(f"must be from 0 to {_MAX_VERSION}, not {request.min_version}", "min_version")
        if not request.min_version <= request.max_version <= _MAX_VERSION:
            refuse(f"must be from min_version to {_MAX_VERSION}, not {request.max_version}", "max_version")
        call = caller.call(request)
        op = RequireVersion(call, request.change_id, request.min_version, request.max_version)
        result = expect(await self._replica.run(op, caller.remaining_s()), VersionFixed)
        return v1.RequireVersionResponse(position=self._replica.position(call.namespace), version=result.version)

    async def begin_effect(self, caller: Caller, request: v1.BeginEffectRequest) -> v1.BeginEffectResponse:
        """Asks to run an effect."""
        _check_name(request.effect_id, "effect_id")
        ids, attempts, fences = handle_columns([request.handle], "handle")
        call = caller.call(request, needs_peer=True)
        op = BeginEffect(call, request.effect_id, ids[0], attempts[0], fences[0])
        result = expect(await self._replica.run(op, caller.remaining_s()), EffectState)
        return v1.BeginEffectResponse(
            position=self._replica.position(call.namespace), finished=result.finished, result=result.result
        )

    async def finish_effect(self, caller: Caller, request: v1.FinishEffectRequest) -> v1.FinishEffectResponse:
        """Stores the result of an effect."""
        _check_name(request.effect_id, "effect_id")
        if len(request.result) > MAX_EFFECT_RESULT:
            refuse(f"has {len(request.result)} bytes; {MAX_EFFECT_RESULT} are allowed", "result")
        ids, attempts, fences = handle_columns([request.handle], "handle")
        call = caller.call(request, needs_peer=True)
        op = FinishEffect(call, request.effect_id, ids[0], attempts[0], fences[0], request.result)
        result = expect(await self._replica.run(op, caller.remaining_s()), EffectState)
        return v1.FinishEffectResponse(position=self._replica.position(call.namespace), result=result.result)


def _check_name(name: str, field: str) -> None:
    if not name.strip() or len(name) > MAX_NAME:
        refuse(f"is required: a name of 1 to {MAX_NAME} characters", field)
