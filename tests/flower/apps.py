"""Two apps to run: this checkout, and one whose clients follow a script."""

import shutil
from pathlib import Path

from helpers import REPOSITORY

# What the rehearsal app's clients do beside training: every one notes (round, client) in
# <output-dir>/trained.txt, and those named in <output-dir>/script.json misbehave.
REHEARSAL = '''

import json
import os
import time
from pathlib import Path

import torch
from flwr.app import Array, MetricRecord

from fedadb_app.wire_arrays import to_arrays, to_state_dict


@app.train()
def rehearse(message: Message, context: Context) -> Message:
    """Train as the script of this run says: {"<client>@<round>": <deed>}."""
    folder = Path(context.run_config["output-dir"])
    client = context.node_config["partition-id"]
    key = f"{client}@{message.content['config']['round']}"
    with (folder / "trained.txt").open("a") as file:
        file.write(key + "\\n")
    deed = json.loads((folder / "script.json").read_text()).get(key)
    if deed == "raise":
        raise RuntimeError("the script says so")
    if deed == "die":
        os._exit(1)
    if deed == "hang":
        time.sleep(300)
    reply = train(message, context)
    if deed == "no protobuf":
        MetricRecord.deflate = lambda self: b"MetricRecord  3\\0\\xff\\xff\\xff"
    elif deed == "no array":
        Array.deflate = lambda self: f"Array {','.join(self.children)} 7\\0no JSON".encode()
    elif deed is not None:
        model = to_state_dict(reply.content["arrays"])
        name = next(iter(model))
        wrong = {"shape": model[name][:1], "nan": torch.full_like(model[name], torch.nan)}
        model[name] = wrong[deed]
        reply.content["arrays"] = to_arrays(model)
    return reply
'''


def copy_app(target: Path) -> Path:
    """Copy what a FAB carries out of the checkout."""
    target.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "client_app.py", "server_app.py"):
        shutil.copy(REPOSITORY / name, target)
    for name in ("fedadb_app", "strategies"):
        shutil.copytree(
            REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return target
