"""Triton's interpreter sets the language up once a launch and module, not at every call within."""

from importlib.util import find_spec

if find_spec("triton"):
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang
    _done = set()  # modules of the launch under way, by their globals

    def _patch_once(fn):
        """What a launch finds is put back at its end; what it calls finds the same patched."""
        module = id(fn.__globals__)
        if module in _done:
            return interpreter._LangPatchScope()
        scope = _patch(fn)
        if not _done:
            restore = scope.restore
            scope.restore = lambda: (restore(), _done.clear())
        _done.add(module)
        return scope

    interpreter._patch_lang = _patch_once
