"""From a batch to lines that VictoriaMetrics takes: `gpu,<tags>,<ours> power_watts=250.5 <ms>`.

The server names a series `<measurement>_<field>`, which alone could be split in several ways; each
line therefore also carries its measurement as a tag, and the field's name is what follows it. A
second tag holds the *scope*, `<database>/<tenant>`: stores that share a server are kept apart by
the database, and the scopes that are alive tell which tenants were deleted.

A line that the server can't read is skipped there in silence, so whatever it can't take is refused
here, with a reason.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timeseries.batch import Batch, Block
from timeseries.store import TENANT_TAG, RejectedPoint

SCOPE_LABEL = "vedette_scope"
MEASUREMENT_LABEL = "vedette_measurement"
METRIC_LABEL = "__name__"
OWN_LABELS = frozenset({SCOPE_LABEL, MEASUREMENT_LABEL, METRIC_LABEL})

# The server's -maxLabelsPerTimeseries is 30 and -maxLabelValueLen 16 KiB: it cuts what is beyond.
MAX_TAGS = 30 - len(OWN_LABELS)
MAX_NAME_BYTES = 250
MAX_TAG_BYTES = 16 * 1024
# Under -influx.maxLineSize, 256 KiB, together with the fields.
MAX_TAGS_BYTES = 64 * 1024
MAX_FIELDS = 400
MAX_INTEGER = 2**63

_KEY_ESCAPES = str.maketrans({"\\": "\\\\", ",": "\\,", " ": "\\ ", "=": "\\="})
_FORMATS = {float: "%r", int: "%d", bool: "%d"}


@dataclass(frozen=True, slots=True)
class Frame:
    """What every line of a submission has: whose it is, and which times the server keeps."""

    database: str
    identity: Mapping[str, str]
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a batch.

    Attributes:
        text: the lines, each with its newline.
        rejected: the points that have none, in the order of their positions.
        left_out: measurement and field of texts that were left out of points with numbers.
    """

    text: str
    rejected: list[RejectedPoint]
    left_out: list[tuple[str, str]]


def scope_of(database: str, tenant: str) -> str:
    """Return the scope of a tenant's samples in a store; a database has no slash in its name."""
    return f"{database}/{tenant}"


def encode(batch: Batch, frame: Frame) -> Lines:
    """Return the lines of the points that can be kept, and the reasons of the others."""
    texts: list[str] = []
    rejected: list[RejectedPoint] = []
    left_out: list[tuple[str, str]] = []
    for block in batch.blocks:
        fault = _block_fault(block, frame.identity) or _names_fault(block, frame.identity)
        if fault:
            rejected += [RejectedPoint(at, fault) for at in block.positions]
            continue
        left_out += [(block.measurement, name) for name in _texts(block)]
        prefixes = [_prefix(block, tag_set, frame) for tag_set in block.tag_sets]
        faults = _row_faults(block, prefixes, frame)
        rejected += [RejectedPoint(block.positions[row], why) for row, why in faults.items()]
        texts += _rows(block, [prefix.text for prefix in prefixes], faults)
    texts.append("")
    rejected.sort(key=lambda point: point.position)
    return Lines("\n".join(texts), rejected, left_out)


@dataclass(frozen=True, slots=True)
class _Prefix:
    text: str = ""
    fault: str | None = None


def _rows(block: Block, prefixes: Sequence[str], faults: Mapping[int, str]) -> list[str]:
    numbers = [index for index, kind in enumerate(block.kinds) if kind is not str]
    fields = ",".join(
        f"{block.fields[index].translate(_KEY_ESCAPES).replace('%', '%%')}"
        f"={_FORMATS[block.kinds[index]]}"
        for index in numbers
    )
    columns = [block.values[index] for index in numbers]
    times_ms = [time_ns // 1_000_000 for time_ns in block.times_ns]
    rows = zip(map(prefixes.__getitem__, block.tag_set_of), *columns, times_ms, strict=True)
    if not faults:
        return list(map(f"%s {fields} %d".__mod__, rows))
    return [f"%s {fields} %d" % row for at, row in enumerate(rows) if at not in faults]


def _block_fault(block: Block, identity: Mapping[str, str]) -> str | None:
    tags = {*block.tags, *identity}
    if not block.fields:
        return "it has no fields"
    if all(kind is str for kind in block.kinds):
        return (
            f"field {block.fields[0]!r} is text: this store keeps numbers only, "
            "and the point has none"
        )
    if len(tags) > MAX_TAGS:
        return f"it has {len(tags)} tags with its identity's, {MAX_TAGS} may be"
    if len(block.fields) > MAX_FIELDS:
        return f"it has {len(block.fields)} fields, {MAX_FIELDS} may be"
    own = sorted(tags & OWN_LABELS)
    if own:
        return f"tag {own[0]!r} has a name that the store uses itself; choose another"
    return None


def _names_fault(block: Block, identity: Mapping[str, str]) -> str | None:
    if block.measurement.startswith("#"):
        return f"measurement {block.measurement!r} begins with #, which starts a comment"
    named = [("measurement", block.measurement)]
    named += [("tag", tag) for tag in (*block.tags, *identity)]
    named += [("field", field) for field in block.fields]
    for what, name in named:
        if not name:
            return f"{what} {name!r} has an empty name"
        fault = _text_fault(f"{what} {name!r}", name, MAX_NAME_BYTES)
        if fault:
            return fault
        if what == "field" and '"' in name:
            return f"field {name!r} holds a quotation mark, which the server can't read in a name"
    return None


def _text_fault(what: str, text: object, max_bytes: int) -> str | None:
    if not isinstance(text, str):
        return f"{what} is {text!r}, which is no text"
    if "\n" in text:
        return f"{what} holds a line break, which no line can"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{what} is not valid Unicode"
    return f"{what} is longer than {max_bytes} bytes" if size > max_bytes else None


def _prefix(block: Block, tag_set: Sequence[str], frame: Frame) -> _Prefix:
    tags = {**dict(zip(block.tags, tag_set, strict=True)), **frame.identity}
    for tag, value in tags.items():
        fault = _text_fault(f"tag {tag!r}", value, MAX_TAG_BYTES)
        if fault:
            return _Prefix(fault=fault)
    scope = scope_of(frame.database, tags.get(TENANT_TAG, ""))
    own = {SCOPE_LABEL: scope, MEASUREMENT_LABEL: block.measurement}
    pairs = [
        f",{tag.translate(_KEY_ESCAPES)}={value.translate(_KEY_ESCAPES)}"
        for tag, value in {**tags, **own}.items()
        if value
    ]
    text = block.measurement.translate(_KEY_ESCAPES) + "".join(pairs)
    if len(text.encode()) > MAX_TAGS_BYTES:
        return _Prefix(fault=f"its tags are longer than {MAX_TAGS_BYTES} bytes together")
    return _Prefix(text)


def _row_faults(block: Block, prefixes: Sequence[_Prefix], frame: Frame) -> dict[int, str]:
    """Return the rows that can't be kept; columns are looked through whole where all is well."""
    faults: dict[int, str] = {}
    if any(prefix.fault for prefix in prefixes):
        of_tags = (prefixes[index].fault for index in block.tag_set_of)
        faults.update({row: fault for row, fault in enumerate(of_tags) if fault})
    first_ns, end_ns = frame.first_ms * 1_000_000, (frame.last_ms + 1) * 1_000_000
    if min(block.times_ns) < first_ns or max(block.times_ns) >= end_ns:
        for row, time_ns in enumerate(block.times_ns):
            if not first_ns <= time_ns < end_ns:
                faults[row] = _time_fault(time_ns, first_ns)
    for name, kind, column in zip(block.fields, block.kinds, block.values, strict=True):
        if kind is float and not all(map(math.isfinite, column)):  # type: ignore[arg-type]
            bad = (row for row, value in enumerate(column) if not math.isfinite(value))  # type: ignore[arg-type]
            faults |= {row: f"field {name!r} is {column[row]}; leave it out" for row in bad}
        elif kind is int and not -MAX_INTEGER <= min(column) <= max(column) < MAX_INTEGER:  # type: ignore[operator]
            faults |= _integer_faults(name, column)  # type: ignore[arg-type]
    return faults


def _time_fault(time_ns: int, first_ns: int) -> str:
    if time_ns < first_ns:
        return f"its time {time_ns} ns is older than what the server keeps (-retentionPeriod)"
    return f"its time {time_ns} ns is more than two days ahead, which the server drops"


def _integer_faults(name: str, column: Sequence[int]) -> dict[int, str]:
    return {
        row: f"field {name!r} is {value}, which is out of the range of a signed 64 bit integer"
        for row, value in enumerate(column)
        if not -MAX_INTEGER <= value < MAX_INTEGER
    }


def _texts(block: Block) -> list[str]:
    return [name for name, kind in zip(block.fields, block.kinds, strict=True) if kind is str]
