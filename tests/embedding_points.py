"""Points that tests of embeddings share: real images and anchors in one space."""

import numpy as np

from fedadb_app.analysis.embeddings import Embedding

NAMES = ("a", "b", "c")


def embedding(real, labels, anchors, names=NAMES, anchor_labels=None) -> Embedding:
    anchors = np.asarray(anchors, float)
    own = np.arange(len(anchors)) if anchor_labels is None else np.asarray(anchor_labels)
    return Embedding(np.asarray(real, float), np.asarray(labels), anchors, own, names)


def clusters(per_class: int = 12, features: int = 6) -> Embedding:
    """Three far clusters, each with its anchor inside."""
    rng = np.random.default_rng(0)
    centres = 50 * np.eye(3, features)
    labels = np.repeat(np.arange(3), per_class)
    real = centres[labels] + rng.normal(size=(len(labels), features))
    return embedding(real, labels, centres)


def random_features(images: int = 40, features: int = 7) -> Embedding:
    rng = np.random.default_rng(1)
    real = rng.normal(size=(images, features)) * np.arange(1, features + 1) + 3
    return embedding(real, np.arange(images) % 3, rng.normal(size=(3, features)))
