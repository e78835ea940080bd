"""Tensors as Flower's array records: how a model is packed, unpacked, measured and checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedadb_app.aggregation import all_finite
from fedadb_app.models.classifier import StateDict
from fedadb_app.refusals import UnusableReplyError

_MOST_HEADER = 4096  # bytes that NumPy writes before an array's data, at most
_MOST_ITEM = 16  # bytes of a number, at most


def to_arrays(model: StateDict) -> ArrayRecord:
    """Pack tensors for the wire, on the CPU."""
    return ArrayRecord({name: tensor.detach().cpu() for name, tensor in model.items()})


def to_state_dict(arrays: ArrayRecord) -> StateDict:
    """Unpack tensors from the wire."""
    return {name: _to_tensor(array) for name, array in arrays.items()}


def _to_tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.numpy())


def _announced(array: Array) -> tuple[tuple[int, ...], int]:
    """Return the shape and bytes per item that NumPy would allocate, whatever bytes follow."""
    stream = BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("it is no plain array")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    return shape, dtype.itemsize


@contextmanager
def _parsing() -> Iterator[None]:
    """Refuse a client's model, whatever its bytes do to the parser: the run goes on."""
    try:
        yield
    except Exception as error:
        raise UnusableReplyError(f"its model cannot be read: {error}") from error


def read_model(arrays: ArrayRecord, expected: StateDict) -> StateDict:
    """Unpack a client's model, once it is known to be no larger than the global one.

    Parameters
    ----------
    arrays : ArrayRecord
        What arrived.
    expected : StateDict
        The global model: names, shapes and types of the tensors.

    Raises
    ------
    UnusableReplyError
        If it cannot be read, has other tensors than the global model, or holds a value that is
        not finite or a variance below zero.
    """
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())
        raise UnusableReplyError(f"its model's tensors are not the global model's: {odd[:3]}")
    model = {}
    for name, array in arrays.items():
        wanted = expected[name]
        most = wanted.numel() * _MOST_ITEM + _MOST_HEADER
        if len(array.data) > most:  # of whatever type: that is said once the array is read
            raise UnusableReplyError(
                f"tensor {name} has {len(array.data)} bytes; of its shape it has at most {most}"
            )
        with _parsing():
            shape, item = _announced(array)
        if shape != wanted.shape:
            raise UnusableReplyError(
                f"tensor {name} has shape {shape}, expected {tuple(wanted.shape)}"
            )
        if item > _MOST_ITEM:
            raise UnusableReplyError(f"its model cannot be read: {name} has items of {item} bytes")
        with _parsing():
            tensor = _to_tensor(array)
        if tensor.dtype != wanted.dtype:
            raise UnusableReplyError(
                f"tensor {name} has type {tensor.dtype}, expected {wanted.dtype}"
            )
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise UnusableReplyError(f"tensor {name} is a variance but holds negative values")
        model[name] = tensor
    if not all_finite(model):
        raise UnusableReplyError("its model holds values that are not finite")
    return model


def content_bytes(content: RecordDict) -> int:
    """Return the size of a message's payload: array data and byte strings."""
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    blobs = sum(
        len(value)
        for record in content.config_records.values()
        for value in record.values()
        if isinstance(value, bytes)
    )
    return arrays + blobs
