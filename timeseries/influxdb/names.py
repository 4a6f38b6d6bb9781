"""Names and texts as InfluxDB holds them, and as InfluxQL quotes them.

InfluxDB can't hold every name: a newline ends a line, InfluxQL reads a NUL as the end of the
statement and a carriage return as a newline, a backslash before a comma, a space, an equals sign, a
quote or the end would escape what follows, a `#` or a tab at the start is skipped, and no tag or
field may be called `time`. Of such a name the offending character is stored as `%` and two hex
digits; all other names are stored as they are.
"""

import re

# A percent sign is written as such unless what follows would make it look like an escape.
_ESCAPES = {
    "\x00": "%00",
    "\t": "%09",
    "\n": "%0A",
    "\r": "%0D",
    "#": "%23",
    "%": "%25",
    "\\": "%5C",
}
_TIME, _STORED_TIME = "time", "%74ime"
_MEANINGS = {stored: plain for plain, stored in _ESCAPES.items()} | {"%74": "t"}
_UNSTORABLE = re.compile(r"[\x00\n\r]|^[#\t]|\\(?=[\\, =\"]|\Z)|%(?=(?:00|09|0A|0D|23|25|5C|74))")
_STORED = re.compile("|".join(_MEANINGS))


def stored(text: str) -> str:
    """Return a measurement's name or a tag's value as InfluxDB holds it."""
    return _UNSTORABLE.sub(lambda match: _ESCAPES[match[0]], text)


def stored_key(name: str) -> str:
    """Return the name of a tag or field as InfluxDB holds it."""
    return _STORED_TIME if name == _TIME else stored(name)


def plain(text: str) -> str:
    """Return the name or value that is stored as `text`."""
    return _STORED.sub(lambda match: _MEANINGS[match[0]], text) if "%" in text else text


def identifier(name: str) -> str:
    """Return a stored name as an InfluxQL identifier."""
    return '"' + name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'


def literal(text: str) -> str:
    """Return a stored text as an InfluxQL string."""
    return "'" + text.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n") + "'"
