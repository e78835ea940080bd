"""Whether a method fits a run's data: said before a folder exists or a node is awaited."""

import numpy as np

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import dataset_of, image_schema, validation_rows
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.guarded_grid import Allowance
from fedadb_app.metrics import NEED_EVERY_CLASS, Labels
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier, model_facts
from strategies.method import Method


def refuse_misfit(config: RunConfig, method: Method) -> None:
    """Refuse what is impossible, as far as it is known without a download.

    Raises
    ------
    ConfigError
        As `fitting_model`.
    """
    try:
        spec = ModelSpec.expected(config) or ModelSpec.of(config, image_schema(config))
        _refuse(config, method, spec)
        dataset = None if config.only_nodes else dataset_of(config)
    except DataError:  # to be downloaded, or said where the run's folder can keep the reason
        return
    _refuse(config, method, ModelSpec.of(config, image_schema(config)), dataset)


def fitting_model(
    config: RunConfig, method: Method, schema: ImageSchema, dataset: ImageDataset | None
) -> ImageClassifier:
    """Build a run's model, as every round of every node will build it.

    Parameters
    ----------
    config : RunConfig
        For the model, ``norm``, ``privacy`` and the seed.
    method : Method
        For the heads.
    schema : ImageSchema
        Classes, and the shape of an input.
    dataset : ImageDataset or None
        What the server evaluates on.

    Raises
    ------
    ConfigError
        If ``max-reply-bytes`` is less than the model, the images are too small for it, the head
        cannot be made for so many classes, it holds what differential privacy cannot protect, a
        batch of the test set has no statistics, or the validation part is not there or lacks a
        class that ``select-by`` needs.
    """
    spec = ModelSpec.of(config, schema)
    _refuse(config, method, spec, dataset)
    return build_classifier(spec, config.seed, method.heads)


def _refuse(
    config: RunConfig, method: Method, spec: ModelSpec, dataset: ImageDataset | None = None
) -> None:
    facts = model_facts(spec, method.heads)
    Allowance.of(facts.state, config.max_reply_bytes)
    if config.privacy != "none" and facts.buffers:
        raise ConfigError(
            f'privacy="{config.privacy}" needs a model without running statistics, which '
            f"noise would spoil, but this one has {facts.buffers[0]}: use "
            f'norm="batch-local", or norm="group" if the head has none'
        )
    if dataset is None or not config.server_evaluates:
        return
    parts = {"test": dataset.test_labels}
    if config.validates:
        parts["validation"] = dataset.train_labels[validation_rows(config)]
        _refuse_unknown(config, dataset, parts["validation"])
    for part, labels in parts.items():
        alone = config.norm == "batch-local" and len(labels) % config.batch_size == 1
        if alone and facts.smallest_batch > 1:
            raise ConfigError(
                f'norm="batch-local" has no statistics of a single image in the head of '
                f'strategy="{config.strategy}", and batch-size={config.batch_size} leaves one of '
                f"the {len(labels)} {part} images alone: use another batch-size"
            )


def _refuse_unknown(config: RunConfig, dataset: ImageDataset, labels: Labels) -> None:
    """Refuse to choose by what is not defined on the validation part."""
    metric = config.select_by.removeprefix("val-")
    absent = np.flatnonzero(np.bincount(labels, minlength=dataset.num_classes) == 0)
    if metric in NEED_EVERY_CLASS and len(absent):
        raise ConfigError(
            f'select-by="{config.select_by}" needs images of every class, but the '
            f'{len(labels)} of validation="{config.validation}" have none of '
            f'"{dataset.class_names[absent[0]]}": use a larger part, or select-by="val-accuracy"'
        )
