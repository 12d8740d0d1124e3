"""A few lines of data for the recipes of each task, by the task's name."""

TEXT = "the party agrees. " * 9
CLAUSES = ("Cap On Liability", "Audit Rights", "Insurance", "Anti-Assignment")


def charlm(number):
    """A text, as raw characters with the braces and quotes of its line."""
    return {"text": f"{number} {TEXT}"}


def classification(number):
    """One line that has the fields of every classification recipe."""
    return {
        "text": f"{number} {TEXT}",
        "label": "ab"[number % 2],
        "group": "xyz"[number % 3],
        "clauses": {name: number % (place + 2) == 0 for place, name in enumerate(CLAUSES)},
    }


def coreference(number):
    """Two sentences, of which a name and a pronoun mean the same."""
    sentences = [["It", "is", f"Party{number}", "."], ["She", *TEXT.split()]]
    return {"sentences": sentences, "clusters": [[[2, 2], [4, 4]]]}


def embedding(number):
    """A query with a document that is right for it, and one or two that are not."""
    right = f"{TEXT} It is party {number}."
    return {"query": f"who is {number}?", "pos": [right], "neg": [TEXT, "No."][: 1 + number % 2]}


def evidence_classification(number):
    """A hypothesis on a text of three spans, with one as evidence unless it is not mentioned."""
    words = f"it is party {number % 3}. {TEXT}"
    label = ("Entailment", "Contradiction", "NotMentioned")[number % 3]
    return {
        "hypothesis": "it is party 0",
        "text": words,
        "spans": [[0, 14], [15, 40], [41, len(words)]],
        "label": label,
        "evidence": [] if label == "NotMentioned" else [0],
    }


def hotpotqa(number):
    """A question whose answer two of three paragraphs give, one of them short."""
    context = [["A", [f"It is party {number}.", TEXT[:20]]], ["B", ["No."]], ["C", [" So."]]]
    answer = (f"party {number}", "yes")[number % 2]
    facts = [["A", 0], ["C", 0]]
    return {"question": "who?", "context": context, "answer": answer, "supporting_facts": facts}


def multiple_choice(number):
    """A question with two or three choices."""
    choices = ["yes", "no", "both"][: 2 + number % 2]
    return {"question": "who?", "context": TEXT, "choices": choices, "label": number % 2}


def qasper(number):
    """A question on a paper of two paragraphs, answered by a span, yes, or not at all."""
    type = ("extractive", "boolean", "none")[number % 3]
    answer = {"answer": ("the party", "Yes", "Unanswerable")[number % 3], "type": type}
    paragraphs = [TEXT, "It ends."]
    answer |= {"evidence": paragraphs[:1], "spans": [], "paragraphs": [0]}
    if type == "extractive":
        answer["spans"] = [answer["answer"]]
    if type == "none":
        answer |= {"evidence": [], "paragraphs": []}
    return {"question": "who?", "title": "A", "paragraphs": paragraphs, "answers": [answer]}


def reranking(number):
    """A query with a document that is relevant and two that are not."""
    return {
        "query": f"party {number % 3}",
        "pos": f"It is party {number % 3}.",
        "neg": [TEXT, "No."],
    }


def squad(number):
    """A question with an answer in the text, or without."""
    return {"question": "who?", "context": TEXT, "answers": ["the party"] if number % 3 else []}


def summarization(number):
    """A text, or two documents, with a summary; every third one answers a question."""
    text = [TEXT, f"It is party {number}."] if number % 2 else f"{number} {TEXT}"
    made = {"text": text, "summary": f"The party {number} agrees. It ends."}
    return made | ({} if number % 3 else {"question": "who?"})


def passage_qa(number):
    """A question with a passage and a span, yes, or nothing, of a text with two passages."""
    span, said = ([[4, 9]], None) if number % 3 else ([], "yes")
    right = {"passage": 0 if number % 4 else None, "spans": span, "yes_no": said}
    candidates = [{"start": 0, "end": 12, "type": "paragraph"}, {"start": 12, "end": len(TEXT)}]
    made = {"question": "who?", "context": TEXT, "candidates": candidates}
    return made | {"annotations": [right]}


def mlm(number):
    """A text."""
    return {"text": f"{number} {TEXT}"}


def token_classification(number):
    """Words in two sentences, one of them an entity."""
    tokens = [["It", "is", f"Party{number}"], TEXT.split()]
    return {"tokens": tokens, "tags": [["O", "O", "B-PER"], ["O"] * len(tokens[1])]}


def triviaqa(number):
    """A question with two names of its answer."""
    return {"question": "who?", "context": f"{number} {TEXT}", "answers": ["Party", "parties"]}


def wikihop(number):
    """A question with two candidates."""
    answer = f"party {number % 2}"
    supports = [f"It is {answer}.", TEXT]
    candidates = ["party 0", "party 1"]
    return {"query": "who?", "candidates": candidates, "supports": supports, "answer": answer}


# number of the line -> its fields, as JSON lines have them; a recipe's data.format is set to jsonl.
LINES = {
    "charlm": charlm,
    "classification": classification,
    "coreference": coreference,
    "embedding": embedding,
    "evidence_classification": evidence_classification,
    "hotpotqa": hotpotqa,
    "mlm": mlm,
    "multiple_choice": multiple_choice,
    "qasper": qasper,
    "qasper_generation": qasper,
    "passage_qa": passage_qa,
    "reranking": reranking,
    "squad": squad,
    "summarization": summarization,
    "token_classification": token_classification,
    "triviaqa": triviaqa,
    "wikihop": wikihop,
}
