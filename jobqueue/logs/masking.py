"""Secrets in logs of jobs: replaced by asterisks before a log is stored, byte for byte.

The secrets are the job's own and tokens of this portal. A line in parts (`protocol.logs`) is masked
as a whole: an open line at the end of a chunk is not taken, and the agent sends it again with what
follows.
"""

import re
from collections.abc import Iterable

# Shorter values are in too many words; a log of asterisks helps nobody.
MIN_SECRET_BYTES = 6
# API tokens, agents' secrets and enrollment tokens: see `core.ids.new_secret`.
_OWN_TOKENS = re.compile(rb"\bvd[a-z]_[A-Za-z0-9_-]{43}")
_HEAD = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+Z (?P<stream>stdout|stderr) (?P<kind>[FP]) ")


class Masker:
    """Masks the secrets of one job.

    Args:
        secrets: their values; each line of one with several is a secret of its own.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        lines = {line.strip().encode() for value in secrets for line in value.splitlines()}
        # Of two with the same beginning, the longer one counts.
        self._secrets = sorted(
            (line for line in lines if len(line) >= MIN_SECRET_BYTES), key=len, reverse=True
        )
        parts = [re.escape(secret) for secret in self._secrets] + [_OWN_TOKENS.pattern]
        self._pattern = re.compile(b"|".join(parts))

    def masked(self, data: bytes) -> bytes:
        """Return the beginning of a chunk that can be stored, with its secrets masked."""
        data = data[: self._storable(data)]
        if b" P " not in data and self._pattern.search(data) is None:
            return data
        content = bytearray(data)
        for spans in _lines(data):
            self._mask(content, spans)
        return bytes(content)

    def _mask(self, content: bytearray, spans: list[tuple[int, int]]) -> None:
        """Mask a line whose text is in parts of the content."""
        text = b"".join(content[start:end] for start, end in spans)
        for match in self._pattern.finditer(text):
            passed = 0
            for start, end in spans:
                first = max(match.start() - passed, 0)
                last = min(match.end() - passed, end - start)
                if first < last:
                    content[start + first : start + last] = b"*" * (last - first)
                passed += end - start

    def _storable(self, data: bytes) -> int:
        """Return the length without an open line at the end, unless that is all there is."""
        if not self._secrets:
            return len(data)
        end = data.rfind(b"\n") + 1
        while end:
            start = data.rfind(b"\n", 0, end - 1) + 1
            head = _HEAD.match(data, start)
            if head is None or head["kind"] == b"F":
                break
            end = start
        return end or len(data)


def _lines(data: bytes) -> Iterable[list[tuple[int, int]]]:
    """Yield where the text of each line is: in one part, or in those of its records."""
    open_lines: dict[bytes, list[tuple[int, int]]] = {}
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        head = _HEAD.match(data, start, end)
        if head is None:
            yield [(start, end)]
        else:
            spans = [*open_lines.pop(head["stream"], []), (head.end(), end)]
            if head["kind"] == b"P":
                open_lines[head["stream"]] = spans
            else:
                yield spans
        start = end + 1
    yield from open_lines.values()
