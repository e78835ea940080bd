"""FedNTD and FedLMD: what their losses must be (BASELINES.md 4 and 7)."""

import math

import pytest
import torch
from torch.nn import functional as F

from strategies.fedlmd import label_masking_distillation, majority_labels
from strategies.fedntd import not_true_distillation


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    teacher = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return student, teacher, torch.tensor([0, 1, 2, 3, 0, 1])


def by_hand(student, teacher, labels, tau, majority=frozenset()):
    """Loop over samples and classes, straight from the formula."""
    total = 0.0
    for z, g, y in zip(student.tolist(), teacher.tolist(), labels.tolist(), strict=True):
        not_true = [c for c in range(len(z)) if c != y]
        heard = [c for c in not_true if c not in majority]
        if not heard:
            continue
        q_sum = sum(math.exp(g[c] / tau) for c in heard)
        p_sum = sum(math.exp(z[c] / tau) for c in not_true)
        for c in heard:
            q, p = math.exp(g[c] / tau) / q_sum, math.exp(z[c] / tau) / p_sum
            total += q * math.log(q / p)
    return tau**2 * total / len(labels)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_ntd_is_the_formula(logits, tau):
    student, teacher, labels = logits
    got = not_true_distillation(student, teacher, labels, tau)
    assert float(got) == pytest.approx(by_hand(student, teacher, labels, tau), abs=1e-12)


def test_ntd_ignores_the_true_logit_and_common_shifts(logits):
    student, teacher, labels = logits
    base = not_true_distillation(student, teacher, labels, 1.0)
    raised = student.clone()
    raised[torch.arange(6), labels] += 5.0
    assert torch.allclose(not_true_distillation(raised, teacher, labels, 1.0), base, atol=1e-12)
    assert not torch.allclose(F.cross_entropy(raised, labels), F.cross_entropy(student, labels))
    shifted = student + 7.0
    assert torch.allclose(not_true_distillation(shifted, teacher, labels, 1.0), base, atol=1e-12)


def test_ntd_and_its_gradient_vanish_where_student_and_teacher_agree(logits):
    student, _, labels = logits
    student = student.float().requires_grad_(True)
    loss = not_true_distillation(student, student.detach(), labels, 1.0)
    (gradient,) = torch.autograd.grad(loss, student)
    assert abs(float(loss.detach())) < 1e-7
    assert float(gradient.abs().max()) < 1e-7


def test_ntd_is_zero_for_two_classes(logits):
    student, teacher, labels = logits
    got = not_true_distillation(student[:, :2], teacher[:, :2], labels % 2, 1.0)
    assert float(got) == 0.0


def test_majority_is_above_the_mean_over_all_classes():
    assert majority_labels(torch.tensor([10, 0, 2, 0])).tolist() == [True, False, False, False]
    assert majority_labels(torch.tensor([5, 5, 5, 5])).tolist() == [False] * 4
    assert majority_labels(torch.tensor([0, 9, 8, 1])).tolist() == [False, True, True, False]


@pytest.mark.parametrize("majority", [{0}, {1, 3}, {0, 1, 2}])
def test_lmd_is_the_formula(logits, majority):
    student, teacher, labels = logits
    mask = torch.tensor([c in majority for c in range(4)])
    got = label_masking_distillation(student, teacher, labels, mask, 2.0)
    assert float(got) == pytest.approx(by_hand(student, teacher, labels, 2.0, majority), abs=1e-12)


def test_lmd_without_majority_is_ntd(logits):
    student, teacher, labels = logits
    nobody = torch.zeros(4, dtype=torch.bool)
    got = label_masking_distillation(student, teacher, labels, nobody, 1.0)
    assert torch.allclose(got, not_true_distillation(student, teacher, labels, 1.0), atol=1e-12)


def test_lmd_at_the_teacher_is_minus_log_of_the_minority_mass(logits):
    """KL = -log(1 - sum of p over majority labels other than y), averaged (BASELINES.md 7)."""
    student, _, labels = logits
    mask = torch.tensor([True, False, False, True])
    expected = 0.0
    for z, y in zip(student, labels.tolist(), strict=True):
        p = z.clone()
        p[y] = -torch.inf
        p = p.softmax(0)
        expected -= math.log(1 - sum(float(p[c]) for c in (0, 3) if c != y))
    got = label_masking_distillation(student, student, labels, mask, 1.0)
    assert float(got) == pytest.approx(expected / 6, abs=1e-12)


def test_lmd_sample_whose_label_is_the_only_minority_one_does_not_count():
    student = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([True, True, False])
    labels = torch.tensor([2, 2])
    loss = label_masking_distillation(student, torch.randn(2, 3), labels, mask, 1.0)
    (gradient,) = torch.autograd.grad(loss, student)
    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros(2, 3))


def test_lmd_gradient_is_finite_with_extreme_logits():
    student = torch.tensor([[80.0, -80.0, 0.0]], requires_grad=True)
    mask = torch.tensor([True, False, False])
    loss = label_masking_distillation(
        student, torch.tensor([[-90.0, 90.0, 0.0]]), torch.tensor([2]), mask, 1.0
    )
    (gradient,) = torch.autograd.grad(loss, student)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
