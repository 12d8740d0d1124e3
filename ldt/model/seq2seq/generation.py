"""Settings of a generation, which are stored beside a model's weights."""

from transformers import GenerationConfig

from ldt.errors import ModelError, first_line
from ldt.model import adapters
from ldt.model.config_file import read_table
from ldt.model.hub import GENERATION


def read_generation_config(folder, config):
    """The GenerationConfig of a folder: of generation_config.json, in old folders of config.json.

    Args:
        folder: of the model, or of an adapter, which may leave it to its base.
        config: of the model, for the ids of tokens.

    Raises:
        ModelError: the file is damaged or has a value without a meaning.
    """
    file = adapters.holder(folder, (GENERATION,)) / GENERATION
    try:
        if file.is_file():
            return GenerationConfig.from_dict(read_table(file))
        file = adapters.holder(folder, ("config.json",)) / "config.json"
        known = GenerationConfig().to_dict()
        old = {key: x for key, x in read_table(file).items() if key in known}
        return GenerationConfig.from_model_config(config.to_dict() | old)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{file}: {first_line(error)}") from error
