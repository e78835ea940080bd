"""The keys of a run configuration about nodes: what is expected of them, and their privacy."""

from typing import Literal

from pydantic import Field

from fedadb_app.settings import Settings

RobustRule = Literal["none", "clip-median", "trimmed-mean", "median"]


class FederationKeys(Settings):
    """What is expected of nodes, and of their updates."""

    min_nodes: int = Field(
        1, ge=1, description="SuperNodes to wait for before round 1 (and during a run)"
    )
    node_timeout: float = Field(120.0, gt=0, description="seconds to wait for nodes")
    round_timeout: float = Field(3600.0, gt=0, description="seconds to wait for a round's replies")
    min_success_fraction: float = Field(
        0.5, ge=0, le=1, description="least share of a round's clients whose update must be usable"
    )
    max_examples: int = Field(
        1_000_000, ge=1, description="a node that states more samples of its own is left out"
    )
    max_relative_update: float = Field(
        100.0,
        ge=0,
        description="an update so many times as large as the model it started from is not used; "
        '`0` = any size is (see "Claims and sizes")',
    )
    max_reply_bytes: int = Field(
        0,
        ge=0,
        description="a reply of a SuperNode that is larger is refused before it is unpacked; "
        "`0` = four times the model",
    )
    robust: RobustRule = Field(
        "none",
        description="the mean of a round's updates that one hostile or broken client cannot move "
        "at will: each clipped to the median norm, or per coordinate a trimmed mean or the median; "
        "honest clients with skewed labels pay for it ([robust.md](robust.md))",
    )
    trim_share: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description='with `robust="trimmed-mean"`: share of the clients left out at each end of '
        "each coordinate, rounded up; `0` = the mean, clients counting equally",
    )


class PrivacyKeys(Settings):
    """Differential privacy (docs/privacy.md)."""

    privacy: Literal["none", "central", "local"] = Field(
        "none",
        description="differential privacy: `central` (the server clips and noises the mean) or "
        "`local` (each node its own update); [privacy.md](privacy.md)",
    )
    clipping_norm: float = Field(1.0, gt=0, description='C; of no effect with `privacy="none"`')
    noise_multiplier: float = Field(
        1.0, ge=1e-3, description='z; of no effect with `privacy="none"`'
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta of `rounds.csv`'s epsilon")
