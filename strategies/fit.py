"""Whether a method fits a run's data: said before a folder exists or a node is awaited."""

import torch

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import image_schema
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from strategies.method import Method


def refuse_misfit(config: RunConfig, method: Method) -> None:
    """Refuse what the data on this machine show to be impossible; of data elsewhere say nothing.

    Raises
    ------
    ConfigError
        As `fitting_model`.
    """
    try:
        schema = image_schema(config)
        dataset = None if config.only_nodes else open_dataset(config.dataset, config.data_dir)
    except DataError:  # to be downloaded, or said where the run's folder can keep the reason
        return
    fitting_model(config, method, schema, dataset)


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
        If the images are too small for it, the head cannot be made for so many classes, it holds
        what differential privacy cannot protect, or a batch of the test set has no statistics.
    """
    model = build_classifier(ModelSpec.of(config, schema), config.seed, method.heads)
    buffers = sorted(model.state_dict().keys() - set(model.parameter_names()))
    if config.privacy != "none" and buffers:
        raise ConfigError(
            f'privacy="{config.privacy}" needs a model without running statistics, which '
            f"noise would spoil, but this one has {buffers[0]}: use "
            f'norm="batch-local", or norm="group" if the head has none'
        )
    tested = len(dataset.test_labels) if dataset and config.server_evaluates else 0
    alone = config.norm == "batch-local" and tested % config.batch_size == 1
    if alone and not _defined_on_one(model, schema):
        raise ConfigError(
            f'norm="batch-local" has no statistics of a single image in the head of '
            f'strategy="{config.strategy}", and batch-size={config.batch_size} leaves one of the '
            f"{tested} test images alone: use another batch-size"
        )
    return model


def _defined_on_one(model: ImageClassifier, schema: ImageSchema) -> bool:
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *schema.image_shape))
    except ValueError:  # PyTorch: "Expected more than 1 value per channel"
        return False
    finally:
        model.train(training)
    return True
