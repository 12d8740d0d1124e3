"""Checks of the modules whose weights `ldt.model.fused` uses without calling them."""

from functools import cache
from operator import attrgetter, is_

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from transformers.activations import GELUActivation

from ldt.attention import choose
from ldt.attention.derivatives import transformed
from ldt.attention.matmul import HOOKS, Linear

STREAMS = {torch.float32, torch.bfloat16, torch.float16}  # dtypes of a residual stream
PARAMETERS = {nn.Parameter}  # classes of weights that are each one piece of memory
LARGEST = 4096  # columns of a residual stream
GATE = "_ldt_gate"  # attribute of a module
DTYPE = attrgetter("dtype")
LINEAR = Linear, nn.Linear
# Parts of layers that are used without being called, with their classes; None: a class that says
# itself, by ``uncalled``, that it may be. What sharding makes of it, a subclass, does not.
END = {"": None, ".dense": LINEAR, ".LayerNorm": (nn.LayerNorm,), ".dropout": (nn.Dropout,)}
DENSE = {
    "attention": None,
    **{f"attention.output{name}": classes for name, classes in END.items()},
    "intermediate": None,
    "intermediate.dense": LINEAR,
    "intermediate.activation": (GELUActivation,),
    **{f"output{name}": classes for name, classes in END.items()},
}
ATTENTION = {
    f"attention.self.{name}{kind}": LINEAR
    for kind in ("", "_global")
    for name in ("query", "key", "value")
}
PARTS = {"whole": {"attention": None, "attention.self": None} | ATTENTION | DENSE, "dense": DENSE}


def products_dtype(backend: str, stream: torch.Tensor) -> torch.dtype | None:
    """Dtype of the matrix products of `ldt.model.fused` on hidden states [total, width]:
    autocast's, else theirs. None where its functions do not run: another attention backend than
    triton, hidden states of another dtype or not contiguous, a global hook, torch.compile,
    torch.func."""
    if torch.compiler.is_compiling():
        return None
    dtype, device = stream.dtype, stream.device
    if dtype not in STREAMS or not _runs(backend, device, dtype) or not stream.is_contiguous():
        return None
    if transformed() or _has_any_global_hook():
        return None
    low = _autocast_dtype(device.type)
    if low is None:
        return dtype
    return low if dtype == torch.float32 and low in STREAMS else None  # norms give float32 there


@cache
def _runs(backend, device, dtype):
    if backend != "triton":
        return backend == "auto" and choose(device, dtype)[0] == "triton"
    from ldt.attention.triton.tiles import PLACES

    return device.type in PLACES


def _autocast_dtype(kind):
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def gate_of(layer: nn.Module, wanted: str, x: torch.Tensor):
    """Get the `Gate` of a layer, kept in the layer; None where its parts must be called.

    Args:
        wanted: ``whole``, or ``dense`` for all but the attention itself.
        x: [total, width], the layer's input.
    """
    gates = vars(layer).setdefault(GATE, {})
    gate = gates.get(wanted)
    if gate is None or not gate.holds(layer, x):
        gates[wanted] = gate = Gate.of(layer, PARTS[wanted], x)
    return gate


class Gate:
    """Parts of a module whose weights may be used without calling them, looked up once.

    Checking that they are unchanged takes less time than looking them up.

    Args:
        root: the module.
        parts: (modules of the whole, name, part) of each.
        x: [total, width], the module's input.
    """

    def __init__(self, root, parts, x):
        self.kind, self.modules = type(root), root._modules
        self.dtype, self.place = x.dtype, x.get_device()
        self.parts = [part for *_, part in parts]
        self.kinds = list(map(type, self.parts))
        self.attentions, self.norms, self.dropouts, self.activations = (
            [part for _, name, part in parts if name == wanted]
            for wanted in ("self", "LayerNorm", "dropout", "activation")
        )
        owners = [part._parameters for part in self.parts if part._parameters]
        weights = [
            (owner, name, owner.get(name)) for owner in owners for name in ("weight", "bias")
        ]
        self.weights = [weight for *_, weight in weights]
        self.dtypes = [x.dtype] * len(weights)
        self.hooks = [getattr(part, name) for part in self.parts for name in HOOKS]
        forwards = [(vars(part), "forward", None) for part in self.parts]
        # Dictionaries, keys and what stands there.
        self.entries = list(zip(*parts, *weights, *forwards, strict=True))

    @classmethod
    def of(cls, root, wanted, x: torch.Tensor):
        """Make the gate of a module; None where a part is missing or of another class, has a hook,
        or a weight of another dtype or device than the input.

        Args:
            root, x: as of `Gate`.
            wanted: {path of a part from the root: its classes}, as in `PARTS`.
        """
        if "uncalled" not in vars(type(root)):
            return None
        modules_by_name, parts = {"": root}, []
        for path, classes in wanted.items():
            above, _, name = path.rpartition(".")
            modules = modules_by_name[above]._modules
            modules_by_name[path] = part = modules.get(name)
            kind = type(part)
            if not (kind in classes if classes else "uncalled" in vars(kind)):
                return None
            parts.append((modules, name, part))
        gate = cls(root, parts, x)
        return gate if gate._fits(x) and gate.holds(root, x) else None

    def _fits(self, x):
        for weight in self.weights:
            if type(weight) not in PARAMETERS or weight.device != x.device:
                return False
        if x.shape[1] > LARGEST or any(n.normalized_shape != x.shape[1:] for n in self.norms):
            return False
        return all(weight.is_contiguous() for weight in self.weights)

    def holds(self, root, x: torch.Tensor):
        """True if the parts of ``root`` are still those, their weights of the device and dtype of
        the input ``x``, and calling one would run its class's ``forward`` alone."""
        owners, names, values = self.entries
        return (
            x.dtype is self.dtype
            and x.get_device() == self.place
            and root._modules is self.modules
            and type(root) is self.kind
            and not any(self.hooks)
            and all(map(is_, map(dict.get, owners, names), values))
            and [*map(type, self.parts)] == self.kinds
            and all(map(is_, map(DTYPE, self.weights), self.dtypes))
            and {self.place}.issuperset(map(torch.Tensor.get_device, self.weights))
        )

    def ends(self):
        """Two pairs, of attention and of the feed-forward network: (epsilon of the normalisation,
        probability of dropout). None where the fused functions lack the activation or a dropout."""
        (norm, norm2), (drop, drop2), (activation,) = self.norms, self.dropouts, self.activations
        p, p2 = drop.p if drop.training else 0.0, drop2.p if drop2.training else 0.0
        if p >= 1 or p2 >= 1 or activation.act is not F.gelu:
            return None
        return (norm.eps, p), (norm2.eps, p2)

    def __reduce__(self):
        return type(None), ()  # a copy of the module looks up its own parts
