"""Long work beside the storage thread: taking snapshots, and preparing to install one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import lmdb

from resourcelease.storage.errors import SnapshotFailed, StorageError

__all__ = ["Background", "unstoppable"]

_T = TypeVar("_T")


class Background:
    """Threads that each do one piece of work and are waited for at the end."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def run(self, name: str, work: Callable[[], _T], future: "Future[_T]") -> None:
        """Does ``work`` on a thread of its own; what the system refuses it becomes ``SnapshotFailed``."""

        def body() -> None:
            try:
                result = work()
            except StorageError as error:
                future.set_exception(error)
            except (OSError, lmdb.Error) as error:
                failure = SnapshotFailed(f"{name} failed: {error}")
                failure.__cause__ = error
                future.set_exception(failure)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def join(self) -> None:
        """Waits for all work to end."""
        for thread in list(self._threads):
            thread.join()


def unstoppable() -> "Future[_T]":
    """A future that cannot be cancelled: whoever stops waiting for a write has not undone it."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()
    return future
