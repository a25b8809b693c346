"""Bounds that every node applies alike: replicated rules, so change one only together with the entry version."""

__all__ = [
    "ANSWERS_PER_PEER",
    "ANSWER_WINDOW_MS",
    "DEFAULT_NAMESPACE",
    "DEFAULT_PRIORITY",
    "MAX_ATTRIBUTES",
    "MAX_DELAY_MS",
    "MAX_EFFECTS",
    "MAX_EFFECT_RESULT",
    "MAX_GATES",
    "MAX_ITEMS_PER_OP",
    "MAX_LIFT",
    "MAX_NAMESPACES",
    "MAX_NAME",
    "MAX_OPEN_BUNDLES",
    "MAX_OP_BYTES",
    "MAX_PEERS",
    "MAX_TEXT",
    "MAX_TIME_MS",
    "PRIORITIES",
    "RESTORED_PAGES_KEPT",
    "SETTLED_BLOCK",
    "SETTLED_BLOCKS",
]

DEFAULT_NAMESPACE = "resourcelease"
PRIORITIES = 10
DEFAULT_PRIORITY = 4

# Characters of a name: namespace, peer, principal, operation id, request id, resource type, effect id.
MAX_NAME = 256
# Characters of a text: resource id, partition key, an error's message, an attribute's value.
MAX_TEXT = 4096
MAX_ATTRIBUTES = 64
MAX_ITEMS_PER_OP = 10_000
MAX_OP_BYTES = 16 * 1024 * 1024
MAX_NAMESPACES = 1024
MAX_PEERS = 10_000

# A clock reading or a sequence number above this is not one of ours (it is 35,000 years of milliseconds, and it
# keeps every sum of two of them inside the 64 bits of the wire).
MAX_TIME_MS = 1 << 50
# The longest delay, lease or window: a year.
MAX_DELAY_MS = 366 * 24 * 3600 * 1000

# How long, on the lease clock, an answer is kept for a retry under the same operation id, and how many a peer has.
ANSWER_WINDOW_MS = 120_000
ANSWERS_PER_PEER = 100_000
# How many ended items of a namespace are remembered, for the same window at least, so that a repeated ack is
# recognised: blocks of so many consecutive ids, and so many blocks.
SETTLED_BLOCK = 1024
SETTLED_BLOCKS = 256
# Pages restored here, and bundles drained here, that are known again; the newest. Of bundles that still hold their
# last page, because nobody has said that it arrived, a namespace has so many at most.
RESTORED_PAGES_KEPT = 65_536
MAX_OPEN_BUNDLES = 16
# No page brings an id or a fence as high as that: none that was drawn one by one is.
MAX_LIFT = 1 << 48

# Items of one enqueue are kept together. Such a batch is thin once no more than one in so many of them is left; of more
# thin batches than so many, the one with the lowest ids is taken apart. Part of the state, so equal on all nodes.
THIN_BATCH_PART = 8
THIN_BATCHES = 16

# The log of events is cut into segments at the same events on all nodes: after the entry that brings an open segment
# to so many bytes, or that comes so long after its first on the lease clock.
SEGMENT_BYTES = 64 * 1024 * 1024
SEGMENT_AGE_MS = 3_600_000

MAX_GATES = 10_000
MAX_EFFECTS = 100_000
MAX_EFFECT_RESULT = 64 * 1024
