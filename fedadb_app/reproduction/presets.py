"""The files in ``presets/``: one for each configuration behind a table or a sweep of the paper.

They follow from `fedadb_app.reproduction.studies`; ``python -m fedadb_app.reproduction.presets``
in a checkout writes them anew.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedadb_app.config import Scalar
from fedadb_app.reproduction.studies import DATASETS, study_of
from fedadb_app.reproduction.study import Entry

ITEMS = ("table1", "table3", "table4", "table6", "figure2", "figure3")
"""The other tables and figures look at the same runs."""

FOLDER = Path("presets")


def presets() -> Iterator[tuple[str, Entry]]:
    """Yield the name and the entry of every preset."""
    for item in ITEMS:
        for entry in study_of(item, "full").entries:
            skew = "" if entry.alpha == 0.1 else f"-alpha-{entry.alpha:g}"
            yield f"{item}-{entry.setting.name}{skew}-{entry.strategy}", entry


def values_of(entry: Entry) -> dict[str, Scalar]:
    """Return what a preset sets, as flat keys: all but the seed."""
    values = {"strategy": entry.strategy, "alpha": entry.alpha, **entry.setting.values}
    if values.get("partition") == "domain":  # which has no alpha
        del values["alpha"]
    return values


def text_of(name: str, entry: Entry) -> str:
    """Return a preset's TOML: what it is, how to run it, what the paper reports, the values."""
    setting = entry.setting
    study = study_of(name.partition("-")[0], "full")
    what = f"{study.heading}: {entry.row}, {DATASETS[setting.dataset]}"
    federation = f"num-supernodes={setting.clients} client-resources-num-cpus=1"
    lines = [
        f"# {what}, {setting.scenario}.",
        f"# flwr run . --stream --run-config presets/{name}.toml \\",
        f"#   --federation-config '{federation}'",
    ]
    if entry.reported is not None:
        spread = entry.reported.deviation
        shown = f"{entry.reported.value:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
        lines.append(f"# The paper reports {shown} (best five rounds, test accuracy in %).")
    return "\n".join([*lines, "", tomli_w.dumps(_nested(values_of(entry)))])


def _nested(values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Turn dotted keys into tables."""
    plain: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        table, dot, own = key.partition(".")
        if dot:
            plain.setdefault(table, {})[own] = value
    return plain


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.toml"):
        old.unlink()
    for preset, of in presets():
        (FOLDER / f"{preset}.toml").write_text(text_of(preset, of), encoding="utf-8")
