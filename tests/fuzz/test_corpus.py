"""The fuzz target on a fixed corpus: lines at the edges of the fast path, in many combinations.

A normal run checks a fixed sample; the `nightly` marker selects the complete corpus.
"""

import itertools
import random

import pytest

from tests.fuzz.exact import check
from tests.fuzz.lines import LINES

PAIRS = list(itertools.product(LINES, LINES))
SAMPLE = random.Random(20).sample(PAIRS, k=300)  # noqa: S311 - not for secrets
ODD_SAMPLE = LINES[::6]
BODY = b"gpu,gpu=0 power=1.5,used=93i 5\ngpu,gpu=1 power=-2e-05,used=7i 6\n"
MUTATIONS = list(itertools.product(range(len(BODY)), b'\n =,"\\#\r\ti.e-+5_\xff'))


def check_pairs(pairs: list[tuple[bytes, bytes]]) -> None:
    for first, second in pairs:
        check(first + b"\n" + second)
        check(first + second)


def check_mutations(mutations: list[tuple[int, int]]) -> None:
    for at, byte in mutations:
        check(BODY[:at] + bytes([byte]) + BODY[at + 1 :])


def test_a_sample_of_pairs_of_lines_parses_as_the_grammar() -> None:
    check_pairs(SAMPLE)


@pytest.mark.nightly
@pytest.mark.parametrize("first", LINES)
def test_every_pair_of_lines_parses_as_the_grammar(first: bytes) -> None:
    check_pairs([(first, second) for second in LINES])


def test_long_bodies_of_mixed_lines_parse_as_the_grammar() -> None:
    chance = random.Random(20)  # noqa: S311 - not for secrets
    for count in (65, 130, 400):
        check(b"\n".join(chance.choices(LINES, k=count)))


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(line, marks=[] if line in ODD_SAMPLE else [pytest.mark.nightly])
        for line in LINES
    ],
)
def test_one_odd_line_changes_no_other_line(odd: bytes) -> None:
    plain = [b"m,a=%d f=%d.5,g=%d 5" % (number, number, number) for number in range(200)]
    check(b"\n".join([*plain[:130], odd, *plain[130:], b""]))


def test_a_sample_of_bodies_with_a_byte_changed_parses_as_the_grammar() -> None:
    check_mutations(MUTATIONS[::10])


@pytest.mark.nightly
def test_bodies_with_any_byte_changed_parse_as_the_grammar() -> None:
    check_mutations(MUTATIONS)
