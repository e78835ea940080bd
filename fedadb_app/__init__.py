"""FedADB: class-anchor-driven dual-branch federated learning, as a Flower app.

What the methods in :mod:`strategies` stand on: configuration, data, models, class anchors, the
dual-branch loss, local training, messages and results. Nothing here knows a method by name.
"""
