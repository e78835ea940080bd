"""Flower's local differential privacy, switched on by the run configuration.

An app's mods are fixed when it is imported, the mode is not: so this one looks it up, and hands
over to Flower's `LocalDpMod`, which clips the update and adds noise before it leaves the node.
"""

import math

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod

from fedadb_app.client_context import or_refuse
from fedadb_app.flower_internals import ClientAppCallable
from fedadb_app.randomness import secret_generator
from strategies.registry import read_run_config


@or_refuse
def local_privacy(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Train, then clip to C and add noise of standard deviation z C, if ``privacy="local"``."""
    config, _, _ = read_run_config(context.run_config)
    if config.privacy != "local":
        return call_next(message, context)

    def train(message: Message, context: Context) -> Message:
        reply = call_next(message, context)
        # Flower draws the noise from NumPy's global generator, which any library may have seeded.
        np.random.seed(secret_generator().integers(2**32, size=8))
        return reply

    # Flower's deviation is sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, a rule that holds for
    # epsilon < 1 only. Solved for the deviation z C; what it costs, `epsilon_spent` says exactly.
    epsilon = math.sqrt(2 * math.log(1.25 / config.delta)) / config.noise_multiplier
    norm = config.clipping_norm
    return LocalDpMod(norm, sensitivity=norm, epsilon=epsilon, delta=config.delta)(
        message, context, train
    )
