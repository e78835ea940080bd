"""The nearest real image of each anchor, by hand and by brute force."""

import numpy as np
import pytest
from helpers import serve

from fedadb_app.analysis import anchor_privacy as module
from fedadb_app.analysis.anchor_privacy import (
    AnchorPrivacy,
    anchor_privacy,
    nearest_images,
    plot_anchors,
)
from fedadb_app.analysis.open_run import open_run

NONE = np.array([-1])


def flat(*values: int) -> np.ndarray:
    """Grey 2x2 images of one value each."""
    return np.array(values, np.uint8)[:, None, None, None].repeat(2, axis=2).repeat(2, axis=3)


def random_images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 4, 5), np.uint8)


def brute_force(queries, images, excluded):
    """Image by image, in whole numbers."""
    positions, psnr = [], []
    for query, own in zip(queries, excluded, strict=True):
        errors = {
            i: int(((query.astype(int) - image.astype(int)) ** 2).sum())
            for i, image in enumerate(images)
            if i != own
        }
        best = min(errors, key=lambda i: errors[i])
        positions.append(best)
        mse = errors[best] / query.size
        psnr.append(10 * np.log10(255**2 / mse) if mse else np.inf)
    return positions, psnr


def test_psnr_by_hand():
    positions, psnr = nearest_images(flat(100), flat(0, 110, 255), NONE)
    assert positions.tolist() == [1]
    assert psnr == pytest.approx([10 * np.log10(255**2 / 10**2)])  # 28.13 dB
    assert nearest_images(flat(0), flat(255, 255), NONE)[1] == pytest.approx([0.0])


def test_only_the_mean_over_all_pixels_counts():
    """One pixel of four off by 20: a mean squared error of 100."""
    image = flat(50)
    image[0, 0, 1, 1] = 70
    assert nearest_images(flat(50), image, NONE)[1] == pytest.approx([28.1308], abs=1e-4)


def test_the_same_image_is_infinitely_like_itself_unless_excluded():
    images = flat(10, 20, 35)
    positions, psnr = nearest_images(images, images, np.full(3, -1))
    assert positions.tolist() == [0, 1, 2]
    assert np.isinf(psnr).all()
    positions, psnr = nearest_images(images, images, np.arange(3))
    assert positions.tolist() == [1, 0, 1]
    assert np.isfinite(psnr).all()


def test_brute_force_agrees_whatever_is_held_at_once(monkeypatch):
    images, queries = random_images(37, 0), random_images(6, 1)
    queries = np.concatenate([queries, images[[5, 36]]])
    excluded = np.array([-1, 0, 12, 36, -1, 7, 5, 36])
    positions, psnr = brute_force(queries, images, excluded)
    for values_at_once in (1, 60, 61, 180, 600, 37 * 60, 2**22):
        monkeypatch.setattr(module, "_VALUES_AT_ONCE", values_at_once)
        found = nearest_images(queries, images, excluded)
        assert found[0].tolist() == positions
        assert found[1] == pytest.approx(psnr, rel=1e-12)


@pytest.mark.parametrize("values_at_once", [1, 8, 100])
def test_of_equally_near_images_the_first(monkeypatch, values_at_once):
    monkeypatch.setattr(module, "_VALUES_AT_ONCE", values_at_once)
    found = nearest_images(flat(100), flat(90, 110, 90), NONE)
    assert found[0].tolist() == [0]


def test_large_bright_images_are_exact():
    """A squared norm beyond 2^24, where float32 would take the second for the first."""
    images = np.full((2, 3, 64, 64), 255, np.uint8)
    images[0, 0, 0, 0] = 253
    query = np.full((1, 3, 64, 64), 255, np.uint8)
    query[0, 0, 0, 0] = 254
    query[0, 0, 0, 1] = 254
    images[1, 0, 0, 1] = 254
    positions, psnr = nearest_images(query, images, NONE)
    assert positions.tolist() == [1]
    assert psnr == pytest.approx([10 * np.log10(255**2 * 3 * 64 * 64)])


# --- a run ----------------------------------------------------------------------------------


@pytest.fixture
def run(values, tmp_path):
    serve({**values, "strategy": "fedadb", "model": "lenet", "fedadb.anchors-per-class": 3})
    return open_run(tmp_path / "runs" / "run")


def test_anchors_of_a_run_against_its_whole_training_set(run):
    anchors = run.anchors(run.model(2), 2)
    found = anchor_privacy(anchors, run)
    images = run.dataset.train_images
    pixels = run.preparation.to_pixels(anchors.images).numpy()
    positions, psnr = brute_force(pixels, images, np.full(12, -1))
    assert found.nearest_positions.tolist() == positions
    assert found.psnr == pytest.approx(psnr)
    assert np.array_equal(found.anchors, pixels)
    assert np.array_equal(found.nearest, images[positions])
    assert found.nearest_labels.tolist() == run.dataset.train_labels[positions].tolist()
    assert found.labels.tolist() == np.repeat(range(4), 3).tolist()
    assert found.confidences == pytest.approx(anchors.confidences.numpy())

    everything = brute_force(images[:50], images, range(50))[1]
    assert len(found.real_psnr) == 100
    assert np.isfinite(found.real_psnr).all()  # never an image with itself
    assert np.median(everything) == pytest.approx(found.median_real_psnr, abs=1)
    assert anchor_privacy(anchors, run).real_psnr.tolist() == found.real_psnr.tolist()


def test_a_sample_larger_than_the_training_set_is_all_of_it(run, monkeypatch):
    monkeypatch.setattr(module, "REFERENCES", 10**6)
    anchors = run.anchors(run.model(2), 2)
    assert len(anchor_privacy(anchors, run).real_psnr) == 400


# --- rows and picture -----------------------------------------------------------------------


def group(count: int, channels: int = 1) -> AnchorPrivacy:
    labels = np.arange(count) % 3
    pixels = np.random.default_rng(0).integers(0, 256, (2, count, channels, 6, 6), np.uint8)
    return AnchorPrivacy(
        anchors=pixels[0],
        labels=labels,
        confidences=np.linspace(0.5, 1, count),
        nearest=pixels[1],
        nearest_labels=labels[::-1].copy(),
        nearest_positions=np.arange(count) + 100,
        psnr=np.linspace(7, 9, count),
        real_psnr=np.array([20.0, 21, 30]),
        class_names=("adipose", "background", "colorectal adenocarcinoma epithelium"),
    )


def test_rows():
    assert group(3).rows()[1] == {
        "class": "background",
        "confidence": 0.75,
        "psnr": 8.0,
        "nearest_image": 101,
        "nearest_class": "background",
    }


def test_each_anchor_stands_over_its_nearest_image(drawn, tmp_path):
    grey, coloured = group(3), group(12, channels=3)
    plot_anchors({"digits": grey, "PathMNIST": coloured}, tmp_path / "figure.png")
    shown = [axes for axes in drawn[-1].axes if axes.images]
    assert len(shown) == 2 * (3 + 12)
    above = [axes for axes in shown if axes.get_title()]
    for i, axes in enumerate(above[:3]):
        assert np.array_equal(axes.images[0].get_array(), grey.anchors[i, 0])
        assert axes.get_title().replace("\n", " ") == grey.class_names[grey.labels[i]]
        assert axes.get_xlabel() == f"confidence {0.5 + i / 4:.3f}\nPSNR {7 + i:.1f} dB"
        position = axes.get_subplotspec()
        (below,) = [
            other
            for other in shown
            if other.get_subplotspec().get_gridspec() is position.get_gridspec()
            and other.get_subplotspec().colspan == position.colspan
            and other.get_subplotspec().rowspan.start == position.rowspan.start + 1
        ]
        assert np.array_equal(below.images[0].get_array(), grey.nearest[i, 0])
        assert below.get_xlabel().replace("\n", " ") == grey.class_names[grey.nearest_labels[i]]
    titles = [text for text in drawn.texts() if "nearest real image" in text]
    assert len(titles) == 2
    assert "7.0 to 9.0 dB" in titles[0]
    assert "21.0 dB (median of 3)" in titles[0]
