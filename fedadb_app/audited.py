"""The ClientApp's mod that writes a node's audit log: each message, and what was sent for it."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedadb_app import audit
from fedadb_app.app_hash import running_app_hash
from fedadb_app.client_context import or_refuse
from fedadb_app.errors import ConfigError
from fedadb_app.flower_internals import ClientAppCallable

AUDIT_DIR = "audit-dir"
"""The key of ``--node-config``."""
_BEGUN = "audited"


@or_refuse
def audited(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message, and log it and the answer if the node has an ``audit-dir``.

    What cannot be logged is neither done nor sent.
    """
    if AUDIT_DIR not in context.node_config:
        return call_next(message, context)
    folder = Path(str(context.node_config[AUDIT_DIR])).expanduser()
    if not folder.is_absolute():
        raise ConfigError(f"--node-config: {AUDIT_DIR} is not an absolute path")

    def log(event: str, **content: Any) -> None:  # noqa: ANN401
        audit.append(
            folder,
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "run": str(context.run_id),
                "node": str(context.node_id),
                "event": event,
                **content,
            },
        )

    if _BEGUN not in context.state:
        log("run", app=running_app_hash(), config=dict(context.run_config))
        context.state[_BEGUN] = ConfigRecord()
    kind = message.metadata.message_type.partition(".")[0]
    log("received", message=kind, **described(message.content))
    try:
        reply = call_next(message, context)
    except Exception as error:
        log("failed", message=kind, error=type(error).__name__)
        raise
    if reply.has_error():
        log("refused", message=kind, reason=reply.error.reason)
    else:
        log("sent", message=kind, **described(reply.content))
    return reply


def described(content: RecordDict) -> dict[str, Any]:
    """Say what a message holds: tensors by name, shape, bytes and L2 norm, and names of metrics.

    Of what is configured, numbers and short texts are given, and of bytes their number.
    """
    tensors: dict[str, dict[str, Any]] = {}
    for record in content.array_records.values():
        for name, array in record.items():
            values = np.asarray(array.numpy(), dtype=np.float64)
            tensors[name] = {
                "shape": list(array.shape),
                "bytes": len(array.data),
                "norm": float(np.linalg.norm(values)),
            }
    said = {
        "tensors": tensors,
        "bytes": sum(t["bytes"] for t in tensors.values()),
        "norm": math.sqrt(sum(t["norm"] ** 2 for t in tensors.values())),
        "metrics": sorted(name for r in content.metric_records.values() for name in r),
        "config": {
            name: {k: f"{len(v)} bytes" if isinstance(v, bytes) else v for k, v in record.items()}
            for name, record in content.config_records.items()
        },
    }
    return {key: value for key, value in said.items() if value}
