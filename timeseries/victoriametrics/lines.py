"""Encoding a batch as lines for VictoriaMetrics: `gpu,<tags>,<labels> power_watts=250.5 <ms>`.

The server names a series `<measurement>_<field>`, which can be split in several ways; each line
therefore also has its measurement as a label. A second label is the *scope*, `<database>/<tenant>`:
the database separates stores on one server, and the remaining scopes tell which tenants were
deleted.

The server skips a line that it can't parse without an error, so such points are rejected here.
"""

import hashlib
import math
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.points import Batch, Block
from timeseries.store import TENANT_TAG, RejectedPoint
from timeseries.validation import name_error, text_error, value_error

SCOPE_LABEL = "vedette_scope"
MEASUREMENT_LABEL = "vedette_measurement"
METRIC_LABEL = "__name__"
OWN_LABELS = frozenset({SCOPE_LABEL, MEASUREMENT_LABEL, METRIC_LABEL})
# A cluster adds those of the account to what it returns of several accounts.
RESERVED_LABELS = OWN_LABELS | {"vm_account_id", "vm_project_id"}

# The server truncates at -maxLabelsPerTimeseries, 30, and -maxLabelValueLen, 16 KiB.
MAX_TAGS = 30 - len(OWN_LABELS)
MAX_NAME_BYTES = 250
MAX_TAG_BYTES = 16 * 1024
# Together with the fields, below -influx.maxLineSize, 256 KiB.
MAX_TAGS_BYTES = 64 * 1024
MAX_FIELDS = 400

# Most names and values are ASCII without anything to escape, also not for `%`: one match of all of
# them takes a tenth of the time of checking and escaping each.
_PLAIN = re.compile(r"[!-$&-+\--<>-\[\]-~]*")
_PLAIN_NAMES = re.compile(r"[A-Za-z0-9_./:-]*")
_MAX_PLAIN_CHARACTERS = 1_000
_FORMATS = {float: "%r", int: "%d", bool: "%d"}


@dataclass(frozen=True, slots=True)
class WriteContext:
    """The identity of a submission, and the time range that the server accepts."""

    database: str
    identity: Mapping[str, str]
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a batch.

    Attributes:
        text: the lines, each with its newline.
        rejected: the points without a line, in order of position; those of text only are marked as
            left out.
        left_out: measurement and field of text values, which were dropped.
    """

    text: str
    rejected: list[RejectedPoint]
    left_out: list[tuple[str, str]]


def scope_of(database: str, tenant: str) -> str:
    """Return the scope of a tenant's samples; the name of a database has no slash."""
    return f"{database}/{tenant}"


def mark_of(database: str, tenant: str) -> bytes:
    """Return text that all lines of a tenant have, and no others: elsewhere `=` is escaped."""
    scope = _escaped(scope_of(database, tenant))
    return f",{SCOPE_LABEL}={scope},{MEASUREMENT_LABEL}=".encode()


def account_of(database: str, tenant: str) -> str:
    """Return the account of a tenant in a cluster, `accountID:projectID`: 64 bits of a hash.

    Should two tenants have one account, their scopes still keep them apart.
    """
    scope = scope_of(database, tenant).encode(errors="surrogatepass")
    account, project = struct.unpack_from(">II", hashlib.sha256(scope).digest())
    return f"{account}:{project}"


def encode(batch: Batch, context: WriteContext) -> Lines:
    """Return the lines of the valid points, and the rejected ones."""
    texts: list[str] = []
    rejected: list[RejectedPoint] = []
    left_out: list[tuple[str, str]] = []
    for block in batch.blocks:
        error = _block_error(block, context.identity) or _names_error(block, context.identity)
        if error:
            rejected += [RejectedPoint(at, error) for at in block.positions]
            continue
        texts_of = [
            name for name, kind in zip(block.fields, block.kinds, strict=True) if kind is str
        ]
        left_out += [(block.measurement, name) for name in texts_of]
        if len(texts_of) == len(block.fields):
            why = f"field {block.fields[0]!r} is text, and this store has only numbers"
            rejected += [RejectedPoint(at, why, is_left_out=True) for at in block.positions]
            continue
        prefixes, tag_errors = prefixes_of(block, context)
        errors = _row_errors(block, tag_errors, context)
        rejected += [RejectedPoint(block.positions[row], why) for row, why in errors.items()]
        texts += _rows(block, prefixes, errors)
    texts.append("")
    rejected.sort(key=lambda point: point.position)
    return Lines("\n".join(texts), rejected, left_out)


def _rows(block: Block, prefixes: Sequence[str], errors: Mapping[int, str]) -> list[str]:
    numbers = [index for index, kind in enumerate(block.kinds) if kind is not str]
    fields = ",".join(
        f"{_in_template(_escaped(block.fields[index]))}={_FORMATS[block.kinds[index]]}"
        for index in numbers
    )
    columns = [block.values[index] for index in numbers]
    times_ms = [time_ns // 1_000_000 for time_ns in block.times_ns]
    rows = zip(map(prefixes.__getitem__, block.tag_set_of), *columns, times_ms, strict=True)
    if not errors:
        return list(map(f"%s {fields} %d".__mod__, rows))
    return [f"%s {fields} %d" % row for at, row in enumerate(rows) if at not in errors]


def _block_error(block: Block, identity: Mapping[str, str]) -> str | None:
    tags = {*block.tags, *identity}
    if not block.fields:
        return "it has no fields"
    if len(tags) > MAX_TAGS:
        return f"it has {len(tags)} tags including the identity; the limit is {MAX_TAGS}"
    if len(block.fields) > MAX_FIELDS:
        return f"it has {len(block.fields)} fields; the limit is {MAX_FIELDS}"
    own = sorted(tags & RESERVED_LABELS)
    if own:
        return f"tag {own[0]!r} is reserved by the store; choose another name"
    return None


def _names_error(block: Block, identity: Mapping[str, str]) -> str | None:
    if block.measurement.startswith("#"):
        return f"measurement {block.measurement!r} begins with #, which starts a comment"
    names = (block.measurement, *block.tags, *identity, *block.fields)
    if all(names) and max(map(len, names)) <= MAX_NAME_BYTES and _are(_PLAIN_NAMES, names):
        return None
    named = [("measurement", block.measurement)]
    named += [("tag", tag) for tag in (*block.tags, *identity)]
    named += [("field", field) for field in block.fields]
    for part, name in named:
        if error := name_error(f"{part} {name!r}", name, max_bytes=MAX_NAME_BYTES):
            return error
        if "\n" in name:
            return f"{part} {name!r} has a line break"
        if part == "field" and '"' in name:
            return f"field {name!r} has a quotation mark, which the server can't parse in a name"
    return None


def prefixes_of(block: Block, context: WriteContext) -> tuple[list[str], dict[int, str]]:
    """Return what the lines of each tag set begin with, and errors by the index of the tag set."""
    texts = _plain_prefixes(block, context)
    errors: dict[int, str] = {}
    if texts is None:
        texts = []
        for index, tag_set in enumerate(block.tag_sets):
            text, error = prefix_of(block, tag_set, context)
            texts.append(text)
            if error:
                errors[index] = error
    return texts, errors


def _plain_prefixes(block: Block, context: WriteContext) -> list[str] | None:
    """Return all prefixes if the values are short, printable ASCII and not empty."""
    tags, identity = block.tags, context.identity
    if not identity.keys().isdisjoint(tags) or not _are(_PLAIN, identity.values()):
        return None
    values = list(chain.from_iterable(block.tag_sets))
    try:
        joined = "".join(values)
    except TypeError:  # not text, which is reported
        return None
    if not (all(values) and joined.isascii() and joined.isprintable()):
        return None
    tenants: Iterable[str] = repeat(identity.get(TENANT_TAG, ""))
    if TENANT_TAG in tags:
        tenants = values[tags.index(TENANT_TAG) :: len(tags)]
    if not _PLAIN.fullmatch(joined):
        values = _escaped_all("\n".join(values)).split("\n")
    pairs = [f",{_escaped(tag)}={value}" for tag, value in identity.items() if value]
    columns = [values[at :: len(tags)] for at in range(len(tags))]
    start = _in_template(_escaped(block.measurement))
    heads = [f",{_in_template(_escaped(tag))}=%s" for tag in tags]
    template = f"{start}{''.join([*heads, *pairs])},{SCOPE_LABEL}=%s,{MEASUREMENT_LABEL}={start}"
    scopes = _Scopes(context.database)
    of_sets = [scopes[tenant] for tenant, _ in zip(tenants, block.tag_sets, strict=False)]
    texts = list(map(template.__mod__, zip(*columns, of_sets, strict=True)))
    # As they are ASCII, no value and no prefix is too long then.
    return texts if max(map(len, texts)) <= MAX_TAG_BYTES else None


class _Scopes(dict[str, str]):
    """Tenants to their scopes, escaped."""

    def __init__(self, database: str) -> None:
        super().__init__()
        self._database = database

    def __missing__(self, tenant: str) -> str:
        scope = self[tenant] = _escaped(scope_of(self._database, tenant))
        return scope


def _are(pattern: re.Pattern[str], texts: Collection[str]) -> bool:
    """Return whether a pattern matches all of some texts, which are short together."""
    try:
        joined = "".join(texts)
    except TypeError:  # not text, which is reported
        return False
    return len(joined) <= _MAX_PLAIN_CHARACTERS and pattern.fullmatch(joined) is not None


def _escaped(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _escaped_all(text)


def _escaped_all(text: str) -> str:
    # A fifth of the time of `translate`.
    for character in "\\, =":
        text = text.replace(character, f"\\{character}")
    return text


def _in_template(text: str) -> str:
    return text.replace("%", "%%")


def prefix_of(
    block: Block, tag_set: Sequence[str], context: WriteContext
) -> tuple[str, str | None]:
    """Return the prefix of one tag set, or its error, looking at each name and value."""
    tags = {**dict(zip(block.tags, tag_set, strict=True)), **context.identity}
    for tag, value in tags.items():
        if error := text_error(f"tag {tag!r}", value, max_bytes=MAX_TAG_BYTES):
            return "", error
        if "\n" in value:
            return "", f"tag {tag!r} has a line break"
    scope = scope_of(context.database, tags.get(TENANT_TAG, ""))
    own = {SCOPE_LABEL: scope, MEASUREMENT_LABEL: block.measurement}
    pairs = [
        f",{_escaped(tag)}={_escaped(value)}" for tag, value in {**tags, **own}.items() if value
    ]
    text = _escaped(block.measurement) + "".join(pairs)
    if len(text.encode()) > MAX_TAGS_BYTES:
        return "", f"its tags are longer than {MAX_TAGS_BYTES} bytes together"
    return text, None


def _row_errors(
    block: Block, tag_errors: Mapping[int, str], context: WriteContext
) -> dict[int, str]:
    """Return the rows to reject, with the reason; valid columns are checked as a whole."""
    errors: dict[int, str] = {}
    if tag_errors:
        of_tags = map(tag_errors.get, block.tag_set_of)
        errors = {row: error for row, error in enumerate(of_tags) if error}
    first_ns, end_ns = context.first_ms * 1_000_000, (context.last_ms + 1) * 1_000_000
    if min(block.times_ns) < first_ns or max(block.times_ns) >= end_ns:
        for row, time_ns in enumerate(block.times_ns):
            if not first_ns <= time_ns < end_ns:
                reason = (
                    "older than the retention of the server (-retentionPeriod)"
                    if time_ns < first_ns
                    else "more than two days ahead, which the server drops"
                )
                errors[row] = f"its time {time_ns} ns is {reason}"
    for name, kind, column in zip(block.fields, block.kinds, block.values, strict=True):
        if kind is float and not all(map(math.isfinite, column)):  # type: ignore[arg-type]
            bad = (row for row, value in enumerate(column) if not math.isfinite(value))  # type: ignore[arg-type]
            errors |= {row: f"field {name!r} is {column[row]}; leave it out" for row in bad}
        elif kind is int and not MIN_INT64 <= min(column) <= max(column) <= MAX_INT64:  # type: ignore[operator]
            column_errors = ((row, value_error(name, value)) for row, value in enumerate(column))
            errors |= {row: error for row, error in column_errors if error}
    return errors
