"""The text of a search: words, phrases, beginnings of words, regular expressions.

    timeout "connection reset" cuda* /step \\d{4,}/ -retry

A line has all of them, and none of those behind a minus. Words, phrases and beginnings ignore upper
and lower case. A regular expression has RE2's syntax, which takes linear time on any input.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from core.errors import InvalidInputError
from logs import arrow
from logs.words import may_contain, words_in

MAX_LENGTH = 500
_TERM = re.compile(
    r"""(?P<minus>-)?(?:
        /(?P<regex>(?:\\.|[^/\\])+)/(?=\s|$)
      | "(?P<phrase>[^"]+)"
      | (?P<word>[^\s"]+)
    )\s*""",
    re.VERBOSE,
)
_IS_WORD = re.compile(r"[A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a search.

    Attributes:
        pattern: what a line has, as a regular expression of RE2.
        is_excluded: whether it must not have it.
        words: whole words that each line with it has, in lower case.
    """

    pattern: str
    is_excluded: bool
    words: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Terms:
    """All parts of a search; none matches every line."""

    parts: Sequence[Term] = ()

    def may_match(self, words: bytes) -> bool:
        """Return whether a block with this filter of words may have a match."""
        return all(may_contain(words, term.words) for term in self.parts if not term.is_excluded)

    def matching(self, lines: pa.Table) -> pa.Table:
        """Return the lines with a match."""
        for term in self.parts:
            matches = arrow.pc.match_substring_regex(lines["text"], term.pattern)
            lines = lines.filter(arrow.pc.invert(matches) if term.is_excluded else matches)
        return lines


def parse_terms(text: str) -> Terms:
    """Return the parts of a search.

    Raises:
        InvalidInputError: a quote is not closed, or a regular expression is not valid.
    """
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise _invalid(f"has more than {MAX_LENGTH} characters")
    parts, position = [], 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise _invalid(
                f'has a quote without an end at {text[position : position + 30]!r}. Add "'
            )
        parts.append(_term(match))
        position = match.end()
    return Terms(tuple(parts))


def _term(match: re.Match[str]) -> Term:
    is_excluded = match["minus"] is not None
    if match["regex"] is not None:
        pattern = match["regex"].replace(r"\/", "/")
        _check(pattern)
        return Term(pattern, is_excluded)
    text: str = match["phrase"] or match["word"]
    is_beginning = match["word"] is not None and text.endswith("*") and len(text) > 1
    text = text[:-1] if is_beginning else text
    pattern = f"(?i){_edge(text[0])}{_quoted(text)}{'' if is_beginning else _edge(text[-1])}"
    return Term(pattern, is_excluded, frozenset(_whole_words(text, is_beginning=is_beginning)))


def _edge(character: str) -> str:
    """Return what separates a word from its neighbors, where its end belongs to a word."""
    return r"\b" if _IS_WORD.match(character) else ""


def _quoted(text: str) -> str:
    """Return a pattern of RE2 that is this text; any space matches any other."""
    return r"\s+".join(
        re.sub(r"([^\w])", r"\\\1", part, flags=re.ASCII)
        if part.isascii()
        else _quoted_unicode(part)
        for part in text.split()
    )


def _quoted_unicode(text: str) -> str:
    return "".join(
        character
        if not character.isascii() or character.isalnum() or character == "_"
        else f"\\{character}"
        for character in text
    )


def _whole_words(text: str, *, is_beginning: bool) -> set[str]:
    """Return the words of a text, without a last one that may go on."""
    if is_beginning:
        text = re.sub(r"[A-Za-z0-9_]+$", "", text)
    return words_in(text) if text.isascii() else set()


def _check(pattern: str) -> None:
    try:
        arrow.pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise _invalid(
            f"has /{pattern}/, which is not a regular expression of RE2: {reason}"
        ) from error


def _invalid(problem: str) -> InvalidInputError:
    return InvalidInputError(f"The search {problem}.", errors={"search": [problem]})
