"""Images from where (sources), who holds what (partition), arrays to batches (batches)."""

from fedadb_app.data.clients import (
    ClientData,
    PartitionClaim,
    SampleCounts,
    client_data,
    image_schema,
    partition_of,
    server_dataset,
)

__all__ = [
    "ClientData",
    "PartitionClaim",
    "SampleCounts",
    "client_data",
    "image_schema",
    "partition_of",
    "server_dataset",
]
