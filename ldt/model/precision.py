"""Lower-precision inference: bf16 and int8."""

from copy import deepcopy
from functools import cache, partial
from itertools import chain

import torch
from torch import nn

from ldt.attention.matmul import has_bfloat16, is_plain, seconds

PRECISIONS = ("fp32", "bf16", "int8")
SPEEDUP = 3.0  # by which packed weights must be faster: more than noise makes of equal speeds


def packed(weight):
    """Pack a weight [in, out] int8 into oneDNN's layout: (layout, scales, zero points) to give to
    `product` beside the weight. None without oneDNN, or if products are not 3 times as fast by
    it (measured once)."""
    return _pack(weight) if _packing_pays() else None


def product(rows, weight, layout=None):
    """Multiply rows [n, in] int8 by a weight [in, out] int8 exactly: [n, out] float32. ``layout``
    is the result of `packed` for this weight."""
    if layout is None:
        return torch._int_mm(rows, weight).float()
    float32 = torch.float32, "none", [], ""  # of the output, with nothing done to it
    return torch.ops.onednn.qlinear_pointwise(rows, 1.0, 0, *layout, None, 1.0, 0, *float32)


@cache
def largest() -> int:
    """Largest absolute value of int8 weights whose products with int8 rows are summed exactly.

    127, or 64 on a CPU without VNNI, where the library shifts rows to 0..255 and adds two products
    in 16 bits, which saturate above 2 * 255 * 64.
    """
    rows, weight = (torch.full(shape, 127, dtype=torch.int8) for shape in ((32, 64), (64, 32)))
    return 127 if (product(rows, weight, packed(weight)) == 64 * 127**2).all() else 64


@cache
def _packing_pays():
    rows, weight = (torch.ones(shape, dtype=torch.int8) for shape in ((64, 256), (256, 256)))
    try:
        layout = _pack(weight)
        product(rows, weight, layout)
    except (AttributeError, RuntimeError):  # of a torch without oneDNN
        return False
    plain, packed = (
        min(seconds(partial(product, rows, weight, each)) for _ in range(3))
        for each in (None, layout)
    )
    return plain > SPEEDUP * packed


def _pack(weight):
    outputs = weight.shape[1]
    layout = torch.ops.onednn.qlinear_prepack(weight.T.contiguous(), None)
    return layout, torch.ones(outputs), torch.zeros(outputs, dtype=torch.int64)


class Int8Linear(nn.Module):
    """Linear layer with int8 weights, one scale per output, and inputs quantised with one scale per
    row.

    Products are exact integer sums; only the rounding of both factors differs from the float layer.
    Weights have 7 bits where the CPU would saturate (`largest`). No gradients.

    Args:
        linear: the float layer.

    Source: symmetric dynamic quantisation, as in Zafrir et al. 2019 (arXiv:1910.06188), section 2,
    with scales per row and per output.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scale = _scale(weight, largest())
        self.register_buffer("weight", (weight / scale).round().to(torch.int8).T)
        self.register_buffer("scale", scale.squeeze(1))
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias)
        self._layout = None  # of the weight for its products, in this process

    def forward(self, x: torch.Tensor):
        """Multiply by the int8 weight and add the bias: [..., in] -> [..., out], in the
        dtype of x."""
        rows = x.flatten(0, -2).float()
        scale = _scale(rows, 127)
        if self._layout is None:
            self._layout = packed(self.weight)
        total = product((rows / scale).round_().to(torch.int8), self.weight, self._layout)
        out = total.mul_(scale).mul_(self.scale)
        if self.bias is not None:
            out = out.add_(self.bias)
        return out.to(x.dtype).unflatten(0, x.shape[:-1])

    def __getstate__(self):
        return self.__dict__ | {"_layout": None}  # which cannot be copied


def _scale(rows, largest):
    """[n, 1] divisors that map the largest entry of each row to ``largest``."""
    high = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
    return high.clamp(min=1e-30) / largest


def automatic(device: torch.device) -> str:
    """Precision of "auto" on a device: ``bf16`` on a GPU that supports it, else ``fp32``.

    CPU answers always stay in fp32, so that they do not depend on the machine.
    """
    if device.type != "cuda":
        return "fp32"
    with torch.cuda.device(device):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def lower(model: nn.Module, precision: str) -> None:
    """Lower a model's precision for inference, in place.

    Args:
        model: model in float32.
        precision: a name in `PRECISIONS`. ``bf16`` converts all weights and activations; ``int8``
            quantises the layers' linear products on the CPU except the global projections, and
            computes the rest in bf16 if the CPU supports it, else in fp32; ``fp32`` changes
            nothing.

    Raises:
        ValueError: another name; int8 on another device, or for a model without encoder layers.
    """
    if precision == "bf16":
        model.to(torch.bfloat16)
    elif precision == "int8":
        if model.device.type not in ("cpu", "meta"):
            raise ValueError(
                f"int8 runs on the CPU, the model is on {model.device}; bf16 runs there"
            )
        layers = [layer for layer in model.modules() if hasattr(layer, "products")]
        if not layers:
            raise ValueError(
                f"int8 is for encoders, not for {type(model).__name__}; bf16 is for all"
            )
        places = [place for layer in layers for place in _int8_linears(layer)]
        for module, name, _ in places:  # what is replaced takes no more memory
            setattr(module, name, None)
        if has_bfloat16():  # before the scales of the weights are part of it
            model.to(torch.bfloat16)
        for module, name, linear in places:
            setattr(module, name, linear)
    elif precision != "fp32":
        raise ValueError(f"precision must be {', '.join(PRECISIONS)}, got {precision!r}")


def lowered(model, precision):
    """Copy of a model in a precision of `PRECISIONS`, sharing unchanged tensors; raises as
    `lower`."""
    memo = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    copy = deepcopy(model, memo)
    lower(copy, precision)
    return copy


def lowered_in(model: nn.Module, precision: str, memory: int) -> nn.Module:
    """Copy of a model as by `lowered`, with the new weights in memory shared by several processes
    (Linux).

    The memory is an anonymous file that disappears with its last process. The first process writes
    the weights and seals the file; the others wait. If it dies before, the next one writes them.

    Args:
        model, precision: as for `lowered`.
        memory: descriptor of a sealable, initially empty file from `os.memfd_create`, one per model
            and precision.
    """
    import fcntl  # which Windows lacks

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
    named = dict(_named(model))
    path = f"/proc/self/fd/{memory}"
    with open(path, "r+b") as file:  # a description of its own, so that the lock is one as well
        fcntl.flock(file, fcntl.LOCK_EX)
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
            tensors = {
                name: tensor.detach()
                for name, tensor in _named(lowered(model, precision))
                if name not in named or named[name].data_ptr() != tensor.data_ptr()
            }
            file.truncate(0)
            torch.save(tensors, file)
            del tensors
            file.flush()
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    weights = named | torch.load(path, mmap=True, weights_only=True)
    # A copy without memory is lowered for its shape, and gets the weights.
    memo = {id(each): _without_memory(each) for each in named.values()}
    copy = deepcopy(model, memo)
    lower(copy, precision)
    for name, empty in list(_named(copy)):
        holder, _, leaf = name.rpartition(".")
        tensor = weights[name].detach()
        if isinstance(empty, nn.Parameter):
            tensor = nn.Parameter(tensor, empty.requires_grad)
        setattr(copy.get_submodule(holder), leaf, tensor)
    return copy


def _named(model):
    """Names and tensors of a module; shared tensors appear under each name."""
    every = {"remove_duplicate": False}
    return chain(model.named_parameters(**every), model.named_buffers(**every))


def _without_memory(tensor):
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, tensor.requires_grad)
    return empty


def _int8_linears(layer):
    """(module, name, `Int8Linear` to put there) of a layer's projections."""
    for module in layer.products():
        for name, child in module.named_children():
            if is_plain(child) and not name.endswith("_global"):
                yield module, name, Int8Linear(child)
