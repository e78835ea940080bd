"""``partition.json``: who holds what of the data."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import SampleCounts, rule_settings, validation_rows
from fedadb_app.data.partition import Partition, Skew
from fedadb_app.data.prepared import ImageDataset

PARTITION = "partition.json"


def of_partition(partition: Partition, config: RunConfig, dataset: ImageDataset) -> dict[str, Any]:
    """Describe a partition: one row per client, the rule, the seed and the assignment's hash."""
    labels, classes = dataset.train_labels, dataset.num_classes
    counts = np.stack([np.bincount(labels[p], minlength=classes) for p in partition.indices])
    skew = Skew.of(counts)
    kept = len(validation_rows(config)) if config.validates else 0
    return {
        "rule": config.partition,
        **rule_settings(config),
        "seed": config.seed,
        "hash": partition.hash,
        "draws": partition.draws,
        "moved": partition.moved,
        "dealt": int(counts.sum()),
        "left_out": len(labels) - kept - int(counts.sum()),
        "skew": {
            "mean_jensen_shannon_distance": round(float(skew.distances.mean()), 4),
            "max_jensen_shannon_distance": round(float(skew.distances.max()), 4),
            "missing_class_rate": round(skew.missing_class_rate, 4),
        },
        **({"feature_noise": config.feature_noise} if config.feature_noise else {}),
        **({"validation": kept} if kept else {}),
        "classes": list(dataset.class_names),
        "clients": [
            {
                "size": int(per_class.sum()),
                "class_counts": per_class.tolist(),
                "jensen_shannon_distance": round(float(distance), 4),
            }
            for per_class, distance in zip(counts, skew.distances, strict=True)
        ],
    }


def of_nodes(stated: Mapping[int, SampleCounts], schema: ImageSchema) -> dict[str, Any]:
    """Describe nodes with their own data, with nothing of it but how much it is."""
    clients = [
        {
            "client": client,
            "size": stated[client].train,
            **({"validation": kept} if (kept := stated[client].validation) else {}),
        }
        for client in sorted(stated)
    ]
    return {"rule": "nodes", "classes": list(schema.class_names), "clients": clients}


def parse_partition(text: str) -> dict[str, Any]:
    """Parse ``partition.json``.

    Raises
    ------
    KeyError, ValueError
        If it is no JSON, lacks something, or nobody holds a sample.
    """
    content: dict[str, Any] = json.loads(text)
    _, classes, clients = content["rule"], content["classes"], content["clients"]
    if not sum(client["size"] for client in clients):
        raise ValueError("no client holds a sample")
    if any("class_counts" in client for client in clients) and any(
        len(client["class_counts"]) != len(classes) or sum(client["class_counts"]) < 0
        for client in clients
    ):
        raise ValueError("a client's class_counts are not one per class")
    return content
