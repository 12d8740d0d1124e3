import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from properties import cases

from ldt.recipe.yaml import MAX_DEPTH, MAX_NODES, dump, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-5", 3e-5),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("10", 10),
        ("+3", 3),
        (".inf", math.inf),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_plain_words_are_the_numbers_and_constants_of_yaml_1_2(text, value):
    tree = parse(f"key: {text}\n")
    assert (tree.value, tree.problems) == ({"key": value}, [])
    assert type(tree.value["key"]) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        *["no", "No", "yes", "on", "off", "y", "n", "True", "NULL", "Null"],
        *["007", "010", "-01", "01.5", "0x1F", "0o17", "1_000", "12:30:00", "2024-01-31"],
        *[".nan", ".", "+", "e3", "1e", "1.5.0", "=", "3e-5x", "١٢"],
    ],
)
def test_what_looks_like_a_label_stays_text(text):
    assert parse(f"key: {text} # as it is").value == {"key": text}


def test_quotes_make_text_of_everything():
    assert parse("['1', \"true\", '', '~']").value == ["1", "true", "", "~"]


def test_keys_are_text_as_written():
    assert parse("{1: a, true: b, no: c, 007: d}").value == dict(
        zip(["1", "true", "no", "007"], "abcd", strict=True)
    )


def test_every_value_has_its_line():
    tree = parse("# first\na: 1\nb:\n  - x\n  - c: 2\n")
    lines = {(): 2, ("a",): 2, ("b",): 3, ("b", 0): 4, ("b", 1): 5, ("b", 1, "c"): 5}
    assert tree.lines == lines


def test_all_repeated_keys_are_named_with_both_lines():
    tree = parse("a: 1\nb: {c: 1,\n    c: 2}\na: 3\n")
    assert tree.problems == [
        (("b", "c"), 3, "repeated key, also on line 2"),
        (("a",), 4, "repeated key, also on line 1"),
    ]


def refusal(text):
    """The one problem of a text that cannot be read: its line and the words."""
    tree = parse(text)
    ((path, line, what),) = tree.problems
    assert path == ()
    assert not tree.complete
    return line, what


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: !!python/object/apply:os.system ['true']", 2, "python/object/apply:os.system"),
        ("a: !mine x", 1, "'!mine'"),
        ("a: !!int '3'", 1, "'tag:yaml.org,2002:int'"),
        ("a:\n\tb: 1", 2, "tab in the indentation"),
        ("a: 1\n\tb: 1", 2, "tab in the indentation"),
        ("a: 1\nb: @x", 2, "not valid YAML: found character '@'"),
        ("a: [1\nb: 2", 2, "not valid YAML"),
        ("a: *nowhere", 1, "undefined alias"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: 1\nb: \x07", 2, "control character '\\x07'"),
        ('a: 1\nb: "\\UFFFFFFFF"', 2, "not valid YAML"),
        ("a: " + "[" * 200, 1, f"nested more than {MAX_DEPTH} deep"),
        ("a: &self [*self]", 1, "aliases stand for more than"),
        ("a: [" + "1, " * MAX_NODES + "1]", 1, f"more than {MAX_NODES:,} values"),
        ("a: 1\n" + "#" * 1_000_000, None, "more than 1,000,000 bytes"),
        (b"a: 1\nb: \xff", 2, "not UTF-8 text at byte 8"),
        ("a: 1\n".encode("utf-16"), 1, "not UTF-8 text at byte 0"),
    ],
)
def test_what_cannot_be_read_is_one_problem_with_its_line(text, line, words):
    found, what = refusal(text)
    assert found == line
    assert words in what


def test_an_alias_is_a_copy_and_a_bomb_of_them_is_refused():
    tree = parse("a: &x [1, 2]\nb: *x\n")
    assert tree.value == {"a": [1, 2], "b": [1, 2]}
    assert tree.value["a"] is not tree.value["b"]
    bomb = "a0: &a0 [1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
    )
    assert "aliases stand for more than 10,000 values" in refusal(bomb)[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: " + "9" * 5000, "number out of range, 5000 characters"),
        ("a: 1e999", "number out of range"),
        ('a: "\\ud800"', "half a surrogate pair"),
        ("a: {<<: {b: 1}}", "merge keys"),
        ("a: {[1]: 2}", "a key must be plain text"),
    ],
)
def test_a_value_that_cannot_be_used_does_not_hide_the_others(text, words):
    tree = parse(text + "\nb: 1\nb: 2\n")
    assert tree.complete
    assert words in tree.problems[0][2]
    assert tree.problems[1][2] == "repeated key, also on line 2"


def test_a_byte_order_mark_and_windows_line_ends_are_read():
    assert parse(b"\xef\xbb\xbfa: 1\r\nb: x\r\n").value == {"a": 1, "b": "x"}


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["no", "007", "3e-5", "1E3", "~", "<<", "true", "12:30", "=", "- x", "a: b"])
)
keys = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["no", "1", "<<", "~"])
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(keys, v, max_size=4)
)


@cases(300)
@given(values)
def test_parse_gives_back_what_dump_wrote(value):
    tree = parse(dump(value))
    assert (tree.value, tree.problems) == (value, [])


@given(st.sampled_from(["no", "yes", "on", "y", "007", "010", "1_0", "12:30", "2024-01-31"]))
def test_other_yaml_readers_also_see_text_in_what_dump_wrote(text):
    assert yaml.safe_load(dump({"label": text})) == {"label": text}


pieces = st.sampled_from(
    ["a", "b: ", "- ", "[", "]", "{", "}", ",", "\n", "  ", "\t", "&x ", "*x", "!t ", "!!", "|\n"]
    + ["> ", "'", '"', "\\", "\\x", "#", "?", "%YAML 1.1\n", "---\n", "...\n", "<<", "1e5", "\x85"]
    + ["\ud800", "\u2028", "\ufeff", "\0", "%", "@", "`", "~", "9" * 5000, "\\U00110000"]
)


@cases(500)
@given(st.lists(pieces | st.text(max_size=3)).map("".join) | st.binary())
def test_no_text_makes_parse_raise(text):
    tree = parse(text)
    assert tree.complete or tree.problems
