"""The failure policy: what no honest client would send, and how many updates a round needs."""

import math

from fedadb_app.aggregation import (
    ClientUpdate,
    absurd_change,
    difference,
    squared_norm,
)
from fedadb_app.config import RunConfig
from fedadb_app.models.classifier import StateDict
from fedadb_app.privacy import largest_noised_norm
from strategies.replies import Answers


def absurdity(
    config: RunConfig, sent: StateDict, trained: tuple[str, ...], update: ClientUpdate
) -> str:
    """Say why no honest client would have sent this update; nothing if one might."""
    if config.privacy != "local":
        return absurd_change(update.arrays, sent, trained, config.max_relative_update)
    limit = largest_noised_norm(config, sum(tensor.numel() for tensor in sent.values()))
    moved = math.sqrt(squared_norm(difference(update.arrays, sent, sent)))
    if moved <= limit:
        return ""
    return f"its noised update has the norm {moved:.4g}, and an honest one at most {limit:.4g}"


def too_few(
    config: RunConfig, server_round: int, sampled: int, answers: Answers[ClientUpdate]
) -> str:
    """Say why a round cannot be concluded with the updates there are; nothing if it can."""
    # Without the small allowance 7 % of 100 clients would be 7.000000000000001, so 8.
    needed = max(1, math.ceil(config.min_success_fraction * sampled - 1e-9))
    if len(answers.usable) >= needed:
        return ""
    client, reason = min(answers.failures.items())
    return (
        f"round {server_round}: {len(answers.usable)} of {sampled} clients gave a usable "
        f"update, {needed} needed (min-success-fraction="
        f"{config.min_success_fraction:g}); client {client}: {reason}"
    )
