"""What the rehearsal app's processes do beside their work; copied into that app (`apps.py`).

Each client notes (round, client) in <output-dir>/trained.txt and its node's id in
<output-dir>/node-<client>; <output-dir>/script.json says what goes wrong: {"<client>@<round>":
deed}, and {"server": "linger"} for a ServerApp whose process does not end with its run.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)

from fedadb_app.runs.writer import RunFolder
from fedadb_app.wire_arrays import to_arrays, to_state_dict

LONGEST = 300.0  # seconds that a client or a server hangs, if nothing ends it before


def rehearse(
    train: Callable[[Message, Context], Message], message: Message, context: Context
) -> Message:
    """Train, and do what the script says."""
    folder = Path(str(context.run_config["output-dir"]))
    client = context.node_config["partition-id"]
    key = f"{client}@{message.content['config']['round']}"
    (folder / f"node-{client}").write_text(str(context.node_id))
    with (folder / "trained.txt").open("a") as file:
        file.write(key + "\n")
    deed = json.loads((folder / "script.json").read_text()).get(key, "")
    if deed in BEFORE:
        BEFORE[deed](folder)
    reply = train(message, context)
    if deed in DAMAGES:
        DAMAGES[deed](reply, message, folder)
    return reply


# --- before the training --------------------------------------------------------------------


def stumble(folder: Path) -> None:
    raise RuntimeError("the script says so")


def die(folder: Path) -> None:
    os._exit(1)


def hang(folder: Path) -> None:
    """Wait until the test writes the file "go"."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end and not (folder / "go").exists():
        time.sleep(0.1)


def fail_superlink(folder: Path) -> None:
    """Have a `faulty` SuperLink answer 500 when it is next asked for replies."""
    (Path(os.environ["FLWR_HOME"]) / "locked").touch()


def withhold(folder: Path) -> None:
    """Have a `faulty` SuperNode announce its next reply and upload nothing of it."""
    (Path(os.environ["FLWR_HOME"]) / "withheld").touch()


BEFORE = {
    "raise": stumble,
    "die": die,
    "hang": hang,
    "locked database": fail_superlink,
    "endless upload": withhold,
}


# --- the reply ------------------------------------------------------------------------------


def model_as(
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], only_first: bool = False
):
    """Change tensors, given the trained and the received one."""

    def damage(reply: Message, message: Message, folder: Path) -> None:
        model = to_state_dict(reply.content["arrays"])
        received = to_state_dict(message.content["arrays"])
        for name in list(model)[: 1 if only_first else None]:
            model[name] = change(model[name], received[name])
        reply.content["arrays"] = to_arrays(model)

    return damage


def metrics_as(change: Callable[[MetricRecord], None]):
    return lambda reply, message, folder: change(reply.content["metrics"])


def packed_as(kind: type, body: Callable[[bytes], bytes], names: list[str] | None = None):
    """Pack objects of a kind with another body, which names other objects as its parts."""

    def damage(reply: Message, message: Message, folder: Path) -> None:
        deflate = kind.deflate

        def damaged(self) -> bytes:
            head, _, honest = deflate(self).partition(b"\0")
            name, parts, _ = head.decode().split(" ")
            parts = parts if names is None else ",".join(names)
            return f"{name} {parts} {len(body(honest))}".encode() + b"\0" + body(honest)

        kind.deflate = damaged  # in this process, which ends with its message

    return damage


def more_metrics(metrics: MetricRecord) -> None:
    for i in range(1000):
        metrics[f"more-{i}"] = 0.0


def endless_loss(metrics: MetricRecord) -> None:
    metrics["train-loss"] = 1e308


def other_count(metrics: MetricRecord) -> None:
    metrics["num-examples"] += 1


def other_records(reply: Message, message: Message, folder: Path) -> None:
    reply.content["more"] = ConfigRecord({"a": 1})


def too_large(reply: Message, message: Message, folder: Path) -> None:
    """Send 8 MB more than LeNet's 0.25."""
    reply.content["arrays"]["more"] = Array(np.zeros(2_000_000, np.float32))


def in_another_name(reply: Message, message: Message, folder: Path) -> None:
    """Say in the reply itself that client 0 sends it."""
    other, deflate = int((folder / "node-0").read_text()), Message.deflate

    def lie(self) -> bytes:
        own = self.metadata.src_node_id
        self.metadata.__dict__["_src_node_id"] = other
        try:
            return deflate(self)
        finally:
            self.metadata.__dict__["_src_node_id"] = own

    Message.deflate = lie


DAMAGES = {
    "nan": model_as(lambda trained, _: torch.full_like(trained, torch.nan), only_first=True),
    "shape": model_as(lambda trained, _: trained[:1], only_first=True),
    "norm": model_as(lambda trained, _: trained * 10**6),
    "reversed": model_as(lambda trained, received: received - 10 * (trained - received)),
    "count": metrics_as(other_count),
    "loss": metrics_as(endless_loss),
    "metrics": metrics_as(more_metrics),
    "records": other_records,
    "too large": too_large,
    "another name": in_another_name,
    "no protobuf": packed_as(MetricRecord, lambda body: b"\xff\xff\xff"),
    "no array": packed_as(Array, lambda body: b"no JSON"),
    "other objects": packed_as(ArrayRecord, lambda body: body, ["0" * 64]),
    "cut": packed_as(RecordDict, lambda body: body[: len(body) // 2]),
    "nested": packed_as(RecordDict, lambda body: b"[" * 50_000),
}


# --- the server -----------------------------------------------------------------------------


class LingeringFolder(RunFolder):
    """A run's folder after whose end the process goes on, where the script says so."""

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        script = json.loads((self.path.parent / "script.json").read_text())
        if script.get("server") == "linger":
            time.sleep(LONGEST)
