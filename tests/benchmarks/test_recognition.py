import bz2
import json
import os
import threading
from pathlib import Path

import pytest

from ldt.benchmarks import recognition
from ldt.benchmarks.recognition import recognised
from ldt.io import streams

WORDS = "-DOCSTART- O\n\nEU B-ORG\nrejects O\n\nGerman B-MISC\ncall O\n"
SQUAD = json.dumps({"version": "1.1", "data": [{"title": 'a "b" {', "paragraphs": []}]})
HOTPOT = json.dumps([{"context": [["_id", ["a", "b"]]], "_id": "1", "question": "q"}])


@pytest.mark.parametrize(
    ("format", "text", "known"),
    [
        ("squad", SQUAD, True),
        ("squad", json.dumps(json.loads(SQUAD), indent=2), True),
        ("squad", "\ufeff" + SQUAD, True),
        ("squad", '{"question": "data", "context": "{\\"data\\": [", "id": 1}\n' * 3, False),
        ("squad", '{"meta": {"data": [1]}, "text": "a"}\n', False),
        ("squad", '{"data": "text", "text": "a"}\n', False),
        ("squad", '{"text": "never ends', False),
        ("squad", "id,text\n1,a\n", False),
        ("squad", "", False),
        ("triviaqa", '{"Data": [], "Domain": "Web"}', True),
        ("triviaqa", SQUAD, False),
        ("hotpotqa", HOTPOT, True),
        ("hotpotqa", HOTPOT.replace('"_id": ', '"id": '), False),
        ("hotpotqa", json.dumps(json.loads(HOTPOT)[0]), False),
        ("wikihop", '[{"supports": ["a', True),
        ("wikihop", '[{"text": "a"}, {"supports": []}]', False),
        ("wikihop", "[]", False),
        ("cuad", SQUAD, True),
        ("contractnli", '{"documents": [{"id"', True),
        ("contractnli", '{"documents": 3}', False),
        ("contractnli", SQUAD, False),
        ("qasper", '{"1909.1": {"title": "t", "full_text": [', True),
        ("qasper", '[{"id": "1909.1", "full_text": {', True),
        ("qasper", '{"1909.1": {"title": "full_text"}}', False),
        ("qasper", '{"question_id": "a", "predicted_evidence": []}', False),
        ("label-studio", '[{"id": 1, "annotations": [{"id"', True),
        ("label-studio", '[{"id": 1, "data": {"text": "annotations"}, "predictions": []}]', False),
        ("doccano", '{"id": 1, "text": "a", "label": [[0', True),
        ("doccano", '{"id": 1, "text": "label"}', False),
        ("summarization", '{"id": 1, "article": "a', True),
        ("summarization", '{"text": ["a', True),
        ("summarization", '{"body": "a", "meta": {"text": "a"}}', False),
        ("ecthr_a", '{"facts": ["a', True),
        ("scotus", '{"text": "a", "label": 3}', True),
        ("eurlex", '{"question": "text"}', False),
        ("eurlex", "id,text", False),
        ("nq", '{"annotations": [{"long_answer": {"start_byte": 1', True),
        ("nq", '{"document_text": "<P> a', True),
        ("nq", '{"annotations": [{"passage_answer": {"candidate_index": 1}}]}\n', False),
        ("nq", '{"text": "{\\"long_answer\\": 1}", "id": 1}\n', False),
        ("tydiqa", '{"annotations": [{"passage_answer": {"candidate_index": 1', True),
        ("tydiqa", '{"annotations": [{"long_answer": {"start_byte": 1}}]}\n', False),
        ("tydiqa", "id,text\n1,a\n", False),
        ("coreference", "#begin document (a); part 000\na 0 0 x -\n", True),
        ("coreference", "\ufeff# begin document a\n0\tx\t_\n", True),
        ("coreference", WORDS, False),
        ("coreference", '{"tokens": ["#begin document"], "clusters": []}\n', False),
        ("gap", "ID\tText\tPronoun\tPronoun-offset\tA\t", True),
        ("gap", "ID\tText\n", False),
        ("conll", WORDS, True),
        ("conll", WORDS.replace("-DOCSTART- O\n\n", ""), True),
        ("conll", "[ O\nA O\n", True),
        ("conll", "EU\nrejects\n\nGerman\ncall\n", True),
        ("conll", "text\nrejects\nGerman\ncall\nlamb\n", False),
        ("conll", "A contract between two.\nIt ends.\n", False),
        ("conll", "one line\n", False),
        ("conll", '{"text": "a"}\n{"text": "b"}\n', False),
        ("conll", '["a"]\n["b"]\n', False),
    ],
)
def test_a_layout_is_recognised_by_its_beginning(tmp_path, format, text, known):
    file = tmp_path / "input"
    file.write_text(text)
    assert recognised(str(file), format) is known


def test_a_table_is_not_taken_for_words(tmp_path):
    file = tmp_path / "docs.tsv"
    file.write_text("id\ttext\n1\ta\n2\tb\n3\tc\n")
    assert not recognised(str(file), "conll")
    file.write_text(WORDS)
    assert recognised(str(file), "conll")


def test_a_pipe_is_read_whole_after_it_was_recognised(tmp_path):
    pipe, text = str(tmp_path / "pipe"), SQUAD + " " * (3 * recognition.MOST) + "end"
    os.mkfifo(pipe)
    packed = bz2.compress(text.encode())
    writer = threading.Thread(target=Path(pipe).write_bytes, args=(packed,), daemon=True)
    writer.start()
    assert recognised(pipe, "squad")
    with streams.open_source(pipe) as file:
        assert file.compression == "bz2"
        assert file.stream.read().decode() == text
    writer.join(10)
    assert not streams._BEGUN


def test_a_slow_pipe_is_not_waited_for_once_it_is_known(tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR)
    os.write(handle, b'{"question": "q", "context": "c"}\n')  # and stays open
    assert not recognised(pipe, "squad")
    with streams.open_source(pipe) as file:
        assert json.loads(file.stream.readline()) == {"question": "q", "context": "c"}
    os.close(handle)
