"""What consensus appends is what the machine applies, and nothing less than the real machine runs in the simulator."""

from chaos.simulation.machines import CLUSTER_ID, Watched, machines_of
from chaos.simulation.plants import PLANTS
from resourcelease.consensus.entries import Origin, decode_ops, encode_ops, join_ops
from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Enqueue, Lease, pack_entry, pack_op, pack_ops

OPS = [
    pack_op(
        Enqueue(Call("a", "", "", "op-1"), ItemColumns(2, "table", ["x", "y"], body=[b"\x00" * 300, None]).packed())
    ),
    pack_op(Lease(Call("a", "w", "", "op-2"), 1)),
]


def test_an_entry_is_what_the_machine_reads() -> None:
    origins = [Origin("n1", 3, 1, 1), Origin("n2", 1, 7, 1)]
    command = encode_ops(origins, 1_234, 1_700_000_000_000, [join_ops(OPS[:1]), join_ops(OPS[1:])])
    found, entry = decode_ops(command)
    assert found == origins
    machine, plain = Machine(CLUSTER_ID), Machine(CLUSTER_ID)
    applied = machine.apply(5, 2, entry)
    plain.apply(5, 2, pack_entry(1_234, 1_700_000_000_000, pack_ops(OPS)))
    assert applied.refused is None
    assert len(applied.results) == len(OPS)
    assert (machine.clock_ms, machine.applied_index, machine.applied_term) == (1_234, 5, 2)
    assert machine.digest() == plain.digest()


def test_an_entry_of_nothing_lets_time_pass() -> None:
    machine = Machine(CLUSTER_ID)
    machine.apply(1, 1, decode_ops(encode_ops([Origin("n1", 1, 1, 2)], 10, 0, [join_ops(OPS)]))[1])
    due_ms = machine.next_due_ms()
    assert due_ms is not None
    applied = machine.apply(2, 1, decode_ops(encode_ops([], due_ms, 0, []))[1])
    assert [record.type.name for record in applied.records][:2] == ["LEASE_EXPIRED", "REQUEUED"]


def test_the_machine_in_the_simulator_is_the_real_one() -> None:
    machines = machines_of(Watched, "n1")
    entry = decode_ops(encode_ops([Origin("n1", 1, 1, 2)], 10, 0, [join_ops(OPS)]))[1]
    watched, real = machines.new(), Machine(CLUSTER_ID)
    watched.apply(1, 1, entry)
    real.apply(1, 1, entry)
    assert watched.digest() == real.digest()
    assert list(watched.dump_rows()) == list(real.dump_rows())
    loaded = machines.load(watched.dump_rows())
    assert loaded.digest() == real.digest()
    assert issubclass(Watched, Machine)
    overridden = set(vars(Watched)) & {name for name in vars(Machine) if not name.startswith("__")}
    assert overridden == {"take_changes"}


def test_only_plants_have_other_machines() -> None:
    assert all(issubclass(plant.machine, Watched) for plant in PLANTS.values())
    assert {plant.name for plant in PLANTS.values() if plant.machine is Watched} == {
        plant.name for plant in PLANTS.values() if plant.guards_off or plant.disk or plant.always_founding
    }
