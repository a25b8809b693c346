"""The messages of a worker on its stream: what is allowed where, and which ack a frame stands for."""

from resourcelease import v1
from resourcelease.frontdoor.acks import Acks
from resourcelease.frontdoor.callers import MAX_OPERATION_ID
from resourcelease.frontdoor.intake import handle_columns
from resourcelease.frontdoor.refusals import refuse
from resourcelease.model.limits import MAX_ITEMS_PER_OP
from resourcelease.model.ops import Call

__all__ = ["check_first", "check_later", "frame_of"]


def check_first(request: v1.WorkRequest) -> None:
    """The first message opens the stream."""
    if request.WhichOneof("frame") != "open":
        refuse("the first message of a stream has it", "open")
    if len(request.open.held) > MAX_ITEMS_PER_OP:
        refuse(f"has {len(request.open.held)} entries; {MAX_ITEMS_PER_OP} are allowed", "open.held")
    if request.open.held:
        handle_columns(request.open.held, "open.held[{}]")


def check_later(request: object, call: Call) -> None:
    """Later messages are for the same peer and namespace, and name themselves if they ask for something."""
    if not isinstance(request, v1.WorkRequest):
        refuse("bytes that are not a WorkRequest")
    frame = request.WhichOneof("frame")
    if frame == "open":
        refuse("only the first message of a stream has it", "open")
    if request.namespace and request.namespace != call.namespace:
        refuse(f"this stream is about {call.namespace}; open another one", "namespace")
    if request.peer_id and request.peer_id != call.peer:
        refuse(f"this stream is of peer {call.peer}; open another one", "peer_id")
    if frame is not None and not request.operation_id:
        refuse("is required: the answer repeats it", "operation_id")
    if len(request.operation_id) > MAX_OPERATION_ID:
        refuse(f"has {len(request.operation_id)} characters; {MAX_OPERATION_ID} are allowed", "operation_id")


async def frame_of(acks: Acks, call: Call, request: v1.WorkRequest, done: v1.WorkDone) -> None:
    """Does what a frame asks for, and fills in its answer; raises ``Refused``."""
    match request.WhichOneof("frame"):
        case "complete":
            answer = await acks.complete(call, request.complete.entries, "complete.entries[{}].handle", None)
            done.complete.CopyFrom(answer)
        case "fail":
            done.fail.CopyFrom(await acks.fail(call, request.fail.entries, "fail.entries[{}]", None))
        case "heartbeat":
            beat = request.heartbeat
            handles = "heartbeat.handles[{}]"
            done.heartbeat.CopyFrom(await acks.heartbeat(call, beat.handles, beat.all_of_peer, handles, None))
        case "hand_back":
            back = await acks.give_back(call, request.hand_back.handles, "hand_back.handles[{}]", None)
            done.hand_back.CopyFrom(back)
