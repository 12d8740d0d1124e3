"""Proof, from a kernel's machine code for Hopper, that its matrix units read shared memory alone.

An instruction of warpgroups (HGMMA) finds its factors by descriptors in pairs of uniform registers.
`check` follows the first lane of each warpgroup along all paths of the code (SASS) with sets of
integers in the place of numbers, until they grow no more: a descriptor is proved where each of its
values is known and starts in the shared memory of a program. What is read from memory is unknown,
and so is a set of more than `MOST`. A comparison is kept with the register that it tells of, so
that a counter of stages, which starts again at its end, stays a set of few.
"""

import operator
import re
from itertools import product
from math import prod
from typing import NamedTuple

MASK = 2**32 - 1
MOST = 24  # integers of a set
FIRST = 1024  # byte of shared memory at which that of a program starts
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(\S+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", re.M)
PREDICATE = re.compile(r"!?U?P(?:\d|T)")
REGISTER = re.compile(r"(U?R)(\d+)")
UNFOLLOWED = ("BRX", "BRXU", "CALL", "JMP", "JMX", "JMXU", "RET")  # whose targets are not told
BOTH = frozenset((0, 1))


def check(sass, shared, warps):
    """{"proved": number of descriptors, "unknown", "outside": lists of the others}.

    Args:
        sass: what ``cuobjdump -sass`` prints of one kernel.
        shared: bytes of shared memory of a program.
        warps: of a program.
    """
    code, values = [Instruction.of(*line) for line in LINE.findall(sass)], {}
    for warp in range(0, warps, 4):
        for place, (low, high) in descriptors(code, 32 * warp).items():
            starts = None if None in (low, high) else {(x & 0x3FFF) << 4 for x in low}
            values.setdefault(place, []).append(starts)
    verdicts = {"proved": 0, "unknown": [], "outside": []}
    for (address, factor), of_warps in sorted(values.items()):
        if None in of_warps:
            verdicts["unknown"].append(f"{address:#x} {factor}")
        elif wrong := {x for x in set().union(*of_warps) if not FIRST <= x < FIRST + shared}:
            verdicts["outside"].append(
                f"{address:#x} {factor}: {', '.join(map(hex, sorted(wrong)))}"
            )
        else:
            verdicts["proved"] += 1
    return verdicts


class Instruction(NamedTuple):
    """A line of SASS: words are its operands without predicates, the first the destination."""

    address: int
    guard: str
    name: str
    kinds: list
    words: list
    written: list  # predicates
    asked: list

    @classmethod
    def of(cls, address, guard, op, operands):
        name, *kinds = op.split(".")
        operands = [x.replace(".reuse", "") for x in re.split(r",\s*(?![^\[]*\])", operands) if x]
        is_word = [not PREDICATE.fullmatch(x) for x in operands]
        first = int(is_word[:1] == [True])  # predicates that are written may stand behind a word
        last = (is_word[first:] + [True]).index(True) + first
        words = [x for x, word in zip(operands, is_word, strict=True) if word]
        asked = [x for x in operands[last:] if PREDICATE.fullmatch(x)]
        written = operands[first:last]
        return cls(int(address, 16), guard or "PT", name, kinds, words, written, asked)


class Comparison(NamedTuple):
    """A register that is compared with a number, which a predicate tells of."""

    register: str
    name: str
    signed: bool
    number: int

    def holds(self, x):
        return compare(self.name, self.signed, x, self.number)


class State(NamedTuple):
    """Sets by register and predicate, unknown ones left out, and a `Comparison` by predicate."""

    sets: dict
    facts: dict

    def copy(self):
        return State(dict(self.sets), dict(self.facts))

    def joined(self, other):
        """State that is true wherever one of the two is."""
        both = self.sets.keys() & other.sets.keys()
        union = {name: self.sets[name] | other.sets[name] for name in both}
        facts = {name: fact for name, fact in self.facts.items() if other.facts.get(name) == fact}
        return State({name: x for name, x in union.items() if len(x) <= MOST}, facts)

    def write(self, name, values):
        for key in [key for key, fact in self.facts.items() if name in (key, fact.register)]:
            del self.facts[key]
        self.sets.pop(name, None)
        if values is not None and len(values) <= MOST:
            self.sets[name] = values

    def word(self, operand):
        """The set of an operand; None where it is unknown."""
        name = operand.lstrip("-~")
        if name in ("RZ", "URZ", "SRZ", "SR_CgaCtaId", "SR_LANEID"):
            values = frozenset((0,))
        elif re.fullmatch(r"0x[0-9a-f]+|\d+", name):
            values = frozenset((int(name, 0),))
        else:
            values = self.sets.get(name)
        change = {"-": operator.neg, "~": operator.inv}.get(operand[0], operator.pos)
        return every(change, values)

    def truths(self, predicate):
        """What a predicate may be: 0, 1."""
        name = predicate.removeprefix("!")
        values = frozenset((1,)) if name in ("PT", "UPT") else self.sets.get(name, BOTH)
        return values if name == predicate else frozenset(1 - x for x in values)

    def chosen(self, operand, predicate, truth):
        """The set of an operand where a predicate has this truth, empty where it never has."""
        if truth not in self.truths(predicate):
            return frozenset()
        name, values = predicate.removeprefix("!"), self.word(operand)
        fact = self.facts.get(name)
        if values is None or fact is None or fact.register != operand:
            return values
        return frozenset(x for x in values if fact.holds(x) == (truth == (name == predicate)))


def descriptors(code, thread):
    """{(address, "A" or "B"): sets of the two words of a descriptor} of one thread's way."""
    index, states, waiting = {op.address: i for i, op in enumerate(code)}, {}, [0]
    target = {i: index[int(op.words[-1], 16)] for i, op in enumerate(code) if op.name == "BRA"}
    starts = {i + 1 for i, op in enumerate(code) if op.name in ("BRA", "EXIT")} | {*target.values()}

    def followers(start, read):
        """(index, state) of each block that may follow on one."""
        i, state = start, states[start].copy()
        while code[i].name not in ("BRA", "EXIT"):
            step(code[i], state, read)
            i += 1
            if i in starts:
                return [(i, state)]
        truths = [state.truths(name) for name in (code[i].guard, *code[i].written)]
        after = [(i + 1, state)] if any(0 in truth for truth in truths) else []
        if i in target and all(1 in truth for truth in truths):
            after.append((target[i], state.copy()))
        return after

    states[0] = State({"thread": frozenset((thread,))}, {})
    while waiting:
        for after, state in followers(waiting.pop(), {}):
            merged = states[after].joined(state) if after in states else state
            if merged != states.get(after):
                states[after] = merged
                waiting.append(after)
    read = {}
    for start in states:
        followers(start, read)
    return read


def step(op, state, read):
    """Change a state as an instruction does, and note the descriptors of one in ``read``."""
    if op.name in UNFOLLOWED:
        raise ValueError(f"{op.name} at {op.address:#x} cannot be followed")
    if op.name.endswith("GMMA"):
        place = next(i for i, word in enumerate(op.words) if word.startswith("gdesc"))
        first = int(REGISTER.search(op.words[place])[2])
        for factor, number in (("A", first), ("B", first + 2)):
            if factor == "B" or place == 1:  # else the first factor is in registers
                words = state.word(f"UR{number}"), state.word(f"UR{number + 1}")
                read[op.address, factor] = words
    truths = state.truths(op.guard)
    if 1 not in truths:
        return
    changes = {name: None for name in op.written if name not in ("PT", "UPT")}
    if op.name == "R2P":  # any predicate
        changes |= dict.fromkeys(name for name in state.sets if PREDICATE.fullmatch(name))
    match = None if not op.words or "SETP" in op.name else REGISTER.fullmatch(op.words[0])
    if match:
        known = results(op, state)
        for i, values in enumerate([None] * width(op) if known is None else known):
            changes[f"{match[1]}{int(match[2]) + i}"] = values
    facts = compared(op, state, changes) if op.name in ("ISETP", "UISETP") else {}
    if op.name in ("IADD3", "UIADD3") and not op.kinds and len(op.written) == 1:
        values = every(lambda *terms: sum(terms) >> 32, *map(state.word, op.words[1:]))
        negated = any(word[0] in "-~" for word in op.words)
        changes[op.written[0]] = None if negated or not values or values - BOTH else values
    for name, values in changes.items():
        if 0 in truths:  # then it may stay as it was
            old = state.truths(name) if PREDICATE.fullmatch(name) else state.sets.get(name)
            values = None if None in (values, old) else values | old
        state.write(name, values)
    if 0 not in truths:
        state.facts.update(facts)


def results(op, state):
    """The sets of the registers that an instruction writes; None where it is not understood."""
    name, kinds = op.name.removeprefix("U"), op.kinds
    x = [state.word(word) for word in op.words[1:]]
    carried = every(lambda *bits: sum(bits), *map(state.truths, op.asked if "X" in kinds else []))
    if name in ("MOV", "R2UR"):
        return x[:1]
    if name in ("S2R", "S2UR"):
        return [state.sets["thread"] if op.words[1] == "SR_TID.X" else x[0]]
    if name == "CS2R":
        return x[:1] * (1 if "32" in kinds else 2)
    if name == "IMAD" and not {"WIDE", "HI"} & {*kinds}:
        if frozenset((0,)) in x[:2]:
            x[:2] = [frozenset((0,))] * 2
        return [every(lambda p, q, r, c: p * q + r + c, *x[:3], carried)]
    if name == "IADD3" and "64" in kinds:
        return wide_sum(op.words[1:], state)
    if name in ("IADD3", "VIADD"):
        return [every(lambda *values: sum(values), *x, carried)]
    if name == "LOP3":
        return [logic(*x[:4])]
    if name == "SHF":
        return [every(lambda p, by, q: shifted(kinds, p, by, q), *x)]
    if name == "SGXT" and kinds == ["U32"]:
        return [every(lambda p, bits: p & ((1 << bits) - 1), *x)]
    if name == "LEA" and not {"HI", "X"} & {*kinds}:
        return [every(lambda p, q, by: (p << by) + q, *x)]
    if name == "LEA" and kinds == ["HI"] and len(x) == 4:
        return [every(lambda p, q, r, by: ((r << 32 | p) << by >> 32) + q, *x)]
    if name == "SEL":
        sides = [state.chosen(op.words[2 - truth], op.asked[0], truth) for truth in (0, 1)]
        return [None if None in sides else sides[0] | sides[1]]
    return None


def width(op):
    """Registers of a result that is not understood."""
    if op.name.endswith("GMMA"):
        return max(int(op.kinds[0].split("x")[1]) // 2, 4)
    if op.name.endswith("MMA") or "128" in op.kinds or (op.name == "LDSM" and "4" in op.kinds):
        return 4
    wide = {"64", "WIDE", "F64", "U64", "S64"} & {*op.kinds}
    return 2 if wide or op.name in ("LDSM", "CS2R", "DADD", "DMUL", "DFMA") else 1


def every(function, *sets):
    """The set of a function of each combination; None where one is unknown, or they are many."""
    if None in sets or prod(map(len, sets)) > 4096:
        return None
    return frozenset(function(*values) & MASK for values in product(*sets))


def compared(op, state, changes):
    """{predicate: `Comparison`} of an instruction that compares; its set goes into ``changes``."""
    if op.asked not in (["PT"], ["UPT"]) or "AND" not in op.kinds or "EX" in op.kinds:
        return {}
    predicate, order = op.written[0], (op.kinds[0], "U32" not in op.kinds)
    x, y = map(state.word, op.words)
    changes[predicate] = every(lambda p, q: compare(*order, p, q), x, y)
    single = y is not None and len(y) == 1 and REGISTER.fullmatch(op.words[0])
    return {predicate: Comparison(op.words[0], *order, *y)} if single else {}


def compare(name, is_signed, x, y):
    x, y = (signed(x), signed(y)) if is_signed else (x, y)
    return getattr(operator, name.lower())(x, y)


def signed(x):
    return x - 2**32 if x >> 31 else x


def wide_sum(words, state):
    """The sets of the two registers of a sum of pairs of registers, and of numbers."""
    sets, signs = [], [-1 if word[0] == "-" else 1 for word in words]
    for word in (word.lstrip("-") for word in words):
        match = REGISTER.fullmatch(word)
        high = state.word(f"{match[1]}{int(match[2]) + 1}") if match else frozenset((0,))
        sets += [state.word(word), high]

    def total(*halves):
        pairs = zip(signs, halves[::2], halves[1::2], strict=True)
        return sum(sign * (low + (high << 32)) for sign, low, high in pairs)

    return [every(total, *sets), every(lambda *halves: total(*halves) >> 32, *sets)]


def logic(x, y, z, table):
    """The set of a function of three bits, of which ``table`` has the rows."""
    (table,) = table
    rows = [row for row in range(8) if table >> row & 1]
    sets = [x, y, z]
    for i, bit in enumerate((4, 2, 1)):  # operands on which nothing depends
        if all(row ^ bit in rows for row in rows):
            sets[i] = frozenset((0,))

    def combined(*words):
        result = 0
        for row in rows:
            p, q, r = (x if row & bit else ~x for x, bit in zip(words, (4, 2, 1), strict=True))
            result |= p & q & r
        return result

    return every(combined, *sets)


def shifted(kinds, x, by, y):
    """The lower or the higher word of x and y, shifted."""
    wide = (signed(y) if "S32" in kinds else y) << 32 | x
    wide = wide << min(by, 64) if "L" in kinds else wide >> min(by, 64)
    return wide >> 32 if "HI" in kinds else wide
