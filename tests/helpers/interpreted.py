"""Triton's interpreter, mended where it computes other numbers than a GPU; kernels know no other.

`install` mends three things: a product of bfloat16, which the interpreter takes for integers;
float32 to bfloat16, of which it cuts bits off; and loops up to a number that was loaded, of which
numpy 2.4 makes no int. And it sets the language up once a launch and module, not at every call
within, which takes a third of the time. A `Launch` that is called with other kinds of tensors than
before raises, as the kernel that it would hold on a GPU is none for them.
"""

import numpy as np
import pretended
import torch


def install():
    """Mends the interpreter, and lets kernels run on the CPU and on `pretended.DEVICE`."""
    import triton.language as tl
    from triton.runtime import interpreter

    from ldt.attention.triton import tiles
    from ldt.attention.triton.launch import Launch

    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    dot, cast, patch_tensor = builder.create_dot, builder.cast_impl, interpreter._patch_lang_tensor

    def widened(x):
        """Of bfloat16, whose products are exact in float32."""
        if x.dtype.scalar != tl.bfloat16:
            return x
        return handle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, *rest):
        return dot(self, widened(a), widened(b), *rest)

    def cast_impl(self, src, dst_type):
        if src.dtype.scalar != tl.float32 or dst_type.scalar != tl.bfloat16:
            return cast(self, src, dst_type)
        rounded = torch.from_numpy(np.ascontiguousarray(src.data)).bfloat16().view(torch.int16)
        return handle(rounded.numpy().view(np.uint16).reshape(src.data.shape), tl.bfloat16)

    def patch(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    patch_language, done = interpreter._patch_lang, set()  # modules of the launch, by their globals

    def patch_once(fn):
        """What a launch finds is put back at its end; what it calls finds the same patched."""
        module = id(fn.__globals__)
        if module in done:
            return interpreter._LangPatchScope()
        scope = patch_language(fn)
        if not done:
            restore = scope.restore
            scope.restore = lambda: (restore(), done.clear())
        done.add(module)
        return scope

    launch = Launch.__call__

    def checked(self, *tensors):
        kinds = [x is None or (x.get_device(), x.dtype) for x in tensors]
        before = vars(self).setdefault("kinds", kinds)
        assert before == kinds, f"{self.kernel.kernel.__name__} of {kinds}, before of {before}"
        return launch(self, *tensors)

    Launch.__call__ = checked
    builder.create_dot, builder.cast_impl = create_dot, cast_impl
    interpreter._patch_lang = patch_once
    interpreter._patch_lang_tensor = patch
    tiles.PLACES += ["cpu", pretended.DEVICE.type]
