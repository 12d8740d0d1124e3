"""The tensors that live at one time while something runs on the CPU, and their bytes."""

import os
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Within it, ``peak`` is the most bytes that what was computed there held at a time.

    What LDT_CHECK_RECOMPUTE would keep is not: it is off.
    """

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._storages = {}
        self._unchecked = patch.dict(os.environ, {"LDT_CHECK_RECOMPUTE": "0"})

    def __enter__(self):
        self._unchecked.start()
        return super().__enter__()

    def __exit__(self, *error):
        self._unchecked.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(self.sizes()))
        return found

    def sizes(self, besides=()):
        """Bytes of each tensor that was computed within and lives now, ``besides`` some."""
        kept = {key: item for key, item in self._storages.items() if not item[0].expired()}
        self._storages = kept
        known = {tensor.untyped_storage()._cdata for tensor in besides}
        return [size for key, (_, size) in kept.items() if key not in known]
