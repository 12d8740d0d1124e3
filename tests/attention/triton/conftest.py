import pytest


@pytest.fixture(autouse=True)
def on_the_device_of_the_kernels(request):
    """Every test here hands kernels tensors of their device, or fails."""
    if not request.node.get_closest_marker("plain"):
        request.getfixturevalue("kernels_device")
