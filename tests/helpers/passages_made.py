"""Questions of Natural Questions and TyDi QA made of a few words, in the published layouts."""

import copy
import json

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection

NULL = {"start_byte": -1, "end_byte": -1, "start_token": -1, "end_token": -1}


def page(*tokens, between=" "):
    """(html, document_tokens) of words and tags, as they follow each other."""
    html, listed = "<html>", []
    for token in tokens:
        start = len(html.encode())
        html += token
        end = len(html.encode())
        tag = token.startswith("<")
        listed.append({"token": token, "start_byte": start, "end_byte": end, "html_token": tag})
        html += between
    return html, listed


def span(tokens, start, end):
    """The four offsets of tokens from start to before end."""
    first, last = tokens[start]["start_byte"], tokens[end - 1]["end_byte"]
    return {"start_byte": first, "end_byte": last, "start_token": start, "end_token": end}


def annotation(tokens, candidates, index=None, *short, yes_no="NONE"):
    """An annotation with a candidate and spans of tokens, or without any."""
    places = NULL if index is None else span(tokens, *candidates[index])
    return {
        "annotation_id": 1,
        "long_answer": {**places, "candidate_index": -1 if index is None else index},
        "short_answers": [span(tokens, *each) for each in short],
        "yes_no_answer": yes_no,
    }


def nq(id, tokens, candidates, answers=(), **more):
    """A line: words and tags, candidates as tokens (start, end), annotations as tuples
    (index, *short spans) or "YES" or "NO"."""
    html, listed = page(*tokens)
    made = [
        annotation(listed, candidates, 0, yes_no=answer)
        if isinstance(answer, str)
        else annotation(listed, candidates, *answer)
        for answer in answers
    ]
    return {
        "annotations": made,
        "document_html": html,
        "document_title": f"page of {id}",
        "document_tokens": listed,
        "example_id": id,
        "long_answer_candidates": [
            {**span(listed, *each), "top_level": True} for each in candidates
        ],
        "question_text": "what is it",
    } | more


def simplified(line):
    """The same line in the simplified layout."""
    tokens = [token["token"].replace(" ", "_") for token in line["document_tokens"]]

    def without(value):
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if "byte" not in key}
        return [without(item) for item in value] if isinstance(value, list) else value

    kept = {"document_tokens", "document_html", "document_title"}
    rest = {key: without(value) for key, value in line.items() if key not in kept}
    return {"document_text": " ".join(tokens), **rest}


def tydi(id, text, candidates, answers=(), language="finnish", **more):
    """A line: candidates in bytes, annotations (index, (start, end) in bytes or None, yes_no)."""
    return {
        "annotations": [
            {
                "annotation_id": 13512083597535618227,
                "passage_answer": {"candidate_index": -1 if index is None else index},
                "minimal_answer": places(found),
                "yes_no_answer": yes_no,
            }
            for index, found, yes_no in answers
        ],
        "document_plaintext": text,
        "document_title": "title",
        "document_url": f"https://example.org/{id}",
        "example_id": id,
        "language": language,
        "passage_answer_candidates": [places(each) for each in candidates],
        "question_text": "what is it",
    } | more


def places(found):
    """A span in bytes, or none, as a TyDi QA file has it."""
    start, end = found or (-1, -1)
    return {"plaintext_start_byte": start, "plaintext_end_byte": end}


def write(path, *lines):
    """Write lines of JSON; returns the path as text."""
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return str(path)


def changed(line, path, value):
    """A copy of a line with the value at a dotted path changed: "annotations.0.yes_no_answer"."""
    line = copy.deepcopy(line)
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    inside = line
    for step in steps:
        inside = inside[step]
    inside[last] = value
    return line


def right_answers(gold, format, layout):
    """Answers of a model that says what the first annotation does, as JSON lines keep them."""
    made = []
    for example in read(gold, DataSection(format=format)):
        right = example.fields["annotations"][0]
        span = tuple(right["spans"][0]) if right["spans"] else None
        if right["yes_no"]:
            span = (0, 1)  # gives way
        offsets = layout.offsets(example.fields, right["passage"], span)
        scores = {"passage_score": 1.0, "span_score": 1.0, "yes_no": right["yes_no"]}
        made.append({"id": example.id, **scores, "offsets": offsets})
    return json.loads(json.dumps(made))
