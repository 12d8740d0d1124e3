"""Coreference metrics, by the CoNLL scorer and its cases, and by their definitions."""

import itertools
import os
import random
import re
import subprocess
from fractions import Fraction

import numpy as np
import pytest

from ldt.benchmarks.coreference import conll
from ldt.data.clusters import Document
from ldt.metrics import coreference as metrics
from ldt.metrics.coreference import MULTIPLE

# Clusters of letters as the description of the official scorer's own cases has them, and what it
# expects: recall and precision of MUC, B-cubed and CEAF-e.
A, D, M, N = "a bc def", "12345 67 89ABC", "abcdef", "a b c d e f"
CASES = [
    (A, "a bc def", (1, 1), (1, 1), (1, 1)),
    (A, "a de", ("1/3", 1), ("7/18", 1), (0.6, 0.9)),
    (A, "a bcx defy z", (1, "3/5"), (1, "55/108"), (0.88571, 0.66429)),
    (A, "a bcx dy z", ("1/3", "1/3"), ("5/9", "17/42"), (0.73333, 0.55)),
    (A, "a bcxB dy z", ("1/3", "1/4"), ("5/9", "5/16"), (0.68889, 0.51667)),
    (A, "a bcx dy Bz", ("1/3", "1/4"), ("5/9", "17/48"), (0.73333, 0.55)),
    (A, "a bcxb dy z", ("1/3", "1/3"), ("5/9", "17/42"), (0.73333, 0.55)),
    (A, "a bcx dy bz", ("1/3", "1/3"), ("5/9", "17/42"), (0.73333, 0.55)),
    (A, "a b c d e f", (0, 0), ("1/2", 1), None),
    (A, "abcdef", (1, "3/5"), (1, "7/18"), None),
    (A, "a x y c d e z", (0, 0), ("13/36", "4/7"), None),
    (A, "axycdez", ("1/3", "1/6"), ("17/36", "6/49"), None),
    (D, "12345 6789ABC", (1, "9/10"), (1, "16/21"), None),
    (D, "1234589ABC 67", (1, "9/10"), (1, "7/12"), None),
    ("ABCD", "AB CD", ("2/3", 1), None, None),
    ("AB CD", "ABCD", (1, "2/3"), None, None),
    ("ABC", "AC", ("1/2", 1), None, None),
    ("BCDEGHJ", "ABC DEF GHI", ("1/2", "1/2"), None, None),
    ("ABC DEFG", "AB CD FGH", ("2/5", "1/2"), None, None),
    (M, "abcdef", (1, 1), (1, 1), (1, 1)),
    (M, "a b c d e f", (0, 0), None, None),
    (N, "a b c d e f", (0, 0), (1, 1), (1, 1)),
    (N, "", (0, 0), (0, 0), (0, 0)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_the_cases_of_the_official_scorer(case):
    key, response, *expected = case
    figures = metrics.measure([(key.split(), response.split())])
    for name, pair in zip(("muc", "b_cubed", "ceaf_e"), expected, strict=True):
        if pair is not None:
            recall, precision = (float(Fraction(str(value))) for value in pair)
            f1 = 2 * recall * precision / (recall + precision or 1)
            values = [figures[f"{name}_{each}"] for each in ("recall", "precision", "f1")]
            assert values == pytest.approx([100 * x for x in (recall, precision, f1)], abs=1e-3)


def partition(random, mentions):
    """Clusters of some mentions."""
    clusters = {}
    for mention in mentions:
        clusters.setdefault(random.randrange(len(mentions) // 2), []).append(mention)
    return [*clusters.values()]


def pair(seed, mentions=7):
    """Key and response, some mentions of which are in one of them alone."""
    generator = random.Random(seed)
    letters = [(n, n + 1) for n in range(mentions + 2)]
    return partition(generator, letters[2:]), partition(generator, letters[:-2])


def by_definition(key, response, name):
    """Recall, as numerator and denominator."""
    key, response = ([frozenset(cluster) for cluster in side] for side in (key, response))
    all_found = frozenset().union(*response)
    if name == "mention":
        return len(frozenset().union(*key) & all_found), sum(map(len, key))
    if name == "ceaf_e":
        short, long = sorted((key, response), key=len)
        totals = (
            sum(2 * len(a & b) / (len(a) + len(b)) for a, b in zip(short, order, strict=False))
            for order in itertools.permutations(long, len(short))
        )
        return max(totals, default=0), len(key)
    found = there = 0
    for cluster in key:
        parts = [cluster & other for other in response if cluster & other]
        if name == "muc":  # what is in no cluster of the response is a part of its own
            found += len(cluster) - len(parts) - len(cluster - all_found)
            there += len(cluster) - 1
            continue
        there += len(cluster)
        if name == "b_cubed":
            mine = {m: next((part for part in parts if m in part), ()) for m in cluster}
            found += sum(len(part) / len(cluster) for part in mine.values())
        elif len(cluster) == 1:
            found += cluster in response
        else:
            links = [{*link} for link in itertools.combinations(cluster, 2)]
            shared = sum(any(link <= part for part in parts) for link in links)
            found += len(cluster) * shared / len(links)
    return found, there


@pytest.mark.parametrize("name", metrics.METRICS)
def test_each_metric_is_its_definition_summed_over_documents(name):
    pairs = [pair(seed) for seed in range(12)]
    figures = metrics.measure(pairs)
    for prefix in ("", MULTIPLE):
        if prefix:
            pairs = [[[c for c in side if len(c) > 1] for side in sides] for sides in pairs]
        shares = []
        for sides in (pairs, [reversed(sides) for sides in pairs]):
            found, there = map(sum, zip(*(by_definition(*x, name) for x in sides), strict=True))
            shares.append(100 * found / there)
        recall, precision = shares
        assert figures[f"{prefix}{name}_recall"] == pytest.approx(recall)
        assert figures[f"{prefix}{name}_precision"] == pytest.approx(precision)
        f1 = 2 * recall * precision / (recall + precision)
        assert figures[f"{prefix}{name}_f1"] == pytest.approx(f1)
    for prefix in ("", MULTIPLE):
        parts = [figures[f"{prefix}{each}_f1"] for each in metrics.CONLL]
        assert figures[f"{prefix}conll_f1"] == pytest.approx(sum(parts) / 3)


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 6), (6, 3), (40, 70), (60, 60)])
def test_the_assignment_is_the_best_one(shape):
    optimize = pytest.importorskip("scipy.optimize")
    generator = np.random.default_rng(0)
    for _ in range(5):
        scores = generator.random(shape) * (generator.random(shape) < 0.5)
        rows, columns = optimize.linear_sum_assignment(-scores)
        assert metrics.best_assignment(scores) == pytest.approx(scores[rows, columns].sum())


def test_links_are_counted_by_the_words_between_them():
    key = [[(0, 1), (5, 6), (60, 61)], [(2, 3), (1002, 1003)]]
    response = [[(0, 1), (5, 6)], [(60, 61), (61, 62)], [(2, 4), (1002, 1003)]]
    rows = metrics.by_distance([(key, response)])
    assert [(row["words"], row["links"], row["recall"], row["precision"]) for row in rows] == [
        ("0 to 9", 1, 100, 50),
        ("50 to 249", 1, 0, 0),
        ("1,000 to 3,999", 1, 0, 0),
    ]


def perl(metric, key, response):
    """Counts of recall and precision by the official scorer."""
    command = ["perl", os.environ["LDT_COREF_SCORER"], metric, key, response, "none"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    total = text.rpartition("Coreference: ")[2]
    return [float(count) for pair in re.findall(r"\((\S+) / (\S+)\)", total) for count in pair]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_counts_are_those_of_the_official_scorer(seed, tmp_path):
    if not os.environ.get("LDT_COREF_SCORER"):
        pytest.skip("LDT_COREF_SCORER is not the path of scorer.pl of the CoNLL scorer, 8.01")
    documents = [pair(5 * seed + number, 40) for number in range(5)]
    for side, name in enumerate(("key", "response")):
        text = []
        for number, clusters in enumerate(documents):
            words = [[f"w{n}" for n in range(50)]]
            text += conll(Document.of_words(f"d_{number}", words, clusters=clusters[side]))
        (tmp_path / name).write_text("".join(text))
    counts = [metrics.counts(*sides) for sides in documents]
    for metric, name in (("muc", "muc"), ("bcub", "b_cubed"), ("ceafe", "ceaf_e")):
        expected = perl(metric, str(tmp_path / "key"), str(tmp_path / "response"))
        assert np.sum([each[name] for each in counts], 0) == pytest.approx(expected)
