"""Anchors among real images: which are shown, where they are placed, how they correlate."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from embedding_points import clusters, embedding, random_features
from helpers import serve

from fedadb_app.analysis import embeddings
from fedadb_app.analysis.embedding_plots import plot_pca_and_correlation, plot_tsne
from fedadb_app.analysis.embeddings import (
    Correlation,
    correlation,
    features_of,
    pca,
    tsne,
)
from fedadb_app.analysis.open_run import open_run
from fedadb_app.errors import DataError

# --- features of a run ----------------------------------------------------------------------


@pytest.fixture
def run(values, tmp_path):
    serve({**values, "strategy": "fedadb", "model": "lenet", "fedadb.anchors-per-class": 2})
    return open_run(tmp_path / "runs" / "run")


def test_features_are_those_of_a_balanced_sample_of_test_images_and_of_the_anchors(
    run, monkeypatch
):
    monkeypatch.setattr(embeddings, "PER_CLASS", 7)
    model = run.model(2)
    anchors = run.anchors(model, 2)
    found = features_of(model, anchors, run)
    assert np.bincount(found.real_labels).tolist() == [7, 7, 7, 7]
    assert found.anchor_labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.class_names == run.dataset.class_names

    with torch.no_grad():
        pixels = torch.tensor(run.dataset.test_images)
        every = model.features(run.preparation.normalise(pixels, torch.device("cpu"))).double()
        made = model.features(anchors.images).double()
    assert np.array_equal(found.anchors, made.numpy())
    distances = torch.cdist(torch.from_numpy(found.real), every)
    nearest = distances.argmin(dim=1)
    assert distances.min(dim=1).values.max() < 1e-4
    assert len(set(nearest.tolist())) == 28  # no image twice
    assert np.array_equal(run.dataset.test_labels[nearest], found.real_labels)


def test_the_sample_is_the_runs_and_the_same_at_each_call(run, monkeypatch):
    monkeypatch.setattr(embeddings, "PER_CLASS", 5)
    model = run.model(2)
    anchors = run.anchors(model, 2)
    first, again = (features_of(model, anchors, run) for _ in range(2))
    assert np.array_equal(first.real, again.real)
    other = replace(run, config=run.config.model_copy(update={"seed": 1}))
    assert not np.array_equal(first.real, features_of(model, anchors, other).real)


def test_a_class_with_fewer_images_has_all_of_them(run):
    model = run.model(2)
    found = features_of(model, run.anchors(model, 2), run)
    assert np.array_equal(np.bincount(found.real_labels), np.bincount(run.dataset.test_labels))


# --- t-SNE ----------------------------------------------------------------------------------


def test_the_map_is_the_same_for_one_seed():
    first, again = tsne(clusters(), seed=3), tsne(clusters(), seed=3)
    assert first.real.tobytes() == again.real.tobytes()
    assert first.anchors.tobytes() == again.anchors.tobytes()


def test_far_clusters_stay_apart_and_anchors_stay_inside_theirs():
    placed = tsne(clusters(), seed=0)
    assert placed.real.shape == (36, 2)
    assert placed.anchors.shape == (3, 2)
    points = np.concatenate([placed.real, placed.anchors])
    labels = np.concatenate([placed.real_labels, placed.anchor_labels])
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert np.array_equal(labels[distances.argmin(axis=1)], labels)
    np.fill_diagonal(distances, 0)
    same = labels[:, None] == labels
    assert distances[same].max() < distances[~same].min()


@pytest.mark.parametrize("images", [1, 2, 5, 40])
def test_few_points_lower_the_perplexity(images):
    few = random_features(images)
    assert np.isfinite(tsne(few, seed=0).real).all()


# --- principal components -------------------------------------------------------------------


def test_components_are_those_of_the_real_images_singular_values():
    features = random_features()
    found = pca(features)
    centre = features.real.mean(axis=0)
    _, _, axes = np.linalg.svd(features.real - centre)
    for name in ("real", "anchors"):
        expected = (getattr(features, name) - centre) @ axes[:3].T
        assert np.abs(getattr(found, name)) == pytest.approx(np.abs(expected))
    # real images and anchors share each component's sign
    signs = np.sign(found.real[0] / ((features.real[0] - centre) @ axes[:3].T))
    assert found.anchors == pytest.approx(signs * ((features.anchors - centre) @ axes[:3].T))
    assert (np.diff(found.real.var(axis=0)) < 0).all()


def test_signs_do_not_depend_on_the_order_of_the_images():
    features = random_features()
    order = np.random.default_rng(2).permutation(len(features.real))
    shuffled = replace(features, real=features.real[order], real_labels=features.real_labels[order])
    assert pca(shuffled).real == pytest.approx(pca(features).real[order])


@pytest.mark.parametrize("shape", [(2, 9), (9, 2)])
def test_fewer_images_or_features_than_components(shape):
    with pytest.raises(DataError, match=f"there are {shape[0]} images of {shape[1]} features"):
        pca(random_features(*shape))


@pytest.mark.parametrize("value", [0.0, 2.5, np.nan, np.inf])
def test_a_model_that_tells_nothing_apart(value):
    same = np.full((9, 4), value)
    features = embedding(same, np.arange(9) % 3, same[:3])
    for project in (pca, lambda f: tsne(f, seed=0)):
        with pytest.raises(DataError, match="nothing to tell classes apart by"):
            project(features)


# --- correlation ----------------------------------------------------------------------------


def test_correlation_by_hand():
    """Centres (1, 2, 3), (3, 2, 1), (0, 1, 0), less their mean (4/3, 5/3, 4/3)."""
    centres = np.array([[1.0, 2, 3], [3, 2, 1], [0, 1, 0]])
    origin = centres.mean(axis=0)
    anchors = origin + np.array([[1.0, 2, 3], [5, 0, -5], [0, 2, 0]])
    found = correlation(embedding(centres, [0, 1, 2], anchors)).matrix
    # less the origin: (-1/3, 1/3, 5/3), (5/3, 1/3, -1/3), (-4/3, -2/3, -4/3)
    # in thirds, less each row's mean 5/3: (-8, -2, 10), (10, -2, -8), and (-2, 4, -2)
    # anchors likewise: (-1, 0, 1), (5, 0, -5), (-2, 4, -2) / 3
    r = 18 / np.sqrt(2 * 168)
    s = -12 / np.sqrt(24 * 168)
    assert found == pytest.approx(np.array([[r, -r, 0], [-r, r, 0], [s, s, 1]]))


def test_an_anchor_on_its_class_centre_correlates_perfectly_and_opposite_it_inversely():
    features = random_features()
    centre = features.real.mean(axis=0)
    means = np.array([features.real[features.real_labels == c].mean(axis=0) for c in range(3)])
    on = correlation(replace(features, anchors=means))
    assert on.matrix.diagonal() == pytest.approx([1, 1, 1])
    assert on.matrix == pytest.approx(on.matrix.T)
    opposite = correlation(replace(features, anchors=2 * centre - means))
    assert opposite.matrix == pytest.approx(-on.matrix)
    assert on.own_class == pytest.approx(1)
    assert opposite.own_class == pytest.approx(-1)


def test_neither_scale_nor_a_common_shift_matters():
    features = random_features()
    expected = correlation(features).matrix
    moved = replace(features, real=3 * features.real + 7, anchors=3 * features.anchors + 7)
    assert correlation(moved).matrix == pytest.approx(expected)


def test_several_anchors_of_a_class_count_as_their_mean():
    features = random_features()
    shift = np.random.default_rng(3).normal(size=features.anchors.shape)
    pairs = np.concatenate([features.anchors + shift, features.anchors - shift])
    doubled = replace(features, anchors=pairs, anchor_labels=np.array([0, 1, 2, 0, 1, 2]))
    assert correlation(doubled).matrix == pytest.approx(correlation(features).matrix)


def test_a_class_without_real_images_is_not_a_number():
    features = random_features()
    held = features.real_labels != 1
    without = replace(features, real=features.real[held], real_labels=features.real_labels[held])
    found = correlation(without)
    assert np.isnan(found.matrix[:, 1]).all()
    assert np.isfinite(found.matrix[:, [0, 2]]).all()
    assert found.own_class == pytest.approx((found.matrix[0, 0] + found.matrix[2, 2]) / 2)


def test_vectors_without_spread_are_not_a_number():
    """0.1 has a mean that is rounded: what is left of it must not be taken for a direction."""
    features = random_features()
    flat = features.real.mean(axis=0) + np.array([[0.1], [0.7], [1.3]])
    found = correlation(replace(features, anchors=flat))
    assert np.isnan(found.matrix).all()
    assert np.isnan(found.own_class)
    assert np.isnan(found.other_classes)


def test_summary_numbers_by_hand():
    found = Correlation(np.array([[0.5, 0.1], [0.3, np.nan]]), ("a", "b"))
    assert found.own_class == pytest.approx(0.5)
    assert found.other_classes == pytest.approx(0.2)


# --- rows and pictures ----------------------------------------------------------------------


def test_rows():
    points = embedding([[1, 2]], [1], [[3, 4]], anchor_labels=[2])
    assert points.rows() == [
        {"kind": "real", "class": "b", "x1": 1.0, "x2": 2.0},
        {"kind": "anchor", "class": "c", "x1": 3.0, "x2": 4.0},
    ]
    assert Correlation(np.array([[1.0, 0.5], [0.25, 0.0]]), ("a", "b")).rows()[1:3] == [
        {"anchor": "a", "centre": "b", "r": 0.5},
        {"anchor": "b", "centre": "a", "r": 0.25},
    ]


def test_the_maps_side_by_side(drawn, tmp_path):
    early, late = (tsne(clusters(4), seed=seed) for seed in (0, 1))
    plot_tsne({"round 1": early, "round 9": late}, tmp_path / "figure.png")
    axes = drawn[-1].axes
    assert [a.get_title() for a in axes] == ["round 1", "round 9"]
    for shown, space in zip(axes, (early, late), strict=True):
        points = np.concatenate([np.asarray(c.get_offsets()) for c in shown.collections])
        expected = np.concatenate([space.real, space.anchors])
        assert np.array_equal(np.sort(points, axis=0), np.sort(expected, axis=0))
        assert [text.get_text().strip() for text in shown.texts] == ["0", "1", "2"]
    assert {"0 a", "1 b", "2 c", "class anchor"} <= set(drawn.texts())


def test_components_and_matrix_of_each_stage(drawn, tmp_path):
    stages = {"round 1": pca(clusters(4)), "round 9": pca(random_features())}
    plot_pca_and_correlation(stages, tmp_path / "figure.png")
    spaces = [a for a in drawn[-1].axes if a.name == "3d"]
    matrices = [a for a in drawn[-1].axes if a.get_ylabel() == "anchor of class"]
    assert [a.get_title() for a in spaces] == ["round 1", "round 9"]
    for axes, stage in zip(matrices, stages.values(), strict=True):
        found = correlation(stage)
        assert np.array_equal(axes.images[0].get_array(), found.matrix)
        assert [t.get_text() for t in axes.texts] == [f"{r:.2f}" for r in found.matrix.flat]
        assert [t.get_text() for t in axes.get_yticklabels()] == ["0 a", "1 b", "2 c"]
        assert f"diagonal {found.own_class:.2f}, elsewhere {found.other_classes:.2f}" in (
            axes.get_title()
        )


def test_an_anchor_of_a_class_that_no_test_image_has(drawn, tmp_path):
    features = clusters(5)
    held = features.real_labels != 2
    without = replace(features, real=features.real[held], real_labels=features.real_labels[held])
    plot_tsne({"round 1": tsne(without, seed=0)}, tmp_path / "maps.png")
    assert len(drawn[-1].axes[0].texts) == 3
    plot_pca_and_correlation({"round 1": pca(without)}, tmp_path / "components.png")
    assert drawn.texts().count("–") == 3


@pytest.mark.parametrize("classes", [11, 40])
def test_many_classes(drawn, tmp_path, classes):
    names = tuple(f"class {c}" for c in range(classes))
    real = np.random.default_rng(0).normal(size=(2 * classes, 5))
    space = pca(embedding(real, np.arange(2 * classes) % classes, real[:classes], names))
    plot_pca_and_correlation({"round 1": space}, tmp_path / "figure.png")
    legend = [text for text in drawn.texts() if "class 1" in text]
    assert len(legend) == (4 if classes == 11 else 0)  # 1 and 10, in the legend and at the matrix
    shades = {tuple(c.get_facecolor()[0][:3]) for c in drawn[-1].axes[0].collections}
    assert len(shades) == classes


def test_long_names_are_cut_with_an_ellipsis(drawn, tmp_path):
    space = replace(
        pca(clusters(4)), class_names=("a", "b", "colorectal adenocarcinoma epithelium")
    )
    plot_pca_and_correlation({"round 1": space}, tmp_path / "figure.png")
    assert "2 colorectal adenocarci…" in drawn.texts()
    assert "2 colorectal adenocarcinoma epithelium" in drawn.texts()  # the legend has room
