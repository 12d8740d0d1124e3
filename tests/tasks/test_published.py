"""Training's evaluation and `ldt evaluate` of the published answers give the same digits."""

import json
import random
from types import SimpleNamespace

import pytest

from ldt import benchmarks
from ldt.benchmarks.formats import read
from ldt.recipe.recipe import DataSection
from ldt.tasks import TASKS
from ldt.tasks.base import score_all

TEXTS = ["red fox", "The red fox jumps.", "yes", "no", "blue whale", "old man and the sea"]
FACTS = [["t", 0], ["t", 1], ["u", 0]]
CONTEXT = " ".join(TEXTS)
RIGHT = [random.Random(number).choice(TEXTS) for number in range(23)]


def squad(right):
    answers = [{"text": right, "answer_start": CONTEXT.index(right)}]
    return {"question": "?", "answers": answers}


GOLD = {
    "squad": {
        "data": [
            {"paragraphs": [{"context": CONTEXT, "qas": [squad(right) | {"id": str(number)}]}]}
            for number, right in enumerate(RIGHT)
        ]
    },
    "triviaqa": {
        "Domain": "Wikipedia",
        "Data": [
            {
                "QuestionId": str(number),
                "Question": "?",
                "Answer": {"NormalizedAliases": ["none"], "HumanAnswers": [right]},
                "EntityPages": [{"Filename": "a.txt"}],
            }
            for number, right in enumerate(RIGHT)
        ],
    },
    "wikihop": [
        {"id": str(number), "query": "?", "candidates": TEXTS, "supports": [], "answer": right}
        for number, right in enumerate(RIGHT)
    ],
    "hotpotqa": [
        {
            "_id": str(number),
            "question": "?",
            "context": [["t", ["One.", "Two."]], ["u", ["Three."]]],
            "answer": right,
            "supporting_facts": random.Random(number).sample(FACTS, 2),
        }
        for number, right in enumerate(RIGHT)
    ],
}
CONFIG = SimpleNamespace(no_answer_threshold=None)


@pytest.mark.parametrize("name", GOLD)
def test_training_and_evaluate_agree_to_the_last_digit(tmp_path, name):
    (tmp_path / "evidence").mkdir()
    gold, pred = tmp_path / "gold.json", tmp_path / "pred.json"
    gold.write_text(json.dumps(GOLD[name]))
    task, data = TASKS[name](), DataSection(format=name)
    examples = list(read(str(gold), data))
    draw = random.Random(1)
    answers = [
        {
            "id": example.id,
            "question_id": example.id.partition("--")[0],
            "answer": draw.choice(TEXTS),
            "score": 1.0,
            "supporting_facts": draw.sample(FACTS, 2),
        }
        for example in examples
    ]
    golds = [task.gold(example, data, CONFIG) for example in examples]
    trained, _ = score_all(task, answers, golds, CONFIG)
    pred.write_text(json.dumps(task.answers.layouts[name].write(answers)))
    published = benchmarks.evaluate(str(gold), str(pred), format=name).metrics
    assert trained == {key: published[key] for key in trained}
    assert 0 < max(trained.values()) < 100
