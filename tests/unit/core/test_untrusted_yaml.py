"""YAML from users: what it means, and that no text takes long or fails with another error."""

import pytest
import yaml

from core.untrusted_yaml import UntrustedYAMLError, load_untrusted_yaml
from tests.costs import check_cost

BILLION = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SCALARS = (
    "[1, -5, 0x1F, 0b11, 017, 1_000, 1.5, -.5, 1.5e+3, .inf, -.inf, yes, off, ~, null, 'x', 08, "
    "'5', !!str 5, a b, 1e3]"
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: b\nc: [d, {e: f}]\n",
        SCALARS,
        "a: |\n  two\n  lines\nb: >\n  folded\n  text\n",
        "base: &base {b: 1, c: 2}\nother:\n  <<: *base\n  c: 3\nlist: {<<: [*base, {d: 4}]}\n",
        '{"json": [true, false, null, 1.25, "\\u00e9"]}',
    ],
)
def test_a_document_means_what_pyyaml_reads(text: str) -> None:
    assert load_untrusted_yaml(text) == yaml.safe_load(text)


def test_times_and_dates_are_texts() -> None:
    assert load_untrusted_yaml("[12:30, 2026-11-26, 1:1:1.0]") == ["12:30", "2026-11-26", "1:1:1.0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 14_000, "nested more than 30 levels deep (line 1, column 31)"),
        ("- " * 14_000, "nested more than 30 levels deep"),
        ("? " * 5_000, "nested more than 30 levels deep"),
        ("a: " + "9" * 100_000, "a number has 100000 characters (line 1, column 4)"),
        ("a: 0x" + "f" * 100_000, "a number has 100002 characters"),
        ("1:" * 50_000 + "1", "a number has 100001 characters"),
        (BILLION, "more than 10000 values"),
        ("- 1\n" * 50_000, "more than 10000 values. Split it (line 10000, column 3)"),
        ("a: &a [*a]", "there is no anchor 'a' before it"),
        ("? [a]\n: b", "a key is a list or a mapping"),
        ("a: {<<: 3}", "needs a mapping"),
        ("a: b\n---\nc: d", "a second document (line 2, column 1)"),
        ("x" * 600_000, "over 512 KiB"),
        ("a: [", "did not find expected node content"),
        ("a: \x00", "control characters are not allowed"),
        ('"\\ud800"', "invalid Unicode character"),
    ],
)
def test_what_can_not_be_read_is_an_error_with_its_place(text: str, message: str) -> None:
    def load() -> None:
        with pytest.raises(UntrustedYAMLError) as caught:
            load_untrusted_yaml(text)
        assert message in str(caught.value)

    check_cost(load)


@pytest.mark.parametrize("text", ["!!int x", "!!bool x", "!!timestamp x", "!!float ''", "!!set x"])
def test_tags_do_not_change_what_a_scalar_is(text: str) -> None:
    assert load_untrusted_yaml(text) in {"x", ""}
