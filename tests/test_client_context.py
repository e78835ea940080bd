"""A node's side of Flower: which data it holds, what it refuses, and where it remembers."""

from pathlib import Path

import pytest
import torch
from faults import fails
from flwr.app import Context, Message, RecordDict
from helpers import identical, messages_of

from fedadb_app.client_context import ContextState, configured_data, or_refuse
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.messages import identity_query, read_identity
from fedadb_app.refusals import RefusalError, UnusableReplyError


def context(**node_config) -> Context:
    node_config = {key.replace("_", "-"): value for key, value in node_config.items()}
    return Context(run_id=7, node_id=1, node_config=node_config, state=RecordDict(), run_config={})


PARTS = RunConfig()
OWN = RunConfig(dataset="nodes", classes="a,b", image_shape="1x28x28", evaluate="clients")


def test_what_a_node_is_configured_to_hold():
    both = context(partition_id=1, num_partitions=3, data_path="/data/a b")
    assert configured_data(both, PARTS) == PartitionClaim(1, 3)
    assert configured_data(both, OWN) == Path("/data/a b")
    assert configured_data(context(data_path="~/a"), OWN) == Path.home() / "a"


@pytest.mark.parametrize(
    "config", [{}, {"partition_id": 1}, {"num_partitions": 3}, {"data_path": "/a"}]
)
def test_a_node_without_a_part_is_told_what_to_type(config):
    with pytest.raises(DataError, match=r"--node-config 'partition-id=0 num-partitions=3'"):
        configured_data(context(**config), PARTS)


@pytest.mark.parametrize(
    "config", [{}, {"data_path": "hospital"}, {"data_path": ""}, {"data_path": 7}]
)
def test_a_node_without_its_own_data_is_told_what_to_type(config):
    with pytest.raises(DataError, match=r"""--node-config 'data-path="/data/hospital"'"""):
        configured_data(context(**config, partition_id=0, num_partitions=2), OWN)


@pytest.mark.parametrize("partition", ["0", True, 0.5])
def test_a_part_is_two_whole_numbers(partition):
    with pytest.raises(DataError, match=r"^--node-config: partition-id=.* whole numbers"):
        configured_data(context(partition_id=partition, num_partitions=2), PARTS)


# --- refusals -------------------------------------------------------------------------------


def refusing(error: Exception):
    @or_refuse
    def answer(message: Message, _: Context) -> Message:
        raise error

    return answer


def test_an_error_that_someone_must_mend_is_a_sentence_on_both_sides(caplog):
    reply = refusing(ConfigError("learning-rate=-1 is not allowed"))(identity_query(11), context())
    with pytest.raises(RefusalError, match=r"^learning-rate=-1 is not allowed$"):
        read_identity(reply, SampleCounts)
    (said,) = messages_of(caplog.records, "ERROR")
    assert "learning-rate=-1 is not allowed" in said


def test_what_is_wrong_with_a_nodes_own_data_is_said_there_only(caplog):
    """The name of a file may name a patient, and its folder is a label."""
    answer = refusing(DataError("/patients/melanoma/Smith.png cannot be read"))
    reply = answer(identity_query(11), context(data_path="/patients"))
    with pytest.raises(RefusalError, match=r"^its data cannot be used; its own log says why$"):
        read_identity(reply, SampleCounts)
    (said,) = messages_of(caplog.records, "ERROR")
    assert "/patients/melanoma/Smith.png cannot be read" in said


def test_other_errors_are_no_refusal():
    query = identity_query(11)
    with pytest.raises(UnusableReplyError) as caught:
        read_identity(fails()(query, query)[0], SampleCounts)
    assert not isinstance(caught.value, RefusalError)
    with pytest.raises(ValueError, match="a defect"):
        refusing(ValueError("a defect"))(query, context())


# --- memory ---------------------------------------------------------------------------------


def test_what_a_client_keeps_comes_back_to_it_alone():
    """Some methods remember tensors between rounds; they stay in the node's own context."""
    one, other = (context(partition_id=i, num_partitions=2) for i in range(2))
    assert ContextState(one).read(1) == (0, {})
    kept = {"dual": torch.randn(3, 2), "steps": torch.tensor(4)}
    ContextState(one).write(2, kept)
    number, found = ContextState(one).read(5)
    assert number == 2
    assert identical(found, kept)
    assert ContextState(other).read(5) == (0, {})
