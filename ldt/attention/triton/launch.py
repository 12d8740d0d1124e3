"""The launch of a Triton kernel, on the device that its tensors are on."""

from contextlib import nullcontext

import torch


class launched:
    """Decorator of a kernel that is launched: ``kernel[grid](...)`` runs where its tensors are.

    Triton launches on the current device of torch, and the layers of a model may lie on several.
    """

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        run = self.kernel[grid]

        def launch(*args, **options):
            device = next(x.device for x in args if isinstance(x, torch.Tensor))
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                return run(*args, **options)

        return launch
