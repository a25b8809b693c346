"""The part of etcd's gRPC API that a queue needs, described field by field; nothing is generated."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["METHODS", "message"]

# Message: fields as "name number type", `*` for repeated, `oneof:` in front of alternatives. Numbers are etcd's.
_KEY_VALUE = "key 1 bytes, create_revision 2 int64, mod_revision 3 int64, version 4 int64, value 5 bytes, lease 6 int64"
_MESSAGES: dict[str, str] = {
    "mvccpb.KeyValue": _KEY_VALUE,
    "etcdserverpb.ResponseHeader": "cluster_id 1 uint64, member_id 2 uint64, revision 3 int64, raft_term 4 uint64",
    "etcdserverpb.RangeRequest": (
        "key 1 bytes, range_end 2 bytes, limit 3 int64, revision 4 int64, serializable 7 bool, keys_only 8 bool, "
        "count_only 9 bool"
    ),
    "etcdserverpb.RangeResponse": (
        "header 1 .etcdserverpb.ResponseHeader, kvs 2 *.mvccpb.KeyValue, more 3 bool, count 4 int64"
    ),
    "etcdserverpb.PutRequest": "key 1 bytes, value 2 bytes, lease 3 int64",
    "etcdserverpb.PutResponse": "header 1 .etcdserverpb.ResponseHeader",
    "etcdserverpb.DeleteRangeRequest": "key 1 bytes, range_end 2 bytes",
    "etcdserverpb.DeleteRangeResponse": "header 1 .etcdserverpb.ResponseHeader, deleted 2 int64",
    "etcdserverpb.RequestOp": (
        "oneof:request_range 1 .etcdserverpb.RangeRequest, oneof:request_put 2 .etcdserverpb.PutRequest, "
        "oneof:request_delete_range 3 .etcdserverpb.DeleteRangeRequest"
    ),
    "etcdserverpb.ResponseOp": (
        "oneof:response_range 1 .etcdserverpb.RangeResponse, oneof:response_put 2 .etcdserverpb.PutResponse, "
        "oneof:response_delete_range 3 .etcdserverpb.DeleteRangeResponse"
    ),
    # Result 0 is "equal"; target 1 the revision of creation, 2 that of the last change, 3 the value.
    "etcdserverpb.Compare": (
        "result 1 int32, target 2 int32, key 3 bytes, oneof:create_revision 5 int64, oneof:mod_revision 6 int64, "
        "oneof:value 7 bytes"
    ),
    "etcdserverpb.TxnRequest": (
        "compare 1 *.etcdserverpb.Compare, success 2 *.etcdserverpb.RequestOp, failure 3 *.etcdserverpb.RequestOp"
    ),
    "etcdserverpb.TxnResponse": (
        "header 1 .etcdserverpb.ResponseHeader, succeeded 2 bool, responses 3 *.etcdserverpb.ResponseOp"
    ),
    "etcdserverpb.LeaseGrantRequest": "TTL 1 int64, ID 2 int64",
    "etcdserverpb.LeaseGrantResponse": "header 1 .etcdserverpb.ResponseHeader, ID 2 int64, TTL 3 int64",
    "etcdserverpb.LeaseRevokeRequest": "ID 1 int64",
    "etcdserverpb.LeaseRevokeResponse": "header 1 .etcdserverpb.ResponseHeader",
    "etcdserverpb.LeaseKeepAliveRequest": "ID 1 int64",
    "etcdserverpb.LeaseKeepAliveResponse": "header 1 .etcdserverpb.ResponseHeader, ID 2 int64, TTL 3 int64",
    "etcdserverpb.StatusRequest": "",
    "etcdserverpb.StatusResponse": "header 1 .etcdserverpb.ResponseHeader, version 2 string, leader 4 uint64",
}
_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES: dict[str, Any] = {
    "bytes": _FIELD.TYPE_BYTES,
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
    "int32": _FIELD.TYPE_INT32,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
}
# Method: its path, and the messages that go and come.
METHODS: dict[str, tuple[str, str, str]] = {
    "range": ("/etcdserverpb.KV/Range", "RangeRequest", "RangeResponse"),
    "txn": ("/etcdserverpb.KV/Txn", "TxnRequest", "TxnResponse"),
    "grant": ("/etcdserverpb.Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse"),
    "revoke": ("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse"),
    "keep_alive": ("/etcdserverpb.Lease/LeaseKeepAlive", "LeaseKeepAliveRequest", "LeaseKeepAliveResponse"),
    "status": ("/etcdserverpb.Maintenance/Status", "StatusRequest", "StatusResponse"),
}


def _describe(into: Any, fields: str) -> None:
    for described in filter(None, fields.split(", ")):
        name, number, kind = described.split()
        field = into.field.add(name=name.removeprefix("oneof:"), number=int(number))
        field.label = _FIELD.LABEL_REPEATED if kind.startswith("*") else _FIELD.LABEL_OPTIONAL
        kind = kind.removeprefix("*")
        if kind.startswith("."):
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, kind
        else:
            field.type = _TYPES[kind]
        if name.startswith("oneof:"):
            if not into.oneof_decl:
                into.oneof_decl.add(name="one")
            field.oneof_index = 0


def _build() -> dict[str, Any]:
    # A pool of its own: the names are etcd's, and nobody else's business here.
    pool = descriptor_pool.DescriptorPool()
    for package in ("mvccpb", "etcdserverpb"):
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        if package == "etcdserverpb":
            file.dependency.append("mvccpb.proto")
        for full, fields in _MESSAGES.items():
            if full.startswith(f"{package}."):
                _describe(file.message_type.add(name=full.rpartition(".")[2]), fields)
        pool.Add(file)  # type: ignore[no-untyped-call,unused-ignore]
    return {
        full.rpartition(".")[2]: message_factory.GetMessageClass(pool.FindMessageTypeByName(full)) for full in _MESSAGES
    }


_CLASSES = _build()


def message(name: str) -> Any:
    """The class of a message.

    >>> message("PutRequest")(key=b"a").SerializeToString()
    b'\\n\\x01a'
    """
    return _CLASSES[name]
