"""A model's layers in less precise arithmetic: half the memory or a quarter, and faster."""

from copy import deepcopy
from functools import cache, partial
from itertools import chain

import torch
from torch import nn

from ldt.attention.matmul import has_bfloat16, is_plain, seconds

PRECISIONS = ("fp32", "bf16", "int8")
SPEEDUP = 3.0  # by which packed weights must be faster: more than noise makes of equal speeds


def packed(weight):
    """A weight [in, out] int8 for `product`; None where it is fast as it is.

    Without VNNI instructions `torch._int_mm` takes 60 times as long as a product in float32, while
    oneDNN's product with a weight that it has laid out itself is faster than that.
    """
    return _pack(weight) if _packing_pays() else None


def product(rows, weight, layout=None):
    """rows [n, in] int8 by a weight [in, out] int8: [n, out] float32, rounded from exact sums.

    Args:
        layout: the weight `packed`.
    """
    if layout is None:
        return torch._int_mm(rows, weight).float()
    float32 = torch.float32, "none", [], ""  # of the output, with nothing done to it
    return torch.ops.onednn.qlinear_pointwise(rows, 1.0, 0, *layout, None, 1.0, 0, *float32)


@cache
def largest():
    """The largest weight whose products with int8 rows are added up exactly.

    127, but 64 on a CPU without VNNI instructions, where the library moves the rows to 0 to 255
    and adds two products at a time in 16 bits: those hold 2 * 255 * 64, and are cut off above.
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
    """A weight in the layout of oneDNN's products, and the scales and zeros that these want."""
    outputs = weight.shape[1]
    layout = torch.ops.onednn.qlinear_prepack(weight.T.contiguous(), None)
    return layout, torch.ones(outputs), torch.zeros(outputs, dtype=torch.int64)


class Int8Linear(nn.Module):
    """A linear layer with weights of 8 bits, one scale an output; inputs get one scale a row.

    The products are exact sums of integers; only the rounding of both factors differs from the
    float layer. Where the CPU would cut such sums off (`largest`), weights have 7 bits. No
    gradients.

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

    def forward(self, x):
        """[..., in] -> [..., out]."""
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
    """[n, 1], what the largest entry of each row is divided by to become ``largest``."""
    high = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
    return high.clamp(min=1e-30) / largest


def automatic(device):
    """The precision of "auto" on a torch device: bf16 on a GPU that multiplies it, else fp32.

    Not on a CPU, whose answers stay what they are, byte for byte.
    """
    if device.type != "cuda":
        return "fp32"
    with torch.cuda.device(device):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def lower(model, precision):
    """Change ``model`` for answering in another precision, in place.

    Args:
        precision: a name in `PRECISIONS`. ``bf16`` turns all weights and activations; ``int8`` the
            products of the layers, on the CPU, but not those of the global projections. The rest
            is then in bf16 where the CPU has instructions for it, else in fp32.

    Raises:
        ValueError: int8 on another device, or of a model that is no encoder with a head.
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
    """A copy of ``model`` for answering in another precision; tensors that both have are shared.

    Args:
        precision: as for `lower`, which raises the same.
    """
    memo = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    copy = deepcopy(model, memo)
    lower(copy, precision)
    return copy


def lowered_in(model, precision, memory):
    """`lowered`, with the weights that it makes in memory that several processes map. Linux.

    The memory is a file without a name, which is gone with its last process. The first that comes
    writes them and seals the memory; others wait for that. Where it dies in the middle, the memory
    has no seal, and the next one writes anew.

    Args:
        memory: descriptor of a file of `os.memfd_create` that can be sealed, one a model and
            precision, empty at first.
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
    """Names and tensors of a module, a tensor of several names under each of them."""
    every = {"remove_duplicate": False}
    return chain(model.named_parameters(**every), model.named_buffers(**every))


def _without_memory(tensor):
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, tensor.requires_grad)
    return empty


def _int8_linears(layer):
    """(module, name, `Int8Linear` that is to stand there) of a layer's projections."""
    for module in layer.products():
        for name, child in module.named_children():
            if is_plain(child) and not name.endswith("_global"):
                yield module, name, Int8Linear(child)
