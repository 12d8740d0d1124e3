"""The kernels that attend by a pattern, as modules with a fault in one of them."""

import importlib
import re
from pathlib import Path

from ldt.attention.triton import attention

# Each imports some of those before it.
MODULES = ["splits", "pattern", "blocks", "forward", "backward", "attention"]


def mutant(folder, package, name, old, new):
    """The modules by name, of a package with ``new`` for ``old``, which is there, in one of them.

    Args:
        folder: of the path of imports, to write the package to.
        package: its name.
        name: of the module with a fault.
    """
    (folder / package).mkdir()
    for module in MODULES:
        source = (Path(attention.__file__).parent / f"{module}.py").read_text("utf-8")
        if module == name:
            assert old in source
            source = source.replace(old, new) if old else source
        names = "|".join(MODULES)
        source = re.sub(rf"ldt\.attention\.triton\.({names}) ", rf"{package}.\1 ", source)
        source = source.replace("ldt.attention.triton import pattern", f"{package} import pattern")
        (folder / package / f"{module}.py").write_text(source, "utf-8")
    return {module: importlib.import_module(f"{package}.{module}") for module in MODULES}
