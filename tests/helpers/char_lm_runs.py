"""A text, and recipes of character models on it."""

import random
from pathlib import Path

from ldt.recipe import recipe as recipes


def write_text():
    """Words in any order, to the file text of the current directory."""
    generator = random.Random(0)
    words = ["the ", "party ", "of ", "first ", "part.\n"]
    Path("text").write_text("".join(generator.choice(words) for _ in range(500)), "utf-8")


def make(*overrides, name="r.yaml", phases="[{steps: 4}, {}]"):
    """A recipe of two phases of 4 steps."""
    Path(name).write_text(
        f"""
task: {{name: charlm, phases: {phases}}}
model:
  window: [4, 8]
  config:
    hidden_size: 16
    num_hidden_layers: 2
    num_attention_heads: 2
    intermediate_size: 32
    attention_dilation: [1, [1, 2]]
    hidden_dropout_prob: 0.1
data: {{train: text, eval_fraction: 0.05, test_fraction: 0.05, max_length: 32}}
training:
  learning_rate: 0.01
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  save_strategy: steps
  save_steps: 2
"""
    )
    return recipes.load(name, overrides, command="pretrain")
