"""Calibration against torch's optimiser, a grid, and logits whose probabilities are known."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ldt.tasks.decisions.calibration import CALIBRATORS, LEAST, Beta, Platt, Temperature


def classes(documents=500, factor=2.5, seed=0):
    """Logits [documents, 3] that are a factor too sure, and the right classes."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(documents, 3)) * 2
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = (p.cumsum(1) < rng.random((documents, 1))).sum(1)
    return factor * logits, right


def labels(documents=4000, seed=0):
    """Logits [documents, 2] of labels that are there less often than they say."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(documents, 2)) * 2
    true = logits * [0.4, 0.7] + [-1, 0.5]
    return logits, rng.random(logits.shape) < 1 / (1 + np.exp(-true))


def by_torch(features, targets, weights):
    """Weights of a logistic regression on features [n, documents] by L-BFGS."""
    x = torch.tensor(features.T)
    weights = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-12, tolerance_change=0)

    def loss():
        optimizer.zero_grad()
        logits = x @ weights[:-1] + weights[-1]
        value = F.binary_cross_entropy_with_logits(logits, torch.tensor(targets))
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach().numpy()


def soft(there):
    n = there.sum()
    return np.where(there, (n + 1) / (n + 2), 1 / (len(there) - n + 2))


def test_the_temperature_has_the_least_cross_entropy():
    logits, right = classes()
    found = Temperature.fit(logits, right).temperature
    grid = np.geomspace(0.1, 10, 2001)
    losses = [F.cross_entropy(torch.tensor(logits / t), torch.tensor(right)).item() for t in grid]
    assert found == pytest.approx(grid[np.argmin(losses)], rel=3e-3)
    assert found == pytest.approx(2.5, rel=0.15)


def test_a_temperature_stays_in_its_range():
    logits, _ = classes(20)
    assert Temperature.fit(logits, logits.argmax(1)).temperature == pytest.approx(0.1)
    assert Temperature.fit(logits, logits.argmin(1)).temperature == pytest.approx(10)
    assert Temperature.fit(logits[:0], np.zeros(0, int)).temperature == 1


def test_a_temperature_changes_no_answer():
    logits, right = classes()
    p = Temperature.fit(logits, right).apply(logits)
    assert np.allclose(p.sum(1), 1)
    assert np.array_equal(p.argmax(1), logits.argmax(1))


def test_platt_is_the_regression_that_torch_finds():
    logits, there = labels()
    found = Platt.fit(logits, there)
    for number in range(2):
        column = logits[:, number]
        wanted = by_torch(column[None], soft(there[:, number]), [1.0, 0.0])
        assert np.allclose(found.weights[number], wanted, atol=1e-6)
        p = found.apply(logits)[:, number]
        assert np.allclose(p, 1 / (1 + np.exp(-(column * wanted[0] + wanted[1]))), atol=1e-6)
    assert np.allclose(found.weights, [[0.4, -1], [0.7, 0.5]], atol=0.15)


def test_beta_is_the_regression_that_torch_finds():
    logits, there = labels()
    found = Beta.fit(logits, there)
    for number in range(2):
        p = 1 / (1 + np.exp(-logits[:, number]))
        features = np.stack([np.log(p), -np.log(1 - p)])
        wanted = by_torch(features, soft(there[:, number]), [1.0, 1.0, 0.0])
        assert np.allclose(found.weights[number], wanted, atol=1e-5)


def test_beta_that_changes_nothing_gives_the_probabilities():
    logits = np.array([[-700.0], [-30], [-1], [0], [2], [700]])
    assert np.allclose(Beta([[1.0, 1.0, 0.0]]).apply(logits), 1 / (1 + np.exp(-logits)))


def test_platt_knows_what_a_probability_was_before():
    platt = Platt([[0.5, 1.0], [2.0, -3.0], [0.0, -1.0], [0.0, -1.0]])
    probabilities = np.array([0.1, 0.7, 0.2, 0.3])  # the last two always become 0.2689
    before = platt.before(probabilities)
    logits = np.log(before[:2]) - np.log1p(-before[:2])
    again = platt.apply(np.append(logits, [5.0, -5.0])[None])[0]
    assert again == pytest.approx([0.1, 0.7, 0.2689, 0.2689], abs=1e-4)
    assert before[2:].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", [Platt, Beta])
def test_the_order_of_documents_is_never_turned_round(kind):
    logits, there = labels(200)
    found = kind.fit(logits, ~there)  # the higher the logit, the less often it is there
    for *slopes, _ in found.weights:
        assert min(slopes) >= 0
    assert (np.diff(found.apply(np.sort(logits, 0)), axis=0) >= 0).all()


@pytest.mark.parametrize("kind", [Platt, Beta])
def test_a_label_that_few_documents_have_or_lack_keeps_its_probabilities(kind):
    logits, there = labels(100)
    for count in (0, 1, LEAST - 1, 101 - LEAST, 100):
        there[:, 1] = np.arange(100) < count
        found = kind.fit(logits, there)
        assert np.allclose(found.apply(logits)[:, 1], 1 / (1 + np.exp(-logits[:, 1])))
    there[:, 1] = np.arange(100) < LEAST
    assert kind.fit(logits, there).weights[1] != list(kind.keeps)


@pytest.mark.parametrize("kind", [Platt, Beta])
def test_a_label_that_is_told_without_a_mistake_has_finite_weights(kind):
    logits = np.linspace(-3, 3, 40)[:, None]
    found = kind.fit(logits, logits > 0)
    assert np.isfinite(found.weights).all()
    assert 0 < found.apply(logits).min() < found.apply(logits).max() < 1


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_calibration_is_made_of_its_facts(name):
    logits, there = classes() if name == "temperature" else labels()
    found = CALIBRATORS[name].fit(logits, there)
    assert CALIBRATORS[name](**found.facts()) == found


@pytest.mark.parametrize("kind", CALIBRATORS.values())
def test_logits_are_finite(kind):
    with pytest.raises(ValueError, match="finite"):
        kind.fit(np.array([[np.inf, 0.0]]), np.zeros((1, 2), bool))
