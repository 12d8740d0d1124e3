"""The base of tasks with questions on scientific papers, as in QASPER."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ldt.data.formats.qasper import TYPES, UNANSWERABLE, YES, Reference
from ldt.errors import DataError, listed, shown
from ldt.io.records import Example, field, texts
from ldt.io.strict_json import take
from ldt.io.strict_json import texts as all_texts
from ldt.metrics import baseline, qasper
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import mean
from ldt.tasks.base import (
    PublishedLayout,
    SplitGroups,
    Task,
    TaskAnswers,
    TaskReads,
    best_constant,
    path_of,
    strata_of,
)
from ldt.tasks.text.alignment import Span

if TYPE_CHECKING:
    from ldt.data.options import DataSection


class PaperQuestions(Task):
    """Questions on a paper, and the paragraphs that are the evidence.

    An example has ``question``, ``paragraphs`` and, where it has them, ``title``, ``abstract`` and
    ``sections`` (the name of each paragraph's section, or null); ``answers`` has an {answer, type,
    evidence, paragraphs, spans} of each annotator: ``type`` is extractive, abstractive, boolean or
    none, ``evidence`` are texts, ``paragraphs`` numbers of paragraphs from 0, and ``spans`` the
    texts of an extractive answer.
    """

    reads: ClassVar[TaskReads] = replace(
        Task.reads,
        document="paragraphs",
        fields=("question", "title", "abstract", "sections", "answers"),
        noun="questions",
        signs=(("question", "paragraphs", "answers"),),
    )
    answers: ClassVar[TaskAnswers] = replace(
        Task.answers,
        kind="paper",
        metric="Answer F1",
        layouts={"qasper": PublishedLayout(qasper.published)},
    )

    def groups(self, example: Example, data: "DataSection") -> SplitGroups:
        """The paper: questions on one are not parted."""
        return SplitGroups(self.parts(example, data)[0], strata_of(self, example, data))

    def paper(self, example: Example, data: "DataSection") -> tuple[str, list[Span]]:
        """The paper as one text, here a paragraph a line, and the characters of each paragraph."""
        places, start = [], 0
        paragraphs = self._paragraphs(example, data)
        for paragraph in paragraphs:
            places.append((start, start + len(paragraph)))
            start += len(paragraph) + 1
        return "\n".join(paragraphs), places

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, Any]:
        """Return ``references``, of all annotators, and the numbers of ``paragraphs`` of each.

        Raises:
            DataError: there are no answers, or one has another form.
        """
        path, where = path_of(self, "answers", data), example.where
        answers = field(example, path)
        if not isinstance(answers, list) or not answers:
            raise DataError(
                f"{where}: field {path!r} is {shown(answers)}, expected a list of one at least"
            )
        count, references, numbers = len(self._paragraphs(example, data)), [], []
        for answer in answers:
            type = take(answer, "type", str, where)
            if type not in TYPES:
                raise DataError(f"{where}: type {type!r}, expected one of {listed(TYPES)}")
            evidence = all_texts(take(answer, "evidence", list, where), where)
            spans = all_texts(take(answer, "spans", list, where), where)
            references.append(Reference(take(answer, "answer", str, where), type, evidence, spans))
            numbers.append(take(answer, "paragraphs", list, where))
            for n in numbers[-1]:
                if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < count:
                    raise DataError(
                        f"{where}: paragraph {shown(n)} as evidence; there are {count:,}, from 0"
                    )
        return {"references": references, "paragraphs": numbers}

    def measure(
        self, answers: Sequence[dict], golds: Sequence[dict], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return Answer F1 and Evidence F1, from 0 to 100, by the published rules, and rows of the
        types of answers, to which questions belong as there."""
        groups: dict[str, list[dict[str, float]]] = {name: [] for name in TYPES}
        scores = []
        for answer, gold in zip(answers, golds, strict=True):
            scores.append(qasper.score(gold, answer))
            groups[qasper.best_type(gold["references"], answer["answer"])].append(scores[-1])
        rows = [
            {"type": name, "questions": len(members), **mean(members)}
            for name, members in groups.items()
            if members
        ]
        return mean(scores), rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return what Unanswerable has, or Yes, each without evidence."""
        said = (UNANSWERABLE, YES)
        return best_constant(
            self,
            {baseline.quoted(name): {"answer": name, "evidence": []} for name in said},
            golds,
            config,
        )

    def sectioned(self, example: Example, data: "DataSection") -> Iterator[tuple[str | None, str]]:
        """Yield each paragraph behind the name of the section that begins with it, None where it
        begins none.

        Raises:
            DataError: there are no paragraphs, or not as many names of sections.
        """
        paragraphs = self._paragraphs(example, data)
        sections = example.fields.get(path_of(self, "sections", data)) or [None] * len(paragraphs)
        if not isinstance(sections, list) or len(sections) != len(paragraphs):
            raise DataError(
                f"{example.where}: field 'sections' is {shown(sections)}, expected the name of the "
                f"section of each of {len(paragraphs):,} paragraphs"
            )
        before = None
        for section, paragraph in zip(sections, paragraphs, strict=True):
            begins = isinstance(section, str) and section and section != before
            before = section
            yield section if begins else None, paragraph

    def _paragraphs(self, example: Example, data: "DataSection") -> list[str]:
        return texts(example, path_of(self, "paragraphs", data))
