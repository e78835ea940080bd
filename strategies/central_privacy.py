"""Central differential privacy: what the server releases of a round is its noised mean."""

from collections.abc import Sequence

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig
from fedadb_app.models.classifier import StateDict
from fedadb_app.privacy import noised_mean
from fedadb_app.randomness import secret_generator


def released(
    config: RunConfig, sent: StateDict, updates: Sequence[ClientUpdate], drawn: int
) -> ClientUpdate:
    """Return the round as one update without metrics, which nothing protects.

    Parameters
    ----------
    config : RunConfig
        For ``clipping-norm`` and ``noise-multiplier``.
    sent : StateDict
        What the participants started from.
    updates : Sequence[ClientUpdate]
        The usable ones.
    drawn : int
        How many clients were asked; those without a usable update count as a movement of zero.
    """
    mean = noised_mean(
        sent,
        [update.arrays for update in updates],
        drawn,
        config.clipping_norm,
        config.noise_multiplier,
        secret_generator(),
    )
    return ClientUpdate(client=-1, arrays=mean, num_examples=1)
