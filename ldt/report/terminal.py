"""Charts for a terminal: lines of dots, in characters of two by four."""

import math
from collections.abc import Sequence

from rich.text import Text

from ldt.errors import plain
from ldt.metrics.numbers import metric_text

Points = Sequence[tuple[float, float | None]]

HEIGHT = 12  # lines of a chart without its axis
MARKS = "abcdefghijklmnopqrstuvwxyz"  # of lines where there is no colour
COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow")
# Bits of the dots of a character of braille, by column and row; U+2800 has none of them.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


def chart(
    title: str, lines: dict[str, Points], *, width: int, colour: bool, x: str = "step"
) -> list[Text]:
    """Draw lines over one another: a heading, the chart, its axes, and a legend.

    Args:
        title: of the chart, the name of what goes upwards.
        lines: by name, points in the order of x; None breaks a line.
        width: columns; at least some 30 are of use.
        colour: tells the lines apart; without it those of several have letters.
        x: name of what goes to the right.

    Returns:
        Lines of text as wide as ``width`` at most, but for names; none without a point.
    """
    points = [(a, b) for line in lines.values() for a, b in line if b is not None]
    if not points:
        return []
    left, right = min(a for a, _ in points), max(a for a, _ in points)
    low, high = min(b for _, b in points), max(b for _, b in points)
    ticks = [_figure(high), _figure((low + high) / 2), _figure(low)]
    margin = max(map(len, ticks))
    columns = max(10, width - margin - 2)
    cells = [[[0, 0] for _ in range(columns)] for _ in range(HEIGHT)]  # dots, and whose they are

    def place(a: float, b: float) -> tuple[int, int]:
        across = (a - left) / (right - left) if right > left else 0.0
        up = (b - low) / (high - low) if high > low else 0.5
        return round(across * (2 * columns - 1)), round((1 - up) * (4 * HEIGHT - 1))

    for number, line in enumerate(lines.values()):
        before: tuple[int, int] | None = None
        for a, b in line:
            now = None if b is None else place(a, b)
            for column, row in _between(before, now) if now else ():
                cell = cells[row // 4][column // 2]
                cell[0] |= _DOTS[column % 2][row % 4]
                cell[1] = number
            before = now
    letters = not colour and len(lines) > 1
    labels = {0: ticks[0], HEIGHT // 2: ticks[1], HEIGHT - 1: ticks[2]}
    drawn = [Text(plain(title), "bold" if colour else "", overflow="fold")]
    for number, line_of_cells in enumerate(cells):
        text = Text(
            f"{labels.get(number, ''):>{margin}} ┤" if number in labels else f"{'':>{margin}} │"
        )
        for dots, whose in line_of_cells:
            mark = (MARKS[whose % len(MARKS)] if letters else chr(_BRAILLE + dots)) if dots else " "
            text.append(mark, COLOURS[whose % len(COLOURS)] if colour and dots else None)
        text.rstrip()
        drawn.append(text)
    drawn += _axis(_figure(left), _figure(right), x, margin, columns)
    for number, (name, line) in enumerate(lines.items()):
        drawn.append(_legend(name, line, title, number, letters, colour))
    return drawn


def _axis(left: str, right: str, x: str, margin: int, columns: int) -> list[Text]:
    """The line below a chart, and what it measures."""
    room = max(1, columns - len(left) - len(right) - len(x))
    words = f"{left}{' ' * (room // 2)}{x}{' ' * (room - room // 2)}{right}"
    return [Text(f"{'':>{margin}} └{'─' * columns}"), Text(f"{'':>{margin}}  {words}")]


def _legend(name: str, line: Points, title: str, number: int, letters: bool, colour: bool) -> Text:
    """What a line is, where it begins and ends, and what of it could not be drawn."""
    known = [b for _, b in line if b is not None]
    mark = MARKS[number % len(MARKS)] if letters else "●"
    text = Text(overflow="fold")
    text.append(mark, COLOURS[number % len(COLOURS)] if colour else None)
    course = ""
    if known:
        course = metric_text(title, known[0])
        if len(known) > 1:
            course = f"first {course}, last {metric_text(title, known[-1])}"
            course += f", lowest {metric_text(title, min(known))}"
            course += f", highest {metric_text(title, max(known))}"
    lost = len(line) - len(known)
    course += f"{'; ' if known else ''}{lost:,} not finite" if lost else ""
    return text.append(f" {plain(name)}: {course or 'no values'}")


def _between(start: tuple[int, int] | None, end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line to ``end``; that one alone without a start."""
    if start is None:
        return [end]
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * part / count),
            round(start[1] + (end[1] - start[1]) * part / count),
        )
        for part in range(count + 1)
    ]


def _figure(value: float) -> str:
    """A number of an axis: whole ones in full, others with four digits."""
    if math.isclose(value, round(value), abs_tol=1e-9) and abs(value) < 1e9:
        return f"{round(value):,}"
    return f"{value:.4g}"
