"""Every method that others depend on is there, with its kind, and carries what its kind must carry."""

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, MethodDescriptorProto, MethodOptions
from wire_files import ROOT, enums, fields, local, messages, methods

UNARY, SERVER_STREAM, BIDIRECTIONAL = (False, False), (False, True), (True, True)

# Kind, and whether the method changes anything.
METHODS = {
    "LeaseService.Enqueue": (UNARY, True),
    "LeaseService.Lease": (UNARY, True),
    "LeaseService.Heartbeat": (UNARY, True),
    "LeaseService.Complete": (UNARY, True),
    "LeaseService.Fail": (UNARY, True),
    "LeaseService.Drain": (UNARY, True),
    "LeaseService.Restore": (UNARY, True),
    "LeaseService.Work": (BIDIRECTIONAL, True),
    # Its calls change things, and carry what is asked of them in their own requests.
    "LeaseService.Converse": (BIDIRECTIONAL, False),
    "LeaseService.RequireVersion": (UNARY, True),
    "LeaseService.BeginEffect": (UNARY, True),
    "LeaseService.FinishEffect": (UNARY, True),
    "EventService.Subscribe": (SERVER_STREAM, False),
    "EventService.Publish": (UNARY, True),
    "AdminService.Status": (UNARY, False),
    "AdminService.Peers": (UNARY, False),
    "AdminService.Queues": (UNARY, False),
    "AdminService.Items": (UNARY, False),
    "AdminService.Explain": (UNARY, False),
    "AdminService.Configure": (UNARY, True),
    "AdminService.Pause": (UNARY, True),
    "AdminService.Resume": (UNARY, True),
    "AdminService.Redrive": (UNARY, True),
    "AdminService.WatchBackpressure": (SERVER_STREAM, False),
    "AdminService.Members": (UNARY, True),
    "AdminService.TransferLeadership": (UNARY, True),
    "AdminService.Snapshot": (UNARY, True),
    "AdminService.Verify": (UNARY, False),
}
MUTATING = [name for name, (_, changes) in METHODS.items() if changes]
ADMIN_READS = [name for name, (_, changes) in METHODS.items() if name.startswith("AdminService.") and not changes]

# Answers with one result per item: the list that is asked with, and the list that answers.
PER_ITEM = {
    "LeaseService.Enqueue": ("items", "EnqueueResult"),
    "LeaseService.Heartbeat": ("handles", "HeartbeatResult"),
    "LeaseService.Complete": ("entries", "CompleteResult"),
    "LeaseService.Fail": ("entries", "FailResult"),
    "AdminService.Redrive": ("sequence_ids", "RedriveResult"),
}


def request_of(name: str) -> dict[str, FieldDescriptorProto]:
    return fields(local(methods()[name].input_type))


def answer_of(name: str) -> dict[str, FieldDescriptorProto]:
    return fields(local(methods()[name].output_type))


def kind_of(method: MethodDescriptorProto) -> tuple[bool, bool]:
    return method.client_streaming, method.server_streaming


def test_methods_and_their_kinds() -> None:
    assert {name: kind_of(method) for name, method in methods().items()} == {
        name: kind for name, (kind, _) in METHODS.items()
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_messages_of_its_own(name: str) -> None:
    own = name.partition(".")[2]
    method = methods()[name]
    assert (local(method.input_type), local(method.output_type)) == (f"{own}Request", f"{own}Response")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_whether_it_may_be_repeated(name: str) -> None:
    kind, changes = METHODS[name]
    expected = MethodOptions.IDEMPOTENT if changes else MethodOptions.NO_SIDE_EFFECTS
    if kind == BIDIRECTIONAL:  # its frames may be repeated, the stream as a whole may not
        expected = MethodOptions.IDEMPOTENCY_UNKNOWN
    assert methods()[name].options.idempotency_level == expected


@pytest.mark.parametrize("name", MUTATING)
def test_what_changes_something_says_where_who_and_under_which_id(name: str) -> None:
    numbers = {field.name: field.number for field in request_of(name).values() if field.number <= 3}
    assert numbers == {"namespace": 1, "operation_id": 2, "peer_id": 3}
    assert all(request_of(name)[field].type == FieldDescriptorProto.TYPE_STRING for field in numbers)


@pytest.mark.parametrize("name", MUTATING + ADMIN_READS)
def test_an_answer_carries_its_place_in_the_log(name: str) -> None:
    position = answer_of(name)["position"]
    assert (position.number, local(position.type_name)) == (1, "LogPosition")


def test_a_place_in_the_log_carries_shard_index_and_clock() -> None:
    assert fields("LogPosition").keys() == {"shard_id", "raft_index", "raft_term", "lease_clock_ms"}


@pytest.mark.parametrize("name", ADMIN_READS)
def test_a_read_can_ask_to_be_linearizable(name: str) -> None:
    linearizable = request_of(name)["linearizable"]
    assert (linearizable.number, linearizable.type) == (2, FieldDescriptorProto.TYPE_BOOL)


@pytest.mark.parametrize("name", PER_ITEM)
def test_a_list_is_answered_item_by_item(name: str) -> None:
    asked, result = PER_ITEM[name]
    results = answer_of(name)["results"]
    assert request_of(name)[asked].label == results.label == FieldDescriptorProto.LABEL_REPEATED
    assert local(results.type_name) == result
    assert [oneof.name for oneof in messages()[result].oneof_decl] == ["result"]
    assert all(field.HasField("oneof_index") for field in fields(result).values())
    assert local(fields(result)["error"].type_name) == "ItemError"


def test_every_unary_call_about_leases_can_be_made_in_a_conversation() -> None:
    prefix = "CONVERSE_METHOD_"
    spoken = {value.name.removeprefix(prefix).replace("_", "").lower() for value in enums()["ConverseMethod"].value[1:]}
    unary = {name for name, (kind, _) in METHODS.items() if name.startswith("LeaseService.") and kind == UNARY}
    assert spoken == {name.partition(".")[2].lower() for name in unary}


def test_the_page_about_the_wire_names_every_method() -> None:
    page = (ROOT / "docs" / "wire.md").read_text()
    assert [name for name in METHODS if f"`{name.partition('.')[2]}`" not in page] == []
