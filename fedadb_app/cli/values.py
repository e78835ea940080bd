"""What the texts of --run-config and of the federation's options say."""

import re
from collections.abc import Mapping

from fedadb_app.assignments import parse_assignments
from fedadb_app.cli.options import names
from fedadb_app.comparison.tuned import TUNED_FOR
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import Simulation
from strategies.registry import METHODS

_FOR_ONE = re.compile(r"\s*([\w-]+):\s+(.+)", re.DOTALL)


def parse_all(texts: list[str] | None) -> dict[str, Scalar]:
    """Join what several --run-config say; a later one wins."""
    values: dict[str, Scalar] = {}
    for text in texts or []:
        values |= parse_assignments(text)
    return values


def parse_by_method(
    texts: list[str] | None,
) -> tuple[dict[str, Scalar], dict[str, dict[str, Scalar]]]:
    """Join what several --run-config say to all methods, and what to one: ``fedsol: key=value``.

    A file says so in a table, ``[methods.fedsol]``. What a file of `fedadb tune` was made for is
    left out: here its values are taken whatever the data are.

    Raises
    ------
    ConfigError
        If an assignment is none.
    """
    shared: dict[str, Scalar] = {}
    own: dict[str, dict[str, Scalar]] = {}
    for text in texts or []:
        method = _FOR_ONE.fullmatch(text)
        if method:
            own.setdefault(method[1], {}).update(parse_assignments(method[2]))
            continue
        for key, value in parse_assignments(text).items():
            if key.startswith("methods."):
                name, _, key = key.removeprefix("methods.").partition(".")
                own.setdefault(name, {})[key] = value
            elif not key.startswith(f"{TUNED_FOR}."):
                shared[key] = value
    return shared, own


def methods_of(text: str) -> list[str]:
    """Return each method that ``--strategies`` names once; ``all`` names all methods.

    Raises
    ------
    ConfigError
        If there is none.
    """
    named = names("--strategies", text)
    return list(dict.fromkeys(m for n in named for m in (METHODS if n == "all" else [n])))


def simulation_of(
    num_supernodes: int | None,
    client_cpus: int,
    client_gpus: float,
    values: Mapping[str, Scalar],
    workers: int = 0,
) -> Simulation:
    """Return the federation to simulate, with the nodes that a run configuration waits for.

    Raises
    ------
    ConfigError
        If fewer clients are asked for.
    """
    needed = values["min-nodes"]
    if not isinstance(needed, int):  # which is said where the whole configuration is checked
        needed = 1
    if num_supernodes is not None and num_supernodes < needed:
        raise ConfigError(
            f"--num-supernodes {num_supernodes}: the run would wait for more, min-nodes={needed}"
        )
    return Simulation(num_supernodes or max(2, needed), client_cpus, client_gpus, workers)
