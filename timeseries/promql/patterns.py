"""Regular expressions of PromQL: RE2, which takes linear time, and always of the whole text."""

from collections.abc import Sequence

import pyarrow as pa

from core.errors import InvalidInputError


class PatternError(InvalidInputError):
    """A pattern is not valid RE2."""

    status = 400
    default_code = "invalid_promql"


def check_pattern(pattern: str) -> None:
    """Check that a pattern is valid.

    Raises:
        PatternError: it is not.
    """
    full_matches([], pattern)


def full_matches(texts: Sequence[str], pattern: str) -> list[bool]:
    """Return whether each text matches as a whole."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 8 MiB

    try:
        # By itself: `a)|(b` is valid only within the parentheses that matching adds.
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
        array = pa.array(texts, pa.string())
        matches = pc.match_substring_regex(array, pattern=rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise PatternError(f"The pattern {pattern!r} is not valid: {error}.") from None
    return list(matches.to_pylist())


def replaced(texts: Sequence[str], pattern: str, replacement: str) -> list[str]:
    """Return the replacement for each text, which must match as a whole.

    Args:
        texts: texts that match.
        pattern: the pattern.
        replacement: with `\\1` for the first group of the pattern.

    Raises:
        PatternError: the replacement is not valid, or divides a character.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - 8 MiB

    array = pa.array(texts, pa.string())
    try:
        results = pc.replace_substring_regex(
            array, pattern=rf"\A(?:{pattern})\z", replacement=replacement
        )
        return list(results.to_pylist())
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise PatternError(
            f"What the pattern {pattern!r} matches can't be replaced: {error}."
        ) from None
