"""The fuzz target on a fixed corpus: bodies near the fast path's edges, in many combinations."""

import itertools
import random

import pytest

from tests.fuzz.exact import check
from tests.fuzz.lines import LINES


@pytest.mark.parametrize("first", LINES)
def test_every_pair_of_lines_means_what_the_grammar_says(first: bytes) -> None:
    for second in LINES:
        check(first + b"\n" + second)
        check(first + second)


def test_long_bodies_of_mixed_lines_mean_what_the_grammar_says() -> None:
    chance = random.Random(20)  # noqa: S311 - not for secrets
    for count in (65, 130, 400):
        check(b"\n".join(chance.choices(LINES, k=count)))


@pytest.mark.parametrize("odd", LINES)
def test_one_odd_line_among_many_changes_nothing_but_itself(odd: bytes) -> None:
    plain = [b"m,a=%d f=%d.5,g=%d 5" % (number, number, number) for number in range(200)]
    check(b"\n".join([*plain[:130], odd, *plain[130:], b""]))


def test_bodies_with_a_byte_changed_mean_what_the_grammar_says() -> None:
    body = b"gpu,gpu=0 power=1.5,used=93i 5\ngpu,gpu=1 power=-2e-05,used=7i 6\n"
    for at, byte in itertools.product(range(len(body)), b'\n =,"\\#\r\ti.e-+5_\xff'):
        check(body[:at] + bytes([byte]) + body[at + 1 :])
