"""The keys of a run configuration by subject: type, range, default and meaning."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedadb_app.data.intake.names import PATIENT_PATTERN
from fedadb_app.data.intake.options import Frames, Resize, Transparency
from fedadb_app.data.registry import DATASETS, PARTITIONS
from fedadb_app.models.norm import NormPolicy
from fedadb_app.models.registry import MODELS
from fedadb_app.settings import Settings

SelectBy = Literal[
    "",
    "val-accuracy",
    "val-balanced-accuracy",
    "val-macro-f1",
    "val-auc",
    "val-ece",
    "val-brier",
]


class IdentityKeys(Settings):
    """What a run is: its method and its seed."""

    strategy: str = Field("fedadb", description="a method of the app")
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="the only source of randomness: weights, partition, client schedule, batches, "
        "anchors",
    )


class DataKeys(Settings):
    """Which images, and who holds what."""

    dataset: Annotated[str, AfterValidator(DATASETS.check)] = Field(
        "digits",
        json_schema_extra=DATASETS.json_schema,
        description="which images ([below](#the-papers-data-sets)); `nodes`: nobody but the nodes "
        "has data",
    )
    data_dir: str = Field(
        "",
        description="absolute folder where official files lie, or are downloaded to once by the "
        'server (checksum, lock); `""` = `~/.cache/fedadb`',
    )
    partition: Annotated[str, AfterValidator(PARTITIONS.check)] = Field(
        "dirichlet",
        json_schema_extra=PARTITIONS.json_schema,
        description="who holds what; `domain` and `natural` need images of several sites "
        "([run.md](run.md#who-holds-what))",
    )
    alpha: float = Field(
        0.1,
        gt=0,
        description='with `partition="dirichlet"` or `"quantity"`: the smaller, the more skewed',
    )
    classes_per_client: int = Field(
        2,
        ge=1,
        description='with `partition="classes"` or `"domain"`: how many classes a client holds',
    )
    feature_noise: float = Field(
        0.0,
        ge=0,
        description="feature skew: noise of up to this standard deviation (pixels from 0 to 1) in "
        "the images of the last client, and evenly less in those before it",
    )
    classes: str = Field(
        "",
        description="class names in the order of their labels, with commas (or semicolons, where "
        "a name has a comma); given together with `image-shape`, each node has its own images, "
        "else a part of `dataset`",
    )
    image_shape: str = Field(
        "",
        pattern=r"^([13]x[1-9]\d*x[1-9]\d*)?$",
        description="what a user's own images are made: grey or RGB, and of which size; needed "
        "where nodes have their own data",
        json_schema_extra={"allowed": 'channels (1 or 3), height and width, as in "3x28x28"'},
    )
    resize: Resize = Field(
        "fit",
        description="how a user's own images get that size: `fit` (whole, with black bars), `crop` "
        "(the middle, without bars) or `stretch` ([data.md](data.md))",
    )
    intensity: str = Field(
        "",
        description="which values of own images of more than 8 bits become black and white; "
        "of a node also by its `--node-config`, as the next four",
        json_schema_extra={
            "allowed": 'two values, as in "0,4095", or percentages of the training pixels, as in '
            '"1%,99%"'
        },
    )
    frames: Frames = Field(
        "refuse", description="own files of several images: refused, or `each` image is taken"
    )
    transparency: Transparency = Field(
        "black", description="what transparent pixels of own images are laid on, or `refuse`"
    )
    ignore: str = Field(
        "",
        description="names of files and folders among own images that may be left out",
        json_schema_extra={"allowed": 'patterns with commas between, as in "*.xml,masks"'},
    )
    patient_pattern: str = Field(
        "",
        pattern=PATIENT_PATTERN,
        description="where the names of own files say whose they are ([data.md](data.md))",
        json_schema_extra={
            "allowed": 'a name without suffix, with {patient}, * and ? in it, as in "{patient}_*"'
        },
    )


class TrainingKeys(Settings):
    """How many rounds, and what a client does in each."""

    num_server_rounds: int = Field(20, ge=1, description="T")
    fraction_train: float = Field(
        1.0, gt=0, le=1, description="share of the clients drawn each round, rounded, at least one"
    )
    fraction_evaluate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the clients with held-out samples that evaluate, rounded, at least "
        "one",
    )
    model: Annotated[str, AfterValidator(MODELS.check)] = Field(
        "auto",
        json_schema_extra=MODELS.json_schema,
        description="`auto`: LeNet for grey images, ResNet-18 otherwise; every net, with its size "
        "and what it does to small images: [models.md](models.md)",
    )
    weights: str = Field(
        "",
        description="absolute path, on the server, of pretrained weights of the model "
        "(safetensors, or torchvision's `.pth`); its heads are drawn from the seed all the same "
        '([models.md](models.md#pretrained-weights)); `""` = all weights are drawn',
    )
    norm: NormPolicy = Field(
        "batch",
        description="normalisation layers, of models that have some: `batch` (running "
        "statistics), `batch-local` (the batch's own, also in evaluation), `group` (two groups)",
    )
    local_epochs: int = Field(5, ge=1, description="E")
    batch_size: int = Field(128, ge=1, description="B; the last, smaller batch of an epoch is kept")
    optimizer: Literal["sgd", "adamw"] = Field(
        "sgd",
        description="a client's, new in each round; `adamw` is refused where a method is defined "
        "for SGD ([below](#optimiser))",
    )
    learning_rate: float = Field(0.01, gt=0, description="round t uses learning-rate × decay^(t−1)")
    learning_rate_decay: float = Field(0.99, gt=0, le=1, description="per round")
    warmup_rounds: int = Field(
        0, ge=0, description="W: round t ≤ W uses t / (W + 1) of its learning rate"
    )
    momentum: float = Field(
        0.9, ge=0, lt=1, description="of SGD; starts empty each round; of no effect with `adamw`"
    )
    weight_decay: float = Field(
        1e-5, ge=0, description="added to SGD's gradient; with `adamw` apart from the gradient"
    )
    max_grad_norm: float = Field(
        0.0,
        ge=0,
        description="largest L2 norm of a step's gradient, larger ones are scaled "
        "down to it; `0` = any",
    )
    augment: bool = Field(
        False,
        description="the lineage's augmentation of local images: random horizontal flips; for "
        "some data sets more ([below](#the-papers-data-sets))",
    )
    personalise_epochs: int = Field(
        0,
        ge=0,
        description="after the last round each client that evaluates trains its own copy of the "
        "model on, for so many epochs, and says what that gains; `0` = none "
        "([use-a-model.md](use-a-model.md#a-model-for-each-site))",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$",
        description="where to train; `auto` prefers a GPU",
        json_schema_extra={"allowed": 'one of "auto", "cpu", "cuda", "cuda:N", "mps"'},
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="`bf16` = autocast to bfloat16")


class OutputKeys(Settings):
    """What is measured, and what is kept."""

    evaluate: Literal["server", "clients", "both", "none"] = Field(
        "server",
        description="`server` (whole test set), `clients` (their held-out samples), `both` (the "
        "clients' accuracy then stands in `diagnostics.csv`) or `none`",
    )
    evaluate_every: int = Field(
        1, ge=1, description="in rounds; the last round is always evaluated"
    )
    validation: str = Field(
        "merged",
        pattern=r"^(merged|official|0?\.\d+)$",
        description="training images that no client trains on, for the server to choose by: none "
        "(`merged`, the paper's), the data set's `official` part, or a fraction of each class; "
        "where nodes have their own data, of each node's ([evaluation.md](evaluation.md))",
        json_schema_extra={
            "allowed": '"merged", "official" or a fraction from 0.01 to 0.5, as in "0.1"'
        },
    )
    select_by: SelectBy = Field(
        "",
        description="keep the model of the round that is best on the validation part, as "
        "`best.safetensors`, and report that round",
    )
    patience: int = Field(
        0,
        ge=0,
        description="stop when so many evaluated rounds in a row were no better by `select-by`; "
        "`0` = never",
    )
    must_reach: str = Field(
        "",
        pattern=r"^([1-9]\d*:\d+(\.\d+)?(,[1-9]\d*:\d+(\.\d+)?)*)?$",
        description="stop after such a round unless `select-by` has been so good by then; "
        "`fedadb tune` sets it ([tune.md](tune.md#ending-hopeless-trials-early))",
        json_schema_extra={"allowed": 'rounds and values, as in "10:45.5,20:51.2"'},
    )
    output_dir: str = Field("", description='absolute folder for results; `""` = `~/fedadb-runs`')
    run_name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="the run's folder in it; a name that holds a run already is refused",
        json_schema_extra={"allowed": 'a folder name of letters, digits, ".", "_" and "-"'},
    )
    tensorboard: bool = Field(
        False, description="also write event files, a step per round ([below](#watching-a-run))"
    )
    checkpoint_every: int = Field(
        0,
        ge=0,
        description="write a checkpoint after every so many rounds and after the last; `0` = never",
    )
    snapshot_every: int = Field(
        0,
        ge=0,
        description="keep the global model after every so many rounds, for `fedadb analyse`; `0` "
        "= the last one only",
    )
    resume_from: str = Field(
        "", description="absolute folder of the run to go on with, on the SuperLink's machine"
    )
    client_state_dir: str = Field(
        "",
        description="absolute folder on each client's machine where it keeps its state between "
        'rounds (FedDyn); `""` = in the memory of its node',
    )
