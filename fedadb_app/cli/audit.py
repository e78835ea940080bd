"""`fedadb audit` and `fedadb app-hash`: what a hospital keeps, and what it approves."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedadb_app import audit as audit_log
from fedadb_app.app_hash import app_hash
from fedadb_app.cli.console import fail, one_sentence, out
from fedadb_app.cli.options import AppOption


def audit(
    path: Annotated[Path, typer.Argument(help="The node's audit-dir, or a file of one.")],
    run: Annotated[str, typer.Option(help="Show this run's entries only.")] = "",
) -> None:
    """Show what runs asked of this node and what it sent; exit with 1 if the log was changed."""
    table = Table("line", "time (UTC)", "run", "event", "message", "round", "bytes", "norm", "more")
    faults, lines, last = [], 0, ""
    with one_sentence():
        for line in audit_log.read(path.expanduser()):
            lines, last = line.number, line.sha256
            if line.fault:
                faults.append(f"line {line.number}: {line.fault}")
            entry = line.entry or {}
            if not run or entry.get("run") == run or line.fault:
                fault = f"[red]{escape(line.fault)}[/]"
                more = escape(_more(entry))
                table.add_row(str(line.number), *_cells(entry), fault if line.fault else more)
        out.print(table)
        out.print(f"{lines} lines; the last one's hash, to be noted elsewhere: {last}")
        for sentence in faults:
            out.print(f"[red]{escape(sentence)}[/]", soft_wrap=True)
        if faults:
            fail(f"{len(faults)} of {lines} lines do not fit: the log is damaged or was changed")


def print_app_hash(app: AppOption = Path()) -> None:
    """Print the hash of a checkout's code, for a study file's trusted-apps."""
    with one_sentence():
        out.print(app_hash(app.expanduser().resolve()), soft_wrap=True)


def _cells(entry: dict[str, Any]) -> list[str]:
    told = entry.get("config", {}).get("config", {})
    norm = entry.get("norm")
    return [
        escape(cell)
        for cell in (
            str(entry.get("time", ""))[:19].replace("T", " "),
            str(entry.get("run", "")),
            str(entry.get("event", "")),
            str(entry.get("message", "")),
            str(told.get("round", "")) if isinstance(told, dict) else "",
            f"{entry['bytes']:,}" if "bytes" in entry else "",
            "" if norm is None else f"{norm:.4g}",
        )
    ]


def _more(entry: dict[str, Any]) -> str:
    if entry.get("event") == "run":
        values = " ".join(f"{key}={value}" for key, value in entry["config"].items())
        return f"app {entry['app']}; {values}"
    parts = []
    if tensors := entry.get("tensors"):
        parts.append(f"{len(tensors)} tensors")
    if metrics := entry.get("metrics"):
        parts.append(", ".join(metrics))
    return "; ".join([*parts, *(str(entry[k]) for k in ("reason", "error") if k in entry)])
