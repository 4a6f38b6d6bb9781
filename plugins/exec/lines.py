"""Lines out of a pipe: whatever is there now, bounded, without waiting."""

import os

READ_BYTES = 65536


class PipeLines:
    """Takes what a pipe holds and gives whole lines.

    Args:
        descriptor: the reading end, set not to block.
        longest_bytes: a longer line is dropped to its end.

    Attributes:
        dropped_bytes: what was thrown away since it was set to 0: long lines, and what came
            faster than it was read.
    """

    def __init__(self, descriptor: int, *, longest_bytes: int) -> None:
        self._descriptor = descriptor
        self._longest_bytes = longest_bytes
        self._rest = b""
        self._is_skipping = False
        self.dropped_bytes = 0

    def take(self, max_bytes: int) -> list[str]:
        """Return the whole lines of at most so many bytes, and drop what is in the pipe beyond.

        Text that is not UTF-8 keeps a mark in place of each bad byte.
        """
        taken, is_more = self._read(max_bytes)
        parts = (self._rest + taken).split(b"\n")
        self._rest = parts.pop()
        if is_more:
            self._drop_rest_of_pipe(max_bytes)
        lines = [line for part in parts if (line := self._line(part)) is not None]
        if len(self._rest) > self._longest_bytes:
            self._skip_rest()
        return lines

    def take_last(self, max_bytes: int) -> list[str]:
        """Return the lines after the program's end, one that no newline closes included."""
        lines = self.take(max_bytes)
        last = self._line(self._rest) if self._rest else None
        self._rest = b""
        return [*lines, last] if last is not None else lines

    def _read(self, max_bytes: int) -> tuple[bytes, bool]:
        """Return what the pipe holds up to a bound, and whether there may be more."""
        chunks: list[bytes] = []
        size = 0
        while size < max_bytes:
            try:
                chunk = os.read(self._descriptor, min(READ_BYTES, max_bytes - size))
            except BlockingIOError:
                break
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        else:
            return b"".join(chunks), True
        return b"".join(chunks), False

    def _drop_rest_of_pipe(self, max_bytes: int) -> None:
        """Drop what waits behind the bound, so that the next readings are fresh ones."""
        dropped, _ = self._read(max_bytes)
        if not dropped:
            return
        end = dropped.rfind(b"\n") + 1 or len(dropped)
        self.dropped_bytes += len(self._rest) + end
        self._rest = dropped[end:]
        self._is_skipping = not dropped[:end].endswith(b"\n")

    def _line(self, part: bytes) -> str | None:
        is_tail = self._is_skipping
        self._is_skipping = False
        if is_tail or len(part) > self._longest_bytes:
            self.dropped_bytes += len(part)
            return None
        return part.decode(errors="replace")

    def _skip_rest(self) -> None:
        self.dropped_bytes += len(self._rest)
        self._rest = b""
        self._is_skipping = True
