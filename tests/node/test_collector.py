"""When a node's process collects, and when not."""

import gc

import pytest

from resourcelease.node.collector import all_stays


def test_nothing_is_collected_while_a_node_loads_and_everything_after() -> None:
    with all_stays():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(MemoryError), all_stays():
        raise MemoryError
    assert gc.isenabled()
