"""Files of lines: Parquet with zstd, a row group for each block, and an index of the blocks.

The index is in the metadata of the file: the times of each block, and the filter of its words. So a
search reads the blocks that may have a match, and any program that reads Parquet reads the lines.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from core.errors import VedetteError
from jobqueue.logs.log_files import LogFiles
from logs import arrow
from logs.lines import SCHEMA
from logs.words import word_filter, words_in

BLOCK_BYTES = 2 * 1024 * 1024
_INDEX = b"vedette.blocks"
_COMPRESSION_LEVEL = 6
_TEXT = "text"


class DamagedFileError(VedetteError):
    """A file of lines can't be read."""


class BlockIndex(msgspec.Struct, frozen=True):
    """Where a block is in time, and a filter of its words in base64."""

    first_ns: int
    last_ns: int
    words: str

    @property
    def filter(self) -> bytes:
        """The filter of words."""
        return base64.b64decode(self.words)


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What a written file has."""

    first_ns: int
    last_ns: int
    line_count: int
    size_bytes: int


def write_lines(files: LogFiles, name: str, blocks: Iterable[pa.Table]) -> FileSummary:
    """Write a file; it is on disk afterwards."""
    buffer = io.BytesIO()
    index: list[BlockIndex] = []
    line_count = 0
    plain = [field.name for field in SCHEMA if field.name not in {_TEXT, "at", "sequence"}]
    with arrow.pq.ParquetWriter(
        buffer,
        SCHEMA,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=plain,
        write_page_checksum=True,
    ) as writer:
        for block in blocks:
            if block.num_rows:
                writer.write_table(block, row_group_size=block.num_rows)
                index.append(_index_of(block))
                line_count += block.num_rows
        writer.add_key_value_metadata({_INDEX: msgspec.json.encode(index)})
    content = buffer.getvalue()
    files.write(name, iter([content]))
    return FileSummary(
        first_ns=min((block.first_ns for block in index), default=0),
        last_ns=max((block.last_ns for block in index), default=0),
        line_count=line_count,
        size_bytes=len(content),
    )


def split_blocks(lines: pa.Table) -> Iterable[pa.Table]:
    """Yield lines in the order of their times, in blocks of about `BLOCK_BYTES`."""
    ordered = lines.sort_by([("at", "ascending"), ("sequence", "ascending")])
    text_bytes = arrow.pc.sum(arrow.pc.binary_length(ordered[_TEXT])).as_py() or 0
    rows = max(1, ordered.num_rows * BLOCK_BYTES // max(BLOCK_BYTES, text_bytes))
    for start in range(0, ordered.num_rows, rows):
        yield ordered.slice(start, rows)


class LinesFile:
    """A file of lines, opened for a search.

    Raises:
        DamagedFileError: it can't be read.
        FileNotFoundError: it was deleted.
        UnavailableError: the file system does not answer.
    """

    def __init__(self, files: LogFiles, name: str) -> None:
        self._name = name
        opened = files.open(name)
        try:
            self._file = arrow.pq.ParquetFile(opened, page_checksum_verification=True)
            metadata: dict[bytes, bytes] = self._file.metadata.metadata or {}
            self.index = msgspec.json.decode(metadata[_INDEX], type=list[BlockIndex])
        except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
            raise self._damage(error) from error

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Return the columns of a block."""
        try:
            return self._file.read_row_group(number, columns=list(columns))
        except (pa.ArrowException, OSError) as error:
            raise self._damage(error) from error

    def _damage(self, error: Exception) -> DamagedFileError:
        return DamagedFileError(f"{self._name} can't be read: {str(error)[:200]}")


def _index_of(block: pa.Table) -> BlockIndex:
    times: Any = arrow.pc.min_max(arrow.pc.cast(block["at"], pa.int64()))
    words: set[str] = set()
    for text in block[_TEXT].to_pylist():
        words |= words_in(text)
    encoded = base64.b64encode(word_filter(words)).decode()
    return BlockIndex(times["min"].as_py(), times["max"].as_py(), encoded)
