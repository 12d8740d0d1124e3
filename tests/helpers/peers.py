"""Comparisons of a model with the same model of transformers."""

import torch


def assert_close(found, expected, tolerance, what, scale=None):
    assert found.shape == expected.shape, what
    scale = expected.abs().max() if scale is None else scale
    error = (found - expected).abs().max()
    assert error <= tolerance * scale, f"{what}: error {error:.2e} of {scale:.2e}"


def assert_gradients_equal(ours, theirs, tolerance):
    """Each parameter's gradient; where one of the two has none, the other's is zero or none.

    Relative to the largest gradient of the module, as that of a key's bias is zero but for noise.
    Where all of a module's are zero, noise may be as large as the rounding of the model's largest.
    """
    expected = dict(theirs.named_parameters())
    largest = max(p.grad.abs().max() for p in expected.values() if p.grad is not None)
    noise = torch.finfo(largest.dtype).eps * largest / tolerance
    scales = {}
    for name, parameter in expected.items():
        module = name.rpartition(".")[0]
        size = parameter.grad.abs().max() if parameter.grad is not None else 0
        scales[module] = max(scales.get(module, 0), size)
    for name, parameter in ours.named_parameters():
        pair = parameter.grad, expected[name].grad
        if any(gradient is None for gradient in pair):
            assert not any(gradient is not None and gradient.any() for gradient in pair), name
        else:
            scale = max(scales[name.rpartition(".")[0]], noise)
            assert_close(*pair, tolerance, name, scale)
