"""The registry: every method of the app by name. A method is one file here and one line below."""

from collections.abc import Mapping

from fedadb_app.config import RunConfig, Scalar, Settings, parse_run_config
from fedadb_app.errors import ConfigError
from strategies import (
    centralised,
    fedacg,
    fedadb,
    fedasam,
    fedavg,
    fedbn,
    feddecorr,
    feddyn,
    fedexp,
    fedgela,
    fedgloss,
    fedgmt,
    fedlc,
    fedlmd,
    fedntd,
    fedprox,
    fedsol,
    fedvls,
    local,
    moon,
    scaffold,
)
from strategies.method import Method

METHODS: Mapping[str, Method] = {
    "fedavg": fedavg.METHOD,
    "feddyn": feddyn.METHOD,
    "fedasam": fedasam.METHOD,
    "fedntd": fedntd.METHOD,
    "fedgela": fedgela.METHOD,
    "fedexp": fedexp.METHOD,
    "fedlmd": fedlmd.METHOD,
    "feddecorr": feddecorr.METHOD,
    "fedacg": fedacg.METHOD,
    "fedsol": fedsol.METHOD,
    "fedprox": fedprox.METHOD,
    "scaffold": scaffold.METHOD,
    "moon": moon.METHOD,
    "fedlc": fedlc.METHOD,
    "fedvls": fedvls.METHOD,
    "fedgmt": fedgmt.METHOD,
    "fedgloss": fedgloss.METHOD,
    "fedbn": fedbn.METHOD,
    "fedadb": fedadb.METHOD,
}

REFERENCES: Mapping[str, Method] = {"centralised": centralised.METHOD, "local": local.METHOD}
"""What gives a method's numbers a meaning: without a federation, with and without sharing."""

STRATEGIES: Mapping[str, Method] = {**METHODS, **REFERENCES}
"""All values of the key ``strategy``."""

OWN = "fedadb"
"""The method of this app's paper, which comparisons measure the others by."""


def method_title(name: str) -> str:
    """Return how papers write a method; for a name that is not registered, the name."""
    return STRATEGIES[name].title if name in STRATEGIES else name


def read_run_config(values: Mapping[str, Scalar]) -> tuple[RunConfig, Method, Settings]:
    """Check a run configuration; return the shared values, the method, and the method's own.

    Raises
    ------
    ConfigError
        For an unknown key, a wrong type, a value out of range, or values that exclude each other.
    """
    config, own = parse_run_config(values, {name: m.params for name, m in STRATEGIES.items()})
    method = STRATEGIES[config.strategy]
    if method.server.needs_each_update:
        for key, value, mean in (
            ("privacy", config.privacy, "their noised mean is released"),
            ("robust", config.robust, "one robust mean of them is made"),
        ):
            if value not in {"none", "local"}:
                raise ConfigError(
                    f'{key}="{value}" is not possible with strategy="{config.strategy}": its '
                    f"server needs each client's own update, and only {mean}"
                )
    if method.only_sgd and config.optimizer != "sgd":
        raise ConfigError(
            f'optimizer="{config.optimizer}" is not possible with strategy="{config.strategy}", '
            f'which is defined for SGD: {method.only_sgd}; use optimizer="sgd"'
        )
    method.refuse(config, own[config.strategy])
    return config, method, own[config.strategy]
