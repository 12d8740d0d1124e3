import json

import numpy as np
import pytest
from features_of import marked_tokens
from transformers import AutoTokenizer, PretrainedConfig

from ldt.data.tokenization import add_tokens
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.recipe.recipe import DataSection
from ldt.tasks import HotpotQA
from ldt.tasks.base import metric_of, score_all
from ldt.tasks.hotpotqa import LEAST, in_inputs, tokenized

FILM = ("Ed Wood (film)", ["Ed Wood is a 1994 film.", " It stars Johnny Depp, and Depp only."])
MAN = ("Scott Derrickson", ["Scott Derrickson (born 1966) is American.", ""])
OTHER = ("Doctor Strange", ["Doctor Strange is a film.", " It stars Benedict Cumberbatch."])


def question(**fields):
    values = {
        "question": "Who?",
        "context": [list(FILM), list(MAN), list(OTHER)],
        "answer": "depp",
        "supporting_facts": [["Ed Wood (film)", 1], ["Scott Derrickson", 0]],
    }
    return Example(values | fields, "q", "dev.json: q")


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    add_tokens(tokenizer, HotpotQA.inputs.markers)
    return tokenizer


@pytest.fixture(scope="module", params=["roberta-base", "bert-base-uncased"])
def real(request, shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / request.param)
    add_tokens(tokenizer, HotpotQA.inputs.markers)
    return tokenizer


CONFIG = PretrainedConfig(**HotpotQA().learn([question()], DataSection()))


def encode(item, tokenizer, max_length=256, config=CONFIG, task=None, **data):
    task = task or HotpotQA()
    section = DataSection(**data)
    return task.encode(item, tokenizer, data=section, max_length=max_length, config=config)


def says(features, kind="span", paragraphs=(), sentences=(), span=None):
    """Outputs of a model that is sure: of the kind, of evidence by its places, of a span by
    (place of the paragraph, of the sentence, first and last token in it)."""
    outputs = []
    for feature in features:
        length, own = len(feature["input_ids"]) + 2, feature["paragraphs"].tolist()
        start, end = np.full((2, length), -5, np.float32)
        rows = feature["sentences"].tolist()
        for p, place, first, _ in rows:
            if span and (p, place) == span[:2]:
                start[first + span[2]] = end[first + span[3]] = 5
        outputs.append(
            {
                "start_logits": start,
                "end_logits": end,
                "logits": np.array([4.0 * (kind == name) for name in ("span", "yes", "no")]),
                "passage_logits": np.array([4.0 if p in paragraphs else -4.0 for p in own]),
                "sentence_logits": np.array(
                    [2.0 if (p, s) in sentences else -2 for p, s, *_ in rows]
                ),
            }
        )
    return outputs


def answer(outputs, features, task=None):
    return (task or HotpotQA()).decode(outputs, CONFIG, question(), features)


# encoding

GOLDEN = {
    "roberta-base": [
        *(0, 50265, 3394, 116, 50266),
        *(50267, 2344, 3132, 36, 21928, 43, 50268),
        *(2344, 3132, 16, 10, 8148, 822, 4, 50269),
        *(85, 2690, 8781, 926, 3807, 6, 8, 926, 3807, 129, 4, 50269, 50270),
        *(50267, 1699, 6113, 24214, 261, 50268),
        *(1699, 6113, 24214, 261, 36, 5400, 18069, 43, 16, 470, 4, 50269, 50269, 50270),
        *(4420, 117, 23796, 2),
    ],
    "bert-base-uncased": [
        *(101, 30522, 2040, 1029, 30523),
        *(30524, 3968, 3536, 1006, 2143, 1007, 30525),
        *(3968, 3536, 2003, 1037, 2807, 2143, 1012, 30526),
        *(2009, 3340, 5206, 2139, 9397, 1010, 1998, 2139, 9397, 2069, 1012, 30526, 30527),
        *(30524, 3660, 18928, 3385, 30525),
        *(3660, 18928, 3385, 1006, 2141, 3547, 1007, 2003, 2137, 1012, 30526, 30526, 30527),
        *(2748, 2053, 19701, 102),
    ],
}


def test_the_encoding_is_pinned(real):
    item = question(context=[list(FILM), list(MAN)])
    (feature,) = encode(item, real)
    assert feature["input_ids"] == GOLDEN[real.name_or_path.rpartition("/")[2]]
    tokens = marked_tokens(feature, real)
    said = "".join(token for token, _ in tokens[1:-1]).replace("##", "").replace(" ", "").lower()
    assert said == (
        "[question]who?[/question]<t>edwood(film)</t>edwoodisa1994film.[/sent]"
        "itstarsjohnnydepp,anddepponly.[/sent][/par]<t>scottderrickson</t>"
        "scottderrickson(born1966)isamerican.[/sent][/sent][/par]yesnonull"
    )
    marked = [token.strip().lower() for token, is_global in tokens if is_global]
    assert marked[1:] == [
        *("[question]", "who", "?", "[/question]"),
        *("<t>", "[/sent]", "[/sent]", "<t>", "[/sent]", "[/sent]"),
    ]


def test_the_places_of_evidence_and_answer_are_those_of_the_tokens(real):
    item = question()
    (feature,) = encode(item, real)
    pieces = real.convert_ids_to_tokens(feature["input_ids"])
    assert [pieces[at] for at in feature["passage_positions"]] == ["<t>"] * 3
    assert [pieces[at] for at in feature["sentence_positions"]] == ["[/sent]"] * 6
    assert feature["passage_labels"] == [1, 1, 0]
    assert feature["sentence_labels"] == [0, 1, 1, 0, 0, 0]
    assert feature["labels"] == 0
    sentence = FILM[1][1]
    found = [
        sentence[feature["offsets"][start][0] : feature["offsets"][end][1]]
        for start, end in zip(feature["start_positions"], feature["end_positions"], strict=True)
    ]
    assert found == ["Depp", "Depp"]  # in the supporting sentence, not in any other
    context = item.fields["context"]
    for p, place, first, size in feature["sentences"].tolist():
        assert pieces[first + size] == "[/sent]"
        raw = context[p][1][place]
        inside = feature["offsets"][first : first + size]
        assert "".join(raw[a:b] for a, b in inside) == raw.replace(" ", "")
    assert (feature["lost"], feature["unfound"]) == (0, 0)


def test_paragraphs_that_do_not_fit_are_read_in_parts_with_the_question(real):
    whole, parts = encode(question(), real), encode(question(), real, max_length=49)
    assert [feature["paragraphs"].tolist() for feature in parts] == [[0], [1, 2]]
    head = whole[0]["passage_positions"][0]
    for feature in parts:
        assert feature["input_ids"][:head] == whole[0]["input_ids"][:head]
        assert feature["tokens"] == whole[0]["tokens"] == len(whole[0]["input_ids"])
        assert len(feature["input_ids"]) <= 49
    assert [feature["labels"] for feature in parts] == [0, 0]
    assert len(parts[0]["start_positions"]) == 2
    assert parts[1]["start_positions"] == parts[1]["end_positions"] == [-100]
    no_evidence = encode(question(supporting_facts=[["Doctor Strange", 0]]), real, max_length=49)
    assert [feature["labels"] for feature in no_evidence] == [-100, 0]


@pytest.mark.parametrize(("answer", "label"), [("yes", 1), ("No ", 2), ("no one", 0)])
def test_yes_and_no_are_kinds_of_answers(tiny, answer, label):
    (feature,) = encode(question(answer=answer), tiny)
    assert feature["labels"] == label
    assert feature["start_positions"] == [-100]
    assert feature["unfound"] == int(label == 0)


def test_facts_and_answers_that_are_not_there_are_counted(tiny):
    facts = [["Ed Wood (film)", 9], ["Nobody", 0], ["Scott Derrickson", 0]]
    features = encode(question(supporting_facts=facts), tiny)
    assert (features[0]["lost"], features[0]["unfound"]) == (2, 1)
    assert features[0]["passage_labels"] == [1, 1, 0]
    assert HotpotQA().remarks([*features, {}], 0) == [
        "answers that no supporting sentence mentions, learnt by their evidence: 1",
        "supporting facts that are not in their context: 2",
    ]
    assert HotpotQA().remarks(encode(question(), tiny), 0) == []


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"question": None}, "field 'question' is null, expected text"),
        ({"question": "the party " * 99}, "the question leaves 0 of 64 tokens for the"),
        ({"context": []}, "field 'context': there is not a word in its sentences"),
        (
            {"context": {"title": []}},
            "field 'context': {'title': []}, expected a list of [title, l",
        ),
        ({"context": [["A", "x."]]}, "field 'context': ['A', 'x.'], expected a list"),
        ({"context": [["A", [None]]]}, "field 'context': ['A', [None]], expected"),
        ({"context": [["A", [" ", ""]]]}, "field 'context': there is not a word in its sentences"),
        ({"supporting_facts": [["A"]]}, "field 'supporting_facts': ['A'], expected [title, number"),
        ({"supporting_facts": "A"}, "field 'supporting_facts': A, expected [title, number"),
        ({"answer": ["a"]}, "field 'answer' is a list, expected text"),
    ],
)
def test_a_question_that_cannot_be_read_is_told(tiny, fields, what):
    with pytest.raises(DataError) as error:
        encode(question(**fields), tiny, max_length=64)
    assert str(error.value).startswith(f"dev.json: q: {what}")


# paragraphs


def sized(tiny, *words):
    """Paragraphs with an "a" as title and so many single-token words in each sentence."""
    context = [("a", [" a" * n for n in counts]) for counts in words]
    return tokenized(context, tiny)


def shape(parts):
    return [[(p.number, [len(ids) for _, ids, _ in p.sentences]) for p in part] for part in parts]


def test_titles_and_sentences_are_tokenized_with_a_space_in_front(tiny):
    context = [(" The party ", ["the party", " agrees ", ""])]
    (found,) = tokenized(context, tiny)
    assert tiny.decode(found.title) == " The party"
    for (place, ids, offsets), said in zip(found.sentences, context[0][1], strict=True):
        assert tiny.decode(ids).strip() == said.strip()
        assert "".join(said[a:b] for a, b in offsets) == "".join(said.split())
        assert context[0][1][place] == said
    inside = tiny("x the", add_special_tokens=False)["input_ids"]
    assert found.sentences[0][1][: len(inside) - 1] == inside[1:]
    assert found.size == 3 + len(found.title) + sum(len(ids) + 1 for _, ids, _ in found.sentences)


def test_parts_hold_whole_paragraphs_in_order(tiny):
    read = sized(tiny, [2], [2], [9], [2], [2])  # 7, 7, 14, 7, 7
    parts, flags = in_inputs(read, 15, question(), DataSection())
    assert [[p.number for p in part] for part in parts] == [[0, 1], [2], [3, 4]]
    assert flags == {}
    parts, flags = in_inputs(read, 15, question(), DataSection(max_chunks=2))
    assert ([[p.number for p in part] for part in parts], flags) == (
        [[0, 1], [2]],
        {"truncated": True, "unread_tokens": 14},
    )
    parts, flags = in_inputs(read, 15, question(), DataSection(overflow="truncate"))
    assert ([[p.number for p in part] for part in parts], flags) == (
        [[0, 1]],
        {"truncated": True, "unread_tokens": 28},
    )
    with pytest.raises(
        DataError, match="dev.json: q: the paragraphs of 'q' have 42 tokens, 15 fit"
    ):
        in_inputs(read, 15, question(), DataSection(overflow="error"))


def test_a_paragraph_that_is_too_long_alone_loses_its_end(tiny):
    read = sized(tiny, [2], [3, 9, 1], [2])
    parts, flags = in_inputs(read, 12, question(), DataSection())
    assert shape(parts) == [[(0, [2])], [(1, [3, 3])], [(2, [2])]]
    assert flags == {"truncated": True, "unread_tokens": 8}
    assert all(sum(p.size for p in part) <= 12 for part in parts)
    assert [(place, len(offsets)) for place, _, offsets in parts[1][0].sentences] == [
        (0, 3),
        (1, 3),
    ]


@pytest.mark.parametrize("room", range(LEAST, 20))
def test_a_paragraph_of_any_kind_fits_the_least_room_and_keeps_a_token(tiny, room):
    context = [("a " * 30, ["a " * 30, ""]), ("", ["a " * 30]), ("a", ["", "a " * 30])]
    for paragraph in tokenized(context, tiny):
        paragraph.cut(room)
        assert paragraph.size <= room
        assert paragraph.sentences


# answers


def test_a_span_is_cut_from_the_raw_sentence(real):
    features = encode(question(), real)
    outputs = says(features, "span", {0, 1}, {(0, 1), (1, 0)}, (0, 1, 2, 4))
    found = answer(outputs, features)
    place = {name: found[name] for name in ("answer", "title", "sentence", "start", "end")}
    assert place == {
        "answer": "Johnny Depp",
        "title": "Ed Wood (film)",
        "sentence": 1,
        "start": 10,
        "end": 21,
    }
    assert FILM[1][1][10:21] == "Johnny Depp"
    assert found["supporting_facts"] == [["Ed Wood (film)", 1], ["Scott Derrickson", 0]]
    sure = 1 / (1 + np.exp(-2))
    assert found["fact_scores"] == pytest.approx([sure, sure])
    assert 0.9 < found["score"] < 1
    assert json.loads(json.dumps(found)) == found


def test_the_evidence_is_of_exactly_two_paragraphs(tiny):
    features = encode(question(), tiny)
    every = {(0, 1), (1, 0), (2, 0), (2, 1)}
    outputs = says(features, "yes", {0, 2}, every)
    assert answer(outputs, features)["supporting_facts"] == [
        ["Ed Wood (film)", 1],
        ["Doctor Strange", 0],
        ["Doctor Strange", 1],
    ]
    outputs = says(features, "no", {0, 1}, {(0, 1)})  # and the best of the other one
    outputs[0]["sentence_logits"][2] = -1
    found = answer(outputs, features)
    assert found["supporting_facts"] == [["Ed Wood (film)", 1], ["Scott Derrickson", 0]]
    assert (found["answer"], found["type"]) == ("no", "no")
    assert "title" not in found
    strict = answer(outputs, features, HotpotQA(threshold=1))
    assert strict["supporting_facts"] == found["supporting_facts"]
    one = encode(question(context=[list(FILM)]), tiny)
    assert answer(says(one), one)["supporting_facts"] == [
        ["Ed Wood (film)", 0],
        ["Ed Wood (film)", 1],
    ]


def test_the_span_is_inside_of_the_evidence_in_one_sentence_and_short(tiny):
    features = encode(question(), tiny)
    outputs = says(features, "span", {0, 1}, {(0, 0), (1, 0)}, (2, 0, 0, 3))
    rows = {(p, s): (first, size) for p, s, first, size in features[0]["sentences"].tolist()}
    first, size = rows[0, 0]
    start, end = outputs[0]["start_logits"], outputs[0]["end_logits"]
    start[first + 6], end[first + 2] = 3, 4  # the end lies before the start
    start[first + 1], end[first + 7] = 2, 2
    end[rows[1, 0][0]] = 9  # of another sentence
    found = answer(outputs, features)
    offsets = features[0]["offsets"][first : first + size]
    assert found["answer"] == FILM[1][0][offsets[1][0] : offsets[2][1]]
    end[first + 2] = -5
    assert answer(outputs, features)["end"] == offsets[7][1]
    short = answer(outputs, features, HotpotQA(max_answer=3))
    assert (short["start"], short["end"]) == (offsets[6][0], offsets[7][1])


def test_evidence_without_a_word_gives_an_empty_answer(tiny):
    features = encode(question(context=[["A", [""]], ["B", [""]], ["C", ["so"]]]), tiny)
    outputs = says(features, "span", {0, 1}, {(0, 0), (1, 0)})
    found = answer(outputs, features)
    assert (found["answer"], found["score"]) == ("", 0)
    assert found["supporting_facts"] == [["A", 0], ["B", 0]]


def test_the_kind_is_that_of_the_inputs_with_evidence(tiny):
    features = encode(question(), tiny, max_length=100)
    assert len(features) > 1
    outputs = says(features, "yes", {2}, {(2, 0)})
    for output, feature in zip(outputs, features, strict=True):
        if 2 not in feature["paragraphs"]:
            output["logits"] = np.array([0, 0, 1.0])
            output["passage_logits"] -= 9
    assert answer(outputs, features)["type"] == "yes"


def test_scores_are_the_published_ones():
    golds = [
        {"answer": "Johnny Depp", "facts": {("A", 0), ("B", 1)}},
        {"answer": "yes", "facts": {("A", 0)}},
    ]
    answers = [
        {"answer": "the Depp", "supporting_facts": [["A", 0], ["B", 0]]},
        {"answer": "Yes", "supporting_facts": [["A", 0]]},
    ]
    metrics, rows = score_all(HotpotQA(), answers, golds, CONFIG)
    joint = 100 * 2 * (1 * 0.5) * (0.5 * 0.5) / (1 * 0.5 + 0.5 * 0.5)
    assert metrics == pytest.approx(
        {
            **{"em": 50, "f1": (200 / 3 + 100) / 2, "sp_em": 50, "sp_f1": 75},
            **{"joint_em": 50, "joint_f1": (joint + 100) / 2},
        }
    )
    assert [(row["type"], row["questions"], row["em"]) for row in rows] == [
        ("span", 1, 0),
        ("yes", 1, 100),
    ]
    assert metric_of(HotpotQA(), CONFIG) in metrics
