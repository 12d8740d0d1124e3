"""Porter's stemmer of English words, with the changes of NLTK, which ROUGE is counted with.

Source: Porter 1980, "An algorithm for suffix stripping", and the mode NLTK_EXTENSIONS of
nltk.stem.PorterStemmer 3.10: other rules for -ies, -ied, -y, -alli, -fulli and -logi, for short
stems, and the irregular words.
"""

from functools import lru_cache

_IRREGULAR = {
    **{"skies": "sky", "dying": "die", "lying": "lie", "tying": "tie"},
    **{"innings": "inning", "outings": "outing", "cannings": "canning"},
    **{word: word for word in "sky news inning outing canning howe proceed exceed succeed".split()},
}
# Suffix to what replaces it. The first one that a word has decides, so a longer one comes first.
_STEP_2 = {
    **{"ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize"},
    **{"bli": "ble", "alli": "al", "fulli": "ful", "entli": "ent", "eli": "e", "ousli": "ous"},
    **{"ization": "ize", "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive"},
    **{"fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble"},
}
_STEP_3 = {
    **{"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic"},
    **{"ful": "", "ness": ""},
}
_STEP_4 = dict.fromkeys(
    "al ance ence er ic able ible ant ement ment ent ou ism ate iti ous ive ize".split(), ""
)


@lru_cache(1 << 16)
def stem(word: str) -> str:
    """The stem of a word in lower case; one of at most two letters is its own.

    What is no vowel, a digit too, counts as a consonant.
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = _without_past(_without_plural(word))
    if word[-1] == "y" and len(word) > 2 and _kinds(word)[-2] == "c":
        word = word[:-1] + "i"
    word = _step_2(word)
    word = _replaced(word, _STEP_3, above=0)
    if word.endswith("ion"):
        front = word[:-3]
        word = front if _measure(front) > 1 and front[-1] in "st" else word
    else:
        word = _replaced(word, _STEP_4, above=1)
    return _without_end(word)


def _kinds(word: str) -> str:
    """ "v" for each vowel and "c" for each consonant; y is a vowel behind a consonant."""
    kinds = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and kinds[-1:] == "c")
        kinds += "v" if vowel else "c"
    return kinds


def _measure(word: str) -> int:
    """How often a consonant follows a vowel."""
    return _kinds(word).count("vc")


def _is_short(word: str) -> bool:
    """Whether the end is consonant, vowel, consonant (not w, x, y), or all is vowel, consonant."""
    kinds = _kinds(word)
    return kinds == "vc" or (kinds.endswith("cvc") and word[-1] not in "wxy")


def _replaced(word: str, rules: dict[str, str], *, above: int) -> str:
    """The word with its suffix replaced, where the measure of what is before it is above that."""
    for suffix, new in rules.items():
        if word.endswith(suffix):
            front = word[: -len(suffix)]
            return front + new if _measure(front) > above else word
    return word


def _without_plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_past(word: str) -> str:
    """A word without -ed and -ing, with the e that it had."""
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    suffix = next((suffix for suffix in ("ed", "ing") if word.endswith(suffix)), "")
    front = word.removesuffix(suffix)
    if not suffix or "v" not in _kinds(front):
        return word
    if front.endswith(("at", "bl", "iz")):
        return front + "e"
    if front[-2:-1] == front[-1] and _kinds(front)[-1] == "c":
        return front if front[-1] in "lsz" else front[:-1]
    return front + "e" if _measure(front) == 1 and _is_short(front) else front


def _step_2(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _step_2(word[:-2])
    if word.endswith("logi"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, _STEP_2, above=0)


def _without_end(word: str) -> str:
    """A word without a last e or the second of two l."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
