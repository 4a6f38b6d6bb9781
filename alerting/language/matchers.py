"""Matchers in the notation of Alertmanager: `rule=GPU too hot`, `gpu=~"0|1"`.

A matcher compares a label of an alert (see `notification.labels`) with `=`, `!=`, `=~` or `!~`. A
missing label is "". Patterns are RE2, which takes linear time, and must match the whole value.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_MATCHERS = 10
MAX_LENGTH = 500
_MATCHER = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.:/-]*)\s*(=~|!~|!=|=)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Matcher:
    """A label, an operator and a value."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        """Return the text that `parse_matcher` reads."""
        return f"{self.label}{self.operator}{self.value}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels of an alert match."""
        text = labels.get(self.label, "")
        is_equal = (
            _is_match(self.value, text) if self.operator.endswith("~") else text == self.value
        )
        return is_equal is not self.operator.startswith("!")


def parse_matcher(text: str) -> Matcher:
    """Return the matcher of a text.

    Raises:
        ValueError: names what is wrong.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"The matcher {text[:20]!r}... is longer than {MAX_LENGTH} characters.")
    matcher = split_matcher(text)
    if matcher.operator.endswith("~"):
        try:
            _check_pattern(matcher.value)
        except (ValueError, re.error) as error:
            raise ValueError(f"{text!r} has an invalid pattern: {error}") from None
    return matcher


def split_matcher(text: str) -> Matcher:
    """Return the matcher of a text, of which a pattern may be invalid.

    Raises:
        ValueError: it has no label or no operator.
    """
    match = _MATCHER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a matcher. Use LABEL=VALUE, or !=, =~ or !~.")
    label, operator, value = match.groups()
    if len(value) > 1 and value.startswith('"') and value.endswith('"'):
        value = value[1:-1]
    return Matcher(label, operator, value)


def match_all(matchers: Sequence[str], labels: Mapping[str, str]) -> bool:
    """Return whether labels match all matchers."""
    return all(parse_matcher(text).matches(labels) for text in matchers)


def _check_pattern(pattern: str) -> None:
    try:
        import pyarrow as pa  # noqa: PLC0415 - as below
        import pyarrow.compute as pc  # noqa: PLC0415
    except ImportError:  # a command that converts rules; the server checks them when they are saved
        re.compile(pattern)
        return
    # By itself: `a)|(b` is valid only within the parentheses that matching adds.
    pc.match_substring_regex(pa.scalar(""), pattern=pattern)


@lru_cache(maxsize=10_000)
def _is_match(pattern: str, text: str) -> bool:
    # 8 MiB that servers without such patterns save.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    is_match = pc.match_substring_regex(pa.scalar(text), pattern=rf"\A(?:{pattern})\z")
    return bool(is_match.as_py())
