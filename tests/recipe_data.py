"""A few lines of data for the recipes of each task, by the task's name."""

TEXT = "the party agrees. " * 9
CLAUSES = ("Cap On Liability", "Audit Rights", "Insurance", "Anti-Assignment")


def classification(number):
    """One line that has the fields of every classification recipe."""
    return {
        "text": f"{number} {TEXT}",
        "label": "ab"[number % 2],
        "group": "xyz"[number % 3],
        "clauses": {name: number % (place + 2) == 0 for place, name in enumerate(CLAUSES)},
    }


# number of the line -> its fields, as JSON lines have them; a recipe's data.format is set to jsonl.
LINES = {
    "classification": classification,
}
