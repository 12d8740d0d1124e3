from hypothesis import given, settings
from hypothesis import strategies as st

from ldt.io.text_files import Utf16

# Emoji, joined ones, a flag, a letter with a mark, a letter above U+FFFF, both line ends.
ODD = ["😀", "👨‍👩‍👧", "🇫🇷", "e\u0301", "𝐀", "\r\n", "\n", "é", "a", " "]


@settings(deadline=None)
@given(st.lists(st.sampled_from(ODD), max_size=12).map("".join))
def test_places_are_those_of_the_encoded_text(text):
    units = Utf16(text)
    borders = [len(text[:place].encode("utf-16-le")) // 2 for place in range(len(text) + 1)]
    assert [units.unit(place) for place in range(len(text) + 1)] == borders
    assert units.size == borders[-1]
    back = {unit: place for place, unit in enumerate(borders)}
    assert [units.character(unit) for unit in range(-1, units.size + 2)] == [
        back.get(unit) for unit in range(-1, units.size + 2)
    ]
