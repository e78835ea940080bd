"""Evaluation against confusion matrices counted by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.evaluation import Evaluation, evaluate
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier

CLASSES = 4
NOBODY = (np.empty(0, np.int64), np.empty((0, 3), np.float32))
ROW = {"a": [255, 0, 0, 0], "b": [0, 255, 0, 0], "c": [0, 0, 255, 0], "d": [0, 0, 0, 255]}


def pixel_model() -> ImageClassifier:
    """The four pixels of an image, normalised to -1 ... 1, are its logits."""
    head = nn.Linear(CLASSES, CLASSES, bias=False)
    head.weight.data = torch.eye(CLASSES)
    other = nn.Linear(CLASSES, CLASSES)
    return ImageClassifier(nn.Flatten(), {"first": head, "second": other})


def images_of(predictions: str) -> np.ndarray:
    rows = [ROW[p] for p in predictions]
    return np.array(rows, np.uint8).reshape(-1, 1, 2, 2)


def data_of(images: np.ndarray, labels: np.ndarray) -> LocalData:
    everything = np.arange(len(labels))
    return LocalData.from_arrays(images, labels, everything, CLASSES, torch.device("cpu"))


def lenet_case(samples: int = 40) -> tuple[ImageClassifier, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (samples, 1, 16, 16), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, samples, dtype=np.int64)
    model = build_classifier(ModelSpec("lenet", "batch", (1, 16, 16), CLASSES), seed=3)
    for parameter in model.parameters():
        parameter.data.mul_(2)  # so that it does not give one class to all
    return model, images, labels


def test_a_confusion_by_hand():
    # class 0: 2 of 3 right; class 1: 0 of 1; class 2: 1 of 2; class 3: no sample, predicted once
    labels = np.array([0, 0, 0, 1, 2, 2])
    found = evaluate(pixel_model(), data_of(images_of("abaacd"), labels), RunConfig())
    assert found.correct.tolist() == [2, 0, 1, 0]
    assert found.total.tolist() == [3, 1, 2, 0]
    assert found.accuracy == pytest.approx(50.0)
    assert found.class_accuracy[:3] == pytest.approx([200 / 3, 0, 50])
    assert math.isnan(found.class_accuracy[3])
    # each softmax is over (1, -1, -1, -1): log(e + 3/e) - 1 where right, + 1 where wrong
    right = math.log(math.e + 3 / math.e) - 1
    assert found.loss == pytest.approx(right + 2 * 3 / 6, rel=1e-6)


def test_class_accuracy_of_given_counts():
    found = Evaluation(np.array([1, 0, 3]), np.array([4, 0, 3]), 0.0, *NOBODY)
    assert found.accuracy == pytest.approx(400 / 7)
    assert found.class_accuracy[0] == 25
    assert math.isnan(found.class_accuracy[1])
    assert found.class_accuracy[2] == 100


@pytest.mark.filterwarnings("error")
def test_a_missing_class_is_no_warning():
    found = evaluate(pixel_model(), data_of(images_of("ab"), np.array([0, 1])), RunConfig())
    assert found.accuracy == 100
    assert found.class_accuracy[:2] == [100, 100]


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
def test_the_result_is_the_same_however_it_is_cut(chunk):
    model, images, labels = lenet_case()
    model.evaluation_batch = chunk
    found = evaluate(model, data_of(images, labels), RunConfig())

    model.eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(images).float() / 127.5 - 1)
    truth = torch.from_numpy(labels)
    right = logits.argmax(1) == truth
    expected = [int(right[truth == c].sum()) for c in range(CLASSES)]
    loss = -logits.double().log_softmax(1)[torch.arange(40), truth].mean()
    assert 0 < sum(expected) < 40
    assert found.correct.tolist() == expected
    assert found.total.tolist() == np.bincount(labels, minlength=CLASSES).tolist()
    assert found.loss == pytest.approx(float(loss), abs=1e-6)


def test_the_order_of_the_test_set_does_not_matter_without_batch_statistics():
    model, images, labels = lenet_case()
    order = np.random.default_rng(0).permutation(40)
    one = evaluate(model, data_of(images, labels), RunConfig())
    other = evaluate(model, data_of(images[order], labels[order]), RunConfig())
    assert one.correct.tolist() == other.correct.tolist()
    assert one.loss == pytest.approx(other.loss, abs=1e-6)


def test_evaluation_mode_and_an_unchanged_model():
    torch.manual_seed(0)
    features = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.Flatten())
    model = ImageClassifier(features, {"head": nn.Linear(4, CLASSES)}).train()
    features[0].running_mean.fill_(0.3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    images = images_of("abcdabcd")
    labels = np.array([0, 1, 2, 3, 3, 2, 1, 0])
    one = evaluate(model, data_of(images, labels), RunConfig())
    other = evaluate(model.train(), data_of(images, labels), RunConfig())
    assert one.loss == other.loss
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def batch_local_model() -> tuple[ImageClassifier, list[Tensor]]:
    """A model whose logits depend on the batch, and a list of the batches it sees."""
    torch.manual_seed(1)
    norm = nn.BatchNorm2d(1, track_running_stats=False)
    model = ImageClassifier(nn.Sequential(norm, nn.Flatten()), {"head": nn.Linear(4, CLASSES)})
    seen: list[Tensor] = []
    model.features.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    return model, seen


def numbered_images(samples: int) -> np.ndarray:
    """Images that tell their own number."""
    images = np.random.default_rng(0).integers(0, 256, (samples, 1, 2, 2), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(samples)
    return images


def numbers(batches: list[Tensor]) -> list[int]:
    return [round((float(x[0, 0, 0]) + 1) * 127.5) for batch in batches for x in batch]


def test_batch_local_evaluates_training_sized_batches_of_one_fixed_permutation():
    config = RunConfig(norm="batch-local", batch_size=16)
    images, labels = numbered_images(100), np.arange(100) * 7 % CLASSES
    model, seen = batch_local_model()
    found = evaluate(model, data_of(images, labels), config)
    order = numbers(seen)
    assert [len(b) for b in seen] == [16] * 6 + [4]
    assert sorted(order) == list(range(100))
    assert order != list(range(100))

    # what those batches give, each with its own statistics and its own labels
    with torch.no_grad():
        logits = torch.cat([model(batch) for batch in seen[:7]])
    truth = torch.from_numpy(labels[order])
    loss = -logits.log_softmax(1)[torch.arange(100), truth].mean()
    assert found.loss == pytest.approx(float(loss), abs=1e-6)
    assert found.correct.sum() == int((logits.argmax(1) == truth).sum())

    for seed in (0, 1):
        np.random.seed(seed)
        torch.manual_seed(seed)
        model, again = batch_local_model()
        evaluate(model, data_of(images, labels), config.model_copy(update={"seed": seed + 5}))
        assert numbers(again) == order


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_otherwise_the_test_set_is_read_in_file_order(norm):
    model, seen = batch_local_model()
    config = RunConfig(norm=norm, batch_size=16)
    evaluate(model, data_of(numbered_images(100), np.zeros(100, np.int64)), config)
    assert numbers(seen) == list(range(100))


def test_the_first_head_is_the_one_evaluated():
    model = pixel_model()
    with torch.no_grad():
        model.heads["second"].weight.fill_(9)
    found = evaluate(model, data_of(images_of("abcd"), np.arange(4)), RunConfig())
    assert found.accuracy == 100


def test_bf16_gives_nearly_the_same_loss():
    model, images, labels = lenet_case()
    fine = evaluate(model, data_of(images, labels), RunConfig())
    coarse = evaluate(model, data_of(images, labels), RunConfig(precision="bf16"))
    assert coarse.loss == pytest.approx(fine.loss, abs=0.05)
    assert coarse.loss != fine.loss
    assert coarse.total.tolist() == fine.total.tolist()


def test_other_heads_and_the_mean_of_all_beside_it():
    """Pixels +-1 are the first head's logits; the second's are fixed, by hand.

    Softmax of (1, -1, -1, -1) is 0.711 for its pixel and 0.096 else. The second head gives class d
    0.475 and the others 0.175, whatever the image: the mean has 0.443 for the pixel's class and
    0.286 for d. With logits ten times as large the second head outvotes the first: d has 1.
    """
    model = pixel_model()
    second = model.heads["second"]
    data = data_of(images_of("aabd"), np.array([0, 1, 1, 0]))
    for scale, mean in ((1.0, 50.0), (10.0, 0.0)):
        with torch.no_grad():
            second.weight.zero_()
            second.bias.copy_(scale * torch.tensor([0.0, 0.0, 0.0, 1.0]))
        found = evaluate(model, data, RunConfig(), other_heads=["second"])
        assert found.accuracy == 50.0
        assert found.heads == {"second_head": 0.0, "mean_of_heads": mean}
    assert evaluate(model, data, RunConfig()).heads == {}
