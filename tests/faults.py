"""What can go wrong with a reply: faults for the fake grid to put into the real ones."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

SUPERLINK = 1
"""The node id under which a SuperLink itself replies, e.g. for a node that is gone."""

Fault = Callable[[Message, Message], list[Message]]
"""(instruction, the ClientApp's reply) -> what the server receives instead."""


def silent(asked: Message, reply: Message) -> list[Message]:
    return []


def fails(reason: str | None = "<class 'RuntimeError'>:<'CUDA out of memory'>") -> Fault:
    return lambda asked, reply: [Message(Error(code=2, reason=reason), reply_to=asked)]


def superlink_error(asked: Message, reply: Message) -> list[Message]:
    """What a SuperLink answers, in its own name, for a node whose heartbeat has stopped."""
    error = Message(Error(code=5, reason="Node Unavailable"), reply_to=asked)
    error.metadata.__dict__["_src_node_id"] = SUPERLINK
    return [error]


def twice(asked: Message, reply: Message) -> list[Message]:
    return [reply, reply]


def with_stranger(asked: Message, reply: Message) -> list[Message]:
    """The reply, and one that a node that was never asked sends."""
    other = Message(RecordDict(), dst_node_id=4242, message_type="train")
    other.metadata.__dict__["_message_id"] = "some other message"
    return [Message(reply.content, reply_to=other), reply]


def edited(
    arrays: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
    metrics: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    content: Callable[[RecordDict], RecordDict] | None = None,
) -> Fault:
    """The reply with other arrays, other metrics, or another content."""

    def fault(asked: Message, reply: Message) -> list[Message]:
        changed = RecordDict(dict(reply.content))
        if arrays is not None:
            before = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            changed["arrays"] = ArrayRecord(
                {name: Array(np.array(a, order="C")) for name, a in arrays(before).items()}
            )
        if metrics is not None:
            changed["metrics"] = MetricRecord(metrics(dict(reply.content["metrics"])))
        if content is not None:
            changed = content(changed)
        return [Message(changed, reply_to=asked)]

    return fault


def first(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict], dict]:
    """Change the first array only."""

    def edit(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        name = next(iter(arrays))
        return {**arrays, name: change(arrays[name])}

    return edit


def without_first(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(list(arrays.items())[1:])


def garbage(content: RecordDict) -> RecordDict:
    """Arrays whose bytes are no arrays."""
    broken = {
        name: Array(array.dtype, array.shape, array.stype, b"PK\x03\x04 not an array")
        for name, array in content["arrays"].items()
    }
    return RecordDict({**content, "arrays": ArrayRecord(broken)})


def without(key: str) -> Callable[[RecordDict], RecordDict]:
    return lambda content: RecordDict({k: v for k, v in content.items() if k != key})


UNUSABLE: Mapping[str, tuple[Fault, str]] = {
    "silent": (silent, "no reply within round-timeout"),
    "error": (fails(), "CUDA out of memory"),
    "error without a reason": (fails(None), "error code 2"),
    "node is gone": (superlink_error, "Node Unavailable"),
    "no arrays": (edited(content=without("arrays")), "no model"),
    "no metrics": (edited(content=without("metrics")), "no metrics"),
    "arrays are a config": (
        edited(content=lambda c: RecordDict({**without("arrays")(c), "arrays": ConfigRecord()})),
        "no model",
    ),
    "garbage": (edited(content=garbage), "cannot be read"),
    "NaN": (edited(first(lambda a: np.full_like(a, np.nan))), "not finite"),
    "infinity": (edited(first(lambda a: np.full_like(a, -np.inf))), "not finite"),
    "wrong shape": (edited(first(lambda a: a[:-1])), "shape"),
    "transposed": (edited(first(lambda a: a.reshape(a.shape[::-1]))), "shape"),
    "wrong type": (edited(first(lambda a: a.astype(np.float64))), "float64"),
    "complex": (edited(lambda a: {n: v.astype(complex) for n, v in a.items()}), "complex"),
    "text": (edited(first(lambda a: a.astype(str))), "cannot be read"),
    "missing tensor": (edited(without_first), "features.0.weight"),
    "extra tensor": (edited(lambda a: {**a, "backdoor": np.zeros(1, np.float32)}), "backdoor"),
    "no samples": (edited(metrics=lambda m: {**m, "num-examples": 0}), "num-examples=0"),
    "negative": (edited(metrics=lambda m: {**m, "num-examples": -5}), "num-examples=-5"),
    "half a sample": (edited(metrics=lambda m: {**m, "num-examples": 1.5}), "num-examples=1.5"),
    "a float": (edited(metrics=lambda m: {**m, "num-examples": 479.0}), "num-examples=479.0"),
    "a list": (edited(metrics=lambda m: {**m, "num-examples": [9]}), "num-examples"),
    "too many": (edited(metrics=lambda m: {**m, "num-examples": 10**12}), "num-examples=10000"),
    "no count": (edited(metrics=lambda m: {"train-loss": 1.0}), "num-examples"),
    "NaN loss": (edited(metrics=lambda m: {**m, "train-loss": float("nan")}), "not finite"),
    "a metric like a path": (edited(metrics=lambda m: {**m, "../x": 1.0}), "no name of a metric"),
    "absurd loss": (edited(metrics=lambda m: {**m, "train-loss": 1e308}), r"1e\+308 is beyond"),
    "a list as a metric": (edited(metrics=lambda m: {**m, "x": [1.0]}), "x is a list"),
    "many metrics": (
        edited(metrics=lambda m: {**m, **{f"x{i}": 1.0 for i in range(64)}}),
        "66 metrics, 64 at most",
    ),
    "other records": (
        edited(content=lambda c: RecordDict({**c, "more": ConfigRecord({"x": b"0" * 99})})),
        "other records: .*more",
    ),
    "infinite metric": (edited(metrics=lambda m: {**m, "x": float("inf")}), "not finite"),
}
"""Name -> a fault after which a reply can not be used, and a word of the reason to be logged."""
