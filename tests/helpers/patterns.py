"""Random packed batches and attention patterns, and what a backend makes of them."""

import torch
from hypothesis import strategies as st

from ldt.attention import Layout

HEADS, DIM = 2, 4
# What sums in float32 of some hundred numbers of about 1 are off in any order. Where they cancel,
# the definition may be off by less by chance; factors rounded to TF32 are off by 100 times more.
SUMS = 64 * torch.finfo(torch.float32).eps

windows = st.sampled_from([2, 4, 6, 32, 126, 130, 256, 512])
dilations = st.one_of(st.just(1), st.sampled_from([2, 3, (1, 2), (4, 1), (5, 7)]))
dropouts = st.sampled_from([0.0, 0.0, 0.4])


@st.composite
def batches(draw, globals=True, longest=700):
    """Packed documents with holes and global tokens, some of them none, one, many, all.

    Returns:
        `Layout` and the torch generator to draw their numbers from.
    """
    short, border = st.integers(1, 40), st.sampled_from([95, 96, 97, 127, 128, 129])
    lengths = draw(st.lists(st.one_of(short, border, st.integers(100, 300)), max_size=3))
    lengths.append(draw(st.one_of(short, border, st.integers(100, longest))))
    total = sum(lengths)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    keep = is_global = None
    if draw(st.booleans()):
        keep = torch.rand(total, generator=generator) < draw(st.sampled_from([0.5, 0.9, 0.99]))
    share = draw(st.sampled_from([None, 0.01, 0.3, 1.0])) if globals else None
    if share is not None:
        is_global = torch.rand(total, generator=generator) < share
        is_global = is_global if keep is None else is_global & keep
    layout = Layout(torch.tensor([0, *lengths]).cumsum(0), keep, is_global)
    return layout, generator


@st.composite
def patterns(draw, longest=700):
    """A batch of `batches`, and the arguments of a sliding_window_attention that suit it."""
    causal = draw(st.sampled_from([False, False, True]))
    layout, generator = draw(batches(globals=not causal, longest=longest))
    arguments = {
        "window": draw(windows),
        "dilation": draw(dilations),
        "causal": causal,
        "dropout": draw(dropouts),
        "seed": draw(st.integers(-(2**40), 2**40)),
    }
    return layout, generator, arguments


def offsets(arguments):
    """Number of places in a window, itself included."""
    sides = 1 if arguments.get("causal") else 2
    return sides * (arguments["window"] // 2) + 1


def pack(lengths, globals=(), holes=()):
    """Documents of these lengths, with global tokens and holes at these packed places."""
    keep, is_global = torch.ones(sum(lengths)).bool(), torch.zeros(sum(lengths)).bool()
    keep[list(holes)], is_global[list(globals)] = False, True
    masks = (keep if holes else None), (is_global if globals else None)
    return Layout(torch.tensor([0, *lengths]).cumsum(0), *masks)


def rand(*shape, generator, dtype=torch.float64, scale=1.0, rounded=torch.float64):
    """Normals that ask for a gradient, the same numbers in every dtype that holds ``rounded``."""
    x = torch.randn(*shape, dtype=torch.float64, generator=generator) * scale
    return x.to(rounded).to(dtype).requires_grad_()


def band(
    module,
    layout,
    generator,
    dtype=torch.float64,
    heads=HEADS,
    dim=DIM,
    relative=False,
    bias=False,
    rounded=torch.float64,
    **arguments,
):
    """Output and all gradients of a module's sliding windows on inputs of this generator."""
    shape, kind = (layout.total_tokens, heads, dim), {"dtype": dtype, "rounded": rounded}
    q, k, v, up = (rand(*shape, generator=generator, **kind) for _ in range(4))
    leaves = q, k, v
    if relative:
        query = rand(*shape, generator=generator, **kind)
        table = rand(heads, offsets(arguments), dim, generator=generator, **kind)
        arguments["relative"] = query, table
        leaves += query, table
    if bias:
        most = max(1, *layout.cu_globals.diff().tolist())
        arguments["bias"] = rand(layout.total_tokens, heads, most, generator=generator, **kind)
        leaves += (arguments["bias"],)
    out = module.sliding_window_attention(q, k, v, layout, **arguments)
    return out, *torch.autograd.grad(out, leaves, up)


def rows(
    run,
    layout,
    generator,
    dtype=torch.float64,
    heads=HEADS,
    dim=DIM,
    rounded=torch.float64,
    **arguments,
):
    """Output and all gradients of a global_attention function on inputs of this generator."""
    count, width = len(layout.global_index), heads * dim
    kind = {"generator": generator, "dtype": dtype, "rounded": rounded}
    q, up = (rand(count, heads, dim, **kind) for _ in range(2))
    x = rand(layout.total_tokens, width, **kind)
    key, value = (
        (rand(width, width, scale=width**-0.5, **kind), rand(width, **kind)) for _ in range(2)
    )
    out = run(q, x, key, value, layout, **arguments)
    leaves = (q, x, key[0], *value)  # the key bias cancels in the softmax
    return out, *torch.autograd.grad(out, leaves, up)


def same(ours, theirs, tolerance=1e-11):
    """True if all tensors of two sequences are equal, up to rounding."""
    return all(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance)
        for a, b in zip(ours, theirs, strict=True)
    )


def as_close(module, layout, dtype, seed=0, factor=2, **arguments):
    """Check that a module's band in ``dtype`` is about as far from float64 as the definition.

    Returns:
        The (name, error, allowed) of every tensor that is further off; empty when all is well.
    """
    from ldt.attention import reference

    def run(module, dtype, rounded):
        generator = torch.Generator().manual_seed(seed)
        return band(module, layout, generator, dtype, rounded=rounded, **arguments)

    names = "out", "dq", "dk", "dv"
    return further(names, run, reference, module, dtype, factor)


def rows_as_close(run, layout, dtype, seed=0, factor=2, **arguments):
    """`as_close` of a global_attention function."""
    from ldt.attention import reference

    def found(run, dtype, rounded):
        generator = torch.Generator().manual_seed(seed)
        return rows(run, layout, generator, dtype, rounded=rounded, **arguments)

    names = "out", "dq", "dx", "dwk", "dwv", "dbv"
    return further(names, found, reference.global_attention, run, dtype, factor, least=SUMS)


def further(names, run, definition, ours, dtype, factor=2, least=0.0):
    """What of ``ours`` is further from float64 than the definition on the same numbers.

    The definition is computed in float32 at least, and its results alone are rounded to ``dtype``.

    Args:
        names: of the tensors, and of some that may be missing at the end.
        run: gives them for an implementation, a dtype, and the dtype that inputs are rounded to.
        definition, ours: implementations.
        factor: how often the error of the definition is allowed. Half precision that rounds
            between two products needs more than 2.
        least: what sums in float32 cost.

    Returns:
        (name, error, allowed) of each that is.
    """
    exact = run(definition, torch.float64, dtype)
    dense = run(definition, torch.promote_types(dtype, torch.float32), dtype)
    found = []
    tensors = zip(exact, run(ours, dtype, dtype), dense, strict=True)
    for name, (true, a, b) in zip(names, tensors, strict=False):
        error, allowed = ((x.to(dtype).double() - true).abs().max().item() for x in (a, b))
        allowed *= factor
        if dtype == torch.float32:  # sums in another order
            allowed += torch.finfo(dtype).eps * true.abs().max().item()
        allowed += least
        if not error <= allowed:
            found.append((name, error, allowed))
    return found
