"""The wire: what a message holds, and what comes back out."""

import tracemalloc
import warnings

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from helpers import identical
from message_cases import MODEL, asked, good_reply, instruction
from safetensors.torch import load

from fedadb_app.client_state import Ancestor
from fedadb_app.local_training import Attachment
from fedadb_app.messages import Instruction, read_train, train_content, train_message
from fedadb_app.refusals import UnusableReplyError
from fedadb_app.wire_arrays import content_bytes, read_model, to_arrays, to_state_dict

# --- arrays ---------------------------------------------------------------------------------


def test_a_model_survives_the_wire_bit_by_bit():
    assert identical(to_state_dict(to_arrays(MODEL)), MODEL)


def test_the_order_of_tensors_survives():
    assert list(to_state_dict(to_arrays(MODEL))) == list(MODEL)


def test_a_model_in_training_can_be_sent():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    back = to_state_dict(to_arrays({"weight": weight, "view": torch.ones(2, 3).t()}))
    assert not back["weight"].requires_grad
    assert back["view"].shape == (3, 2)


def test_unpacked_tensors_can_be_written_to_and_belong_to_nobody_else():
    arrays = to_arrays(MODEL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of tensors over read-only memory
        one, other = to_state_dict(arrays), to_state_dict(arrays)
    for tensor in one.values():
        tensor.add_(1)
    assert identical(other, MODEL)
    assert identical(to_state_dict(arrays), MODEL)


def test_packing_copies():
    model = {"w": torch.zeros(3)}
    arrays = to_arrays(model)
    model["w"].add_(1)
    assert torch.equal(to_state_dict(arrays)["w"], torch.zeros(3))


# --- train messages -------------------------------------------------------------------------


def test_a_train_message_says_everything():
    images = torch.randn(4, 1, 5, 5)
    sent = Attachment({"images": images, "labels": torch.tensor([3, 1, 2, 0])}, {"quality": 0.875})
    model, told = read_train(asked(anchors=sent))
    assert identical(model, MODEL)
    assert (told.server_round, told.num_rounds, told.learning_rate) == (3, 20, 0.0098)
    assert set(told.attachments) == {"anchors"}
    assert identical(told.attachments["anchors"].tensors, dict(sent.tensors))
    assert told.attachments["anchors"].scalars == {"quality": 0.875}


def test_several_attachments_do_not_mix():
    one = Attachment({"t": torch.zeros(2)}, {"a": 1.0})
    other = Attachment({"t": torch.ones(2)}, {})
    _, told = read_train(asked(one=one, other=other))
    assert torch.equal(told.attachments["one"].tensors["t"], torch.zeros(2))
    assert torch.equal(told.attachments["other"].tensors["t"], torch.ones(2))
    assert told.attachments["other"].scalars == {}


def test_a_train_message_is_addressed():
    message = asked(node=12345)
    assert message.metadata.dst_node_id == 12345
    assert message.metadata.message_type == "train"


def test_one_array_record_a_message():
    """Flower's privacy mods refuse messages with more than one."""
    content = asked(anchors=Attachment({"images": torch.ones(2, 2)}, {"quality": 1.0})).content
    assert list(content.array_records) == ["arrays"]
    assert set(content.config_records) == {"config", "anchors"}
    assert len(content.metric_records) == 0
    assert list(good_reply().content.array_records) == ["arrays"]


def test_an_attachment_is_safetensors():
    """Not pickle: unpacking it can not run code."""
    sent = Attachment({"images": torch.rand(2, 2).t()}, {"quality": 0.5})
    record = asked(anchors=sent).content["anchors"]
    assert isinstance(record, ConfigRecord)
    assert set(record) == {"tensors", "quality"}
    assert isinstance(record["tensors"], bytes)
    assert torch.equal(load(record["tensors"])["images"], sent.tensors["images"])


def test_the_config_of_a_train_message():
    """The names other Flower tools, and DESIGN.md, know."""
    record = dict(asked().content["config"])
    assert record == {
        "round": 3,
        "rounds": 20,
        "learning-rate": 0.0098,
        "ancestors": [],
        "last-rounds": [],
    }


def test_the_runs_that_a_run_continues_arrive_in_order():
    ancestors = [Ancestor(2**64 - 1, 10), Ancestor(7, 10), Ancestor(1, 12)]
    content = train_content(to_arrays(MODEL), Instruction(13, 20, 0.1, {}, ancestors))
    _, told = read_train(train_message(content, 11))
    assert told.ancestors == ancestors


# --- sizes ----------------------------------------------------------------------------------


def test_size_of_a_model_is_its_bytes_and_a_small_header_a_tensor():
    model = {"a": torch.zeros(1000, 10), "b": torch.zeros(7, dtype=torch.float64)}
    size = content_bytes(train_content(to_arrays(model), instruction()))
    raw = 1000 * 10 * 4 + 7 * 8
    assert raw < size <= raw + 2 * 128


def test_size_counts_attachments():
    without = train_content(to_arrays(MODEL), instruction())
    sent = Attachment({"images": torch.zeros(10, 1, 28, 28)}, {"quality": 1.0})
    extra = content_bytes(train_content(to_arrays(MODEL), instruction(anchors=sent)))
    raw = 10 * 28 * 28 * 4
    assert raw < extra - content_bytes(without) <= raw + 256


def test_size_of_nothing():
    assert content_bytes(RecordDict()) == 0


# --- arrays that promise more than they hold ------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "descr", "words"),
    [
        ((10**7, 10**6), "<f4", "has shape"),
        ((3,), "<U250000", "items of 1000000 bytes"),
    ],
)
def test_nothing_is_allocated_for_what_a_header_promises(shape, descr, words):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    size = len(header).to_bytes(2, "little")
    data = b"\x93NUMPY\x01\x00" + size + header.encode() + bytes(12)
    arrays = ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", data)})
    tracemalloc.start()
    with pytest.raises(UnusableReplyError, match=words):
        read_model(arrays, {"w": torch.zeros(3)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
