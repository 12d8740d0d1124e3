"""The base of tasks with questions on scientific papers, as in QASPER."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ldt.data.formats.qasper import TYPES, UNANSWERABLE, YES, Reference
from ldt.errors import DataError, listed, shown
from ldt.io.records import Example, field, texts
from ldt.io.strict_json import take
from ldt.io.strict_json import texts as all_texts
from ldt.metrics import baseline, qasper
from ldt.metrics.result import mean
from ldt.tasks.base import Task, Writer

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

    document: ClassVar[str] = "paragraphs"
    fields: ClassVar[tuple[str, ...]] = ("question", "title", "abstract", "sections", "answers")
    layouts: ClassVar[Mapping[str, Writer]] = {"qasper": qasper.published}

    def unit(self, example: Example, data: "DataSection") -> Hashable:
        """The paper: questions on one are not parted."""
        return self.parts(example, data)[0]

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, Any]:
        """Return ``references``, of all annotators, and the numbers of ``paragraphs`` of each.

        Raises:
            DataError: there are no answers, or one has another form.
        """
        path, where = self.path("answers", data), example.where
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

    def trivial(self, golds: Sequence[Any], config) -> dict[str, dict]:
        """Return Unanswerable, and Yes, each without evidence."""
        said = (UNANSWERABLE, YES)
        return {baseline.quoted(name): {"answer": name, "evidence": []} for name in said}

    def default_metric(self, config) -> str:
        """Answer F1."""
        return "Answer F1"

    def sectioned(self, example: Example, data: "DataSection") -> Iterator[tuple[str | None, str]]:
        """Yield each paragraph behind the name of the section that begins with it, None where it
        begins none.

        Raises:
            DataError: there are no paragraphs, or not as many names of sections.
        """
        paragraphs = self._paragraphs(example, data)
        sections = example.fields.get(self.path("sections", data)) or [None] * len(paragraphs)
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
        return texts(example, self.path("paragraphs", data))
