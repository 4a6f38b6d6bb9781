"""The words of an InfluxQL text, with their columns."""

import re
from dataclasses import dataclass

from timeseries.influxql.syntax import InfluxQLError

MAX_CHARACTERS = 100_000
MAX_TOKENS = 20_000
DURATION_NS = {
    "ns": 1,
    "u": 1_000,
    "µ": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_DURATION = re.compile(r"(\d+)(ns|ms|u|µ|s|m|h|d|w)")
# A comment without an end is an error at once: many would each be looked through to the end.
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<duration>(?:\d{1,15}(?:ns|ms|u|µ|s|m|h|d|w))+(?![A-Za-z0-9_]))
    |(?P<number>\d+(?:\.\d*)?|\.\d+)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |"(?P<quoted>(?:[^"\\\n]|\\.)*)"
    |'(?P<text>(?:[^'\\\n]|\\.)*)'
    |(?P<sign>::|!=|<>|!~|=~|<=|>=|/(?!\*)|[-+*%=<>(),.;])""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NEWLINE = {"n": "\n"}
# A slash after one of these begins a pattern; after anything else it divides.
_BEFORE_PATTERNS = frozenset({"=~", "!~", "from", "by", "select", ",", "("})


@dataclass(frozen=True, slots=True)
class Token:
    """A word: its kind, its text without quotes, and its column, from 1."""

    kind: str
    text: str
    column: int

    @property
    def keyword(self) -> str:
        """What it is as a keyword or sign: in lower case; empty for names in quotes and values."""
        return self.text.lower() if self.kind in {"word", "sign"} else ""

    @property
    def shown(self) -> str:
        """What it is in an error."""
        return repr(self.text[:50]) if self.kind != "end" else "the end"


def tokens_of(text: str) -> list[Token]:
    """Return the words of a text, the last of which has the kind `end`.

    Raises:
        InfluxQLError: the text is too long, or has a character that begins no word.
    """
    if len(text) > MAX_CHARACTERS:
        raise InfluxQLError(
            f"The query has {len(text):,} characters, more than {MAX_CHARACTERS:,}. Send a part."
        )
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        is_pattern = bool(tokens) and tokens[-1].keyword in _BEFORE_PATTERNS
        match = (is_pattern and _REGEX.match(text, at)) or _TOKEN.match(text, at)
        if not match:
            raise InfluxQLError(f"Unexpected {text[at : at + 20]!r} at column {at + 1}.")
        kind = match.lastgroup or "regex"
        if kind != "space":
            tokens.append(Token(kind, _unescaped(kind, match[match.lastindex or 0]), at + 1))
        at = match.end()
        if len(tokens) > MAX_TOKENS:
            raise InfluxQLError(f"The query has more than {MAX_TOKENS:,} words. Send a part.")
    return [*tokens, Token("end", "", len(text) + 1)]


def duration_ns(text: str) -> int:
    """Return a duration such as `1h30m` in nanoseconds."""
    return sum(int(count) * DURATION_NS[unit] for count, unit in _DURATION.findall(text))


def _unescaped(kind: str, text: str) -> str:
    if kind == "regex":
        return text.replace(r"\/", "/")
    if kind in {"quoted", "text"}:
        return _ESCAPE.sub(lambda match: _NEWLINE.get(match[1], match[1]), text)
    return text
