"""Pages of the site that are generated from the code when it is built."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import reference  # noqa: E402
from mkdocs.structure.files import File  # noqa: E402

PAGES = {
    "reference/recipe.md": reference.recipe_page,
    "reference/cli.md": reference.cli_page,
    "reference/api.md": reference.api_page,
}


def on_files(files, config):
    """Add the generated pages to the files of the site."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files
