"""Errors that end a run or a command with one sentence for the person who started it."""


class FedADBError(Exception):
    """A run cannot go on; the message says which value, where, and what is allowed."""


class ConfigError(FedADBError):
    """A value of the run configuration is unknown, of the wrong type or out of range."""


class DataError(FedADBError):
    """A data set is missing, damaged, or cannot feed the requested clients."""


class NodeError(FedADBError):
    """Too few SuperNodes are connected, two claim one identity, or a machine is not fit for one."""


class CredentialError(FedADBError):
    """A certificate or key cannot be made, or is not what it should be."""


class CheckpointError(FedADBError):
    """A checkpoint or a client's state is damaged, or does not fit."""


class StorageError(FedADBError):
    """The disk does not take what the app has to write."""


class TrainingError(FedADBError):
    """A round or an anchor generation gave no usable result."""


class TrackerError(FedADBError):
    """An experiment tracker cannot be reached, or does not take a run."""
