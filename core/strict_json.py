"""JSON from untrusted senders: decoded strictly, with the place of an error.

Stricter than `json.loads`: a lone surrogate (`"\\ud800"`), which no database can store, a number
beyond 64 bits, NaN and nesting beyond the interpreter's stack are errors.
"""

import re
from typing import Any, TypeVar, cast

import msgspec

from core.errors import InvalidInputError, VedetteError

T = TypeVar("T")

_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_BRACKET_OR_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
_ESCAPE_LENGTH = 6
_LONG_NUMBER = re.compile(rb"-?[0-9]{20,}")
# An error beyond this is reported without its byte: the search must not cost more than the error.
_SEARCHED_BYTES = 256 * 1024
_REPORTED_LEVELS = 500


class MalformedJSONError(VedetteError):
    """The body is not JSON, or JSON that can't be stored."""

    status = 400
    default_code = "bad_json"


def decode_json(data: bytes, kind: type[T] | None = None) -> T:
    """Return the decoded JSON; `kind` is the type to decode it as, by default any.

    Raises:
        MalformedJSONError: it is not strict JSON; names the byte or the field.
        msgspec.ValidationError: it is, but of another type.
    """
    try:
        return cast("T", msgspec.json.decode(data, type=Any if kind is None else kind))
    except msgspec.ValidationError as error:
        if "out of range" not in str(error):
            raise
        problem, number = str(error).replace("`", ""), _LONG_NUMBER.search(data, 0, _SEARCHED_BYTES)
        place = f" (byte {number.start()})" if number else ""
        raise _malformed(f"{problem}{place}") from error
    except RecursionError as error:
        raise _malformed(_nesting(data)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = _lone_surrogate(data)
        problem = str(error) if at is None else f"lone surrogate (byte {at})"
        raise _malformed(problem.removeprefix("JSON is malformed: ")) from error


def check_value_count(document: object, *, max_count: int) -> None:
    """Check how many values a document has, which schemas read one by one.

    Raises:
        InvalidInputError: there are more; keys of objects count, too.
    """
    count = 0
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            count += len(value)
            waiting += value.values() if isinstance(value, dict) else value
        if count > max_count:
            problem = f"The body has more than {max_count} values. Send it in parts."
            raise InvalidInputError(problem, errors={"body": [problem]})


def _malformed(problem: str) -> MalformedJSONError:
    return MalformedJSONError(
        f"The body is not valid JSON: {problem}. Correct it and send it again.",
        errors={"body": [problem]},
    )


def _lone_surrogate(data: bytes) -> int | None:
    """Return the position of the first escaped surrogate without its other half."""
    high_at: int | None = None
    for escape in _ESCAPE.finditer(data, 0, _SEARCHED_BYTES):
        code = int(escape[1], 16) if escape[1] else 0
        if high_at is not None:
            if code not in _LOW or escape.start() != high_at + _ESCAPE_LENGTH:
                return high_at
            high_at = None
        elif code in _HIGH:
            high_at = escape.start()
        elif code in _LOW:
            return escape.start()
    return high_at


def _nesting(data: bytes) -> str:
    """Describe the first place that is nested deeply."""
    depth = 0
    for token in _BRACKET_OR_STRING.finditer(data, 0, _SEARCHED_BYTES):
        if token[0] in {b"[", b"{"}:
            depth += 1
            if depth == _REPORTED_LEVELS:
                return f"nested more than {depth} levels deep (byte {token.start()})"
        elif token[0] in {b"]", b"}"}:
            depth -= 1
    return "nested too deeply"
