"""Questions on papers, as QASPER has them: as examples, and as a file."""

from ldt.io.records import Example

PARAGRAPHS = ["The party agrees.", "", "It ends in May, not in June.", "May is late."]


def said(answer, type="extractive", paragraphs=(2,), spans=None):
    """The answer of an annotator."""
    spans = ([answer] if type == "extractive" else []) if spans is None else spans
    evidence = [PARAGRAPHS[number] for number in paragraphs]
    return {"answer": answer, "type": type, "evidence": evidence, "spans": spans} | {
        "paragraphs": list(paragraphs)
    }


NOTHING = said("Unanswerable", "none", ())


def question(*answers, **fields):
    values = {
        **{"question": "When?", "title": "A title", "abstract": "It is short."},
        **{"paragraphs": PARAGRAPHS, "sections": ["One", "One", "Two", None]},
        "answers": list(answers or [said("May")]),
    }
    return Example(values | fields, "q", "dev.json: q")


def papers(count):
    """Papers whose first question is answered by a word of one paragraph, the second by yes, the
    third not at all."""
    annotators = {"annotation_id": "x", "worker_id": "y"}
    nothing = {
        **{"unanswerable": False, "extractive_spans": [], "yes_no": None},
        **{"free_form_answer": "", "evidence": [], "highlighted_evidence": []},
    }
    made = {}
    for number in range(count):
        word = ("BBBBB", "CCCCC")[number % 2]
        paragraphs = [f"The {word}.", "", "Of party."]
        changes = (
            {"extractive_spans": [word], "evidence": [paragraphs[0]]},
            {"yes_no": True, "evidence": [paragraphs[2]]},
            {"unanswerable": True},
        )
        qas = [
            {
                **{"question": words, "question_id": f"{number}-{place}"},
                "answers": [{"answer": nothing | change} | annotators],
            }
            for place, (words, change) in enumerate(
                zip(("AAAAA AAAAA", "QQQQQ", "ZZZZZ"), changes, strict=True)
            )
        ]
        full_text = [{"section_name": None, "paragraphs": paragraphs}]
        made[f"p{number}"] = {"title": "", "abstract": "", "full_text": full_text, "qas": qas}
    return made
