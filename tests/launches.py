"""Calls whose kernels `test_compile.py` compiles: one function per operator in `ldt.kernels`.

Each takes the compute capability and gives pairs of a label and a function without arguments that
launches kernels, forward and backward, on tensors of any device.
"""

import torch

from ldt.attention import Documents

BAND = {
    # label: dtype, dims of a head, globals, gaps, dropout
    "bf16 64": (torch.bfloat16, 64, False, 1, 0.0),
    "bf16 64, globals": (torch.bfloat16, 64, True, 1, 0.0),
    "bf16 64, globals, gaps, dropout": (torch.bfloat16, 64, True, (1, 4), 0.1),
    "bf16 128, globals, dropout": (torch.bfloat16, 128, True, 1, 0.1),
    "fp32 64, globals, dropout": (torch.float32, 64, True, 1, 0.1),
    "fp32 128, globals": (torch.float32, 128, True, 1, 0.0),
}


def band(capability):
    from ldt.kernels import band, band_tiles

    band_tiles._generation = lambda device: capability // 10
    documents = Documents(torch.tensor([0, 512, 1024]))
    silent = Documents(documents.cu_seqlens, None, torch.arange(1024) % 512 == 0)
    for label, (dtype, dim, globals, gaps, dropout) in BAND.items():
        where = silent if globals else documents

        def call(dtype=dtype, dim=dim, where=where, gaps=gaps, dropout=dropout):
            q, k, v = torch.empty(1024, 3, 2, dim, dtype=dtype).unbind(1)
            pattern = band.Band(256, False, (gaps,) * 2 if gaps == 1 else gaps, dropout)
            codes = band.token_codes(where, 2, 0) if dropout else (None, None)
            rest = band.Tables.of(where), pattern
            out, lse = band.forward(q, k, v, *rest, *codes)
            band.backward(out, q, k, v, out, lse, *rest, *codes)

        yield label, call
