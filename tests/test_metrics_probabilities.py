"""Softmax and sigmoid against torch in float64, at scores that overflow an exponential too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from electra.metrics.probabilities import sigmoid, softmax


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_probabilities_are_torchs(dtype: type[np.floating], scale: float) -> None:
    scores = (scale * np.random.default_rng(0).normal(size=(3, 50, 7))).astype(dtype)
    exact = torch.from_numpy(scores).double()
    np.testing.assert_allclose(softmax(scores), exact.softmax(-1).numpy(), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(sigmoid(scores), exact.sigmoid().numpy(), rtol=1e-12, atol=1e-300)
    assert softmax(scores).dtype == sigmoid(scores).dtype == np.float64


def test_probabilities_by_hand() -> None:
    np.testing.assert_allclose(softmax(np.log(np.array([[1.0, 2.0, 5.0]]))), [[0.125, 0.25, 0.625]], rtol=1e-15)
    np.testing.assert_allclose(sigmoid(np.array([-np.log(3.0), 0.0, np.log(3.0)])), [0.25, 0.5, 0.75], rtol=1e-15)
