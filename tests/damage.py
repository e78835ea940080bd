"""Replies taken apart into Flower's objects, damaged, and put together again.

An object is a head (its kind, the ids of its parts, the length of its body) and a body. SuperLink
checks that an id is the SHA-256 sum of the bytes and that the length is right; everything else can
be anything.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_id,
)
from superlink import Parcel

Rng = np.random.Generator


@dataclass
class Part:
    """One object: its kind, its parts, and its body, given their ids."""

    kind: str
    body: Callable[[list[str]], bytes]
    parts: list["Part"] = field(default_factory=list)
    names: list[str] | None = None  # ids that its head names in place of its parts'

    def pack(self, objects: dict[str, bytes], packed: dict[int, ObjectTree]) -> ObjectTree:
        """Add the bytes of this and its parts to `objects`, and return their tree."""
        if id(self) in packed:
            return packed[id(self)]
        trees = [part.pack(objects, packed) for part in self.parts]
        ids = [tree.object_id for tree in trees]
        body = self.body(ids)
        named = list(dict.fromkeys(ids)) if self.names is None else self.names
        head = f"{self.kind} {','.join(named)} {len(body)}"
        content = head.encode() + b"\0" + body
        tree = ObjectTree(object_id=get_object_id(content), children=trees)
        objects[tree.object_id] = content
        packed[id(self)] = tree
        return tree

    def all(self) -> Iterator["Part"]:
        yield self
        for part in self.parts:
            yield from part.all()


def fixed(body: bytes) -> Callable[[list[str]], bytes]:
    return lambda ids: body


def taken_apart(reply: Message) -> Part:
    """The objects of an honest reply."""
    parts: dict[str, Part] = {}
    for object_id, made in get_all_nested_objects(reply).items():
        content = made.deflate()
        kind, ids, _ = get_object_head_values_from_object_content(content)
        body = content[content.index(b"\0") + 1 :]
        parts[object_id] = Part(kind, _renaming(body, ids), [parts[i] for i in ids])
    return parts[object_id]


def _renaming(body: bytes, before: list[str]) -> Callable[[list[str]], bytes]:
    """A body that names its parts by their ids, whatever these have become."""

    def renamed(ids: list[str]) -> bytes:
        text = body
        for old, new in zip(before, ids, strict=False):
            text = text.replace(old.encode(), new.encode())
        return text

    return renamed


def put_together(reply: Message, message: Part) -> Parcel:
    """What a SuperNode would send, had it these objects."""
    parcel = Parcel.of(reply)
    objects: dict[str, bytes] = {}
    tree = message.pack(objects, {})
    parcel.envelope.metadata.message_id = tree.object_id
    return Parcel(parcel.envelope, tree, objects)


# --- damage ---------------------------------------------------------------------------------


def flip(part: Part, others: list[Part], rng: Rng) -> None:
    body, where = part.body, rng.integers(0, 2**31, 1 + rng.integers(8))

    def flipped(ids: list[str]) -> bytes:
        content = bytearray(body(ids))
        for position in where if content else ():
            content[position % len(content)] ^= 1 << int(position) % 8
        return bytes(content)

    part.body = flipped


def truncate(part: Part, others: list[Part], rng: Rng) -> None:
    body, share = part.body, rng.random()
    part.body = lambda ids: body(ids)[: int(share * len(body(ids)))]


def random_bytes(part: Part, others: list[Part], rng: Rng) -> None:
    part.body = fixed(rng.bytes(int(rng.integers(0, 2000))))


def swap(part: Part, others: list[Part], rng: Rng) -> None:
    other = others[rng.integers(len(others))]
    part.kind, other.kind = other.kind, part.kind
    if rng.random() < 0.5:
        part.body, other.body = other.body, part.body


def other_kind(part: Part, others: list[Part], rng: Rng) -> None:
    kinds = ("Array", "ArrayChunk", "ArrayRecord", "ConfigRecord", "MetricRecord", "RecordDict")
    part.kind = str(rng.choice([*kinds, "Message"]))


def wrong_ids(part: Part, others: list[Part], rng: Rng) -> None:
    """Name objects that are others' parts, or nobody's."""
    sums = [rng.bytes(32).hex() for _ in range(rng.integers(1, 4))]
    objects: dict[str, bytes] = {}
    known = [other.pack(objects, {}).object_id for other in others if other not in part.all()]
    part.names = list(rng.choice([*sums, *known], rng.integers(0, 5)))


def lost_parts(part: Part, others: list[Part], rng: Rng) -> None:
    part.parts = part.parts[: rng.integers(0, len(part.parts) + 1)]


def deep_nesting(part: Part, others: list[Part], rng: Rng) -> None:
    inner = Part(part.kind, part.body, part.parts, part.names)
    for _ in range(int(rng.integers(1, 40))):
        inner = Part("RecordDict", lambda ids: json.dumps({"a": "".join(ids)}).encode(), [inner])
    part.kind, part.body, part.parts, part.names = inner.kind, inner.body, inner.parts, None


def deep_json(part: Part, others: list[Part], rng: Rng) -> None:
    depth = int(rng.integers(10, 200_000))
    part.body = fixed(b"[" * depth + b"]" * int(rng.integers(0, depth)))


def gigantic_shape(part: Part, others: list[Part], rng: Rng) -> None:
    """A NumPy header that promises up to 10^18 numbers, over a few bytes."""
    shape = tuple(int(10**e) for e in rng.integers(3, 9, rng.integers(1, 3)))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\0" * 64
    for chunk in others:
        if chunk.kind == "ArrayChunk":
            chunk.body = fixed(npy)
            break


def repeated_chunks(part: Part, others: list[Part], rng: Rng) -> None:
    """An array that is one chunk, up to 10^5 times."""
    times = int(10 ** rng.integers(1, 6))
    for array in others:
        if array.kind == "Array":
            facts = {"dtype": "float32", "shape": [times], "stype": "numpy.ndarray"}
            facts["arraychunk_ids"] = [0] * times
            array.body = fixed(json.dumps(facts).encode())
            break


def many_records(part: Part, others: list[Part], rng: Rng) -> None:
    """Up to 400 more objects."""
    for _ in range(int(rng.integers(1, 400))):
        part.parts = [*part.parts, Part("MetricRecord", fixed(rng.bytes(4)))]


DAMAGES = {
    damage.__name__: damage
    for damage in (
        flip,
        truncate,
        random_bytes,
        swap,
        other_kind,
        wrong_ids,
        lost_parts,
        deep_nesting,
        deep_json,
        gigantic_shape,
        repeated_chunks,
        many_records,
    )
}


def damaged(reply: Message, names: list[str], rng: Rng) -> Parcel:
    """The reply after these damages, each to an object drawn at random."""
    message = taken_apart(reply)
    for name in names:
        parts = list(message.all())
        DAMAGES[name](parts[rng.integers(len(parts))], parts, rng)
    return put_together(reply, message)
