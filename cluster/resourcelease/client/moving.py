"""Bundles: items taken out of one cluster, and put into another; and what must have one outcome for all workers."""

import os
import secrets
from collections.abc import AsyncIterator, Callable
from typing import BinaryIO

from resourcelease import v1
from resourcelease.client.bundlefile import BundleFile, read_pages
from resourcelease.client.core import Core
from resourcelease.client.lease import Lease

__all__ = ["Moving"]

Progress = Callable[[v1.PageSummary], None]
Held = Lease | v1.Handle


class Moving(Core):
    """Drain and restore."""

    async def drain(
        self,
        *,
        bundle_id: str | None = None,
        page_items: int = 0,
        include_active: bool = False,
        namespace: str | None = None,
        first_page: int = 0,
    ) -> AsyncIterator[v1.DrainResponse]:
        """Takes the items out of a namespace, page by page; the queue stays open.

        Asking for the next page tells the cluster that the one before is safe: store ``page`` durably before going on,
        or use ``drain_to``. After a break, go on from the first page that did not arrive, as ``first_page``.

        ```py
        async for answer in client.drain():
            store(answer.page)
        ```
        """
        of = self._of(namespace)
        name = bundle_id or f"bundle-{secrets.token_hex(8)}"
        page, quiet = first_page, 0
        # The page after the last one confirms the last; new items may have come meanwhile, so it may hold some.
        while quiet < 2:
            request = v1.DrainRequest(**of, bundle_id=name, page=page, limit=page_items, include_active=include_active)
            answer: v1.DrainResponse = await self._caller.change("Drain", request)
            if not answer.summary.items and not answer.summary.more:
                return
            yield answer
            quiet = 0 if answer.summary.more else quiet + 1
            page += 1

    async def drain_to(
        self,
        path: str | os.PathLike[str],
        *,
        bundle_id: str | None = None,
        page_items: int = 0,
        include_active: bool = False,
        resume: bool = False,
        namespace: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Drains into a new file, each page on disk before the next is asked for; returns how many items came.

        ``resume`` goes on with the file of a drain that broke off, in the same namespace: the page that was on its way
        then is asked for again, and nothing is lost.
        """
        items = 0
        name = bundle_id or f"bundle-{secrets.token_hex(8)}"
        with BundleFile.resume(path) if resume else BundleFile.create(path, name) as file:
            async for answer in self.drain(
                bundle_id=file.bundle_id,
                page_items=page_items,
                include_active=include_active,
                namespace=namespace,
                first_page=file.pages,
            ):
                file.append(answer.page)
                items += answer.summary.items
                if progress is not None:
                    progress(answer.summary)
        return items

    async def restore(self, page: bytes, *, namespace: str | None = None) -> v1.RestoreResponse:
        """Puts the items of one page back, all or none; those that are there already are passed over."""
        answer: v1.RestoreResponse = await self._caller.change(
            "Restore", v1.RestoreRequest(**self._of(namespace), page=page)
        )
        return answer

    async def restore_from(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        namespace: str | None = None,
        progress: Callable[[v1.RestoreResponse], None] | None = None,
    ) -> int:
        """Restores every page of a file that ``drain_to`` wrote; returns how many items came back.

        Doing it again, after a break in the middle, is harmless.
        """
        restored = 0
        for page in read_pages(source):
            answer = await self.restore(page, namespace=namespace)
            restored += answer.restored
            if progress is not None:
                progress(answer)
        return restored

    async def require_version(
        self, change_id: str, min_version: int, max_version: int, *, namespace: str | None = None
    ) -> int:
        """The version of a change that all workers follow; the first to ask fixes ``max_version``.

        Raises ``Conflict`` if the fixed version is outside the range: this worker is too old, or too new.
        """
        request = v1.RequireVersionRequest(
            **self._of(namespace), change_id=change_id, min_version=min_version, max_version=max_version
        )
        answer: v1.RequireVersionResponse = await self._caller.change("RequireVersion", request)
        return answer.version

    async def begin_effect(self, effect_id: str, lease: Held, *, namespace: str | None = None) -> bytes | None:
        """Asks to run an effect under a lease: None if the caller is to run it now, else the stored result.

        Raises ``Conflict`` while another runner is at it.
        """
        handle = lease.handle if isinstance(lease, Lease) else lease
        of = self._of(namespace, lease.peer_id if isinstance(lease, Lease) else None)
        request = v1.BeginEffectRequest(**of, effect_id=effect_id, handle=handle)
        answer: v1.BeginEffectResponse = await self._caller.change("BeginEffect", request)
        return answer.result if answer.finished else None

    async def finish_effect(
        self, effect_id: str, lease: Held, result: bytes = b"", *, namespace: str | None = None
    ) -> bytes:
        """Stores the result of an effect; returns the one that stands, which an earlier runner may have stored."""
        handle = lease.handle if isinstance(lease, Lease) else lease
        of = self._of(namespace, lease.peer_id if isinstance(lease, Lease) else None)
        request = v1.FinishEffectRequest(**of, effect_id=effect_id, handle=handle, result=result)
        answer: v1.FinishEffectResponse = await self._caller.change("FinishEffect", request)
        return answer.result
