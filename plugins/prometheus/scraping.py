"""One target: its request, the limits of its answer, and its samples as points."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

import urllib3
from msgspec import Meta

from core.clock import NS_PER_SECOND, to_ns
from plugins.prometheus.discovery import ADDRESS, PATH, SCHEME
from plugins.prometheus.exposition import (
    ExpositionError,
    HeadCache,
    parse_line,
    sample_lines,
)
from plugins.prometheus.relabeling import RelabelRule, relabeled
from timeseries.declared import DECLARED
from timeseries.points import Point

ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.8,*/*;q=0.1"
OPENMETRICS = "application/openmetrics-text"
NAME = "__name__"
_OK = 200
_NS_PER_MS = NS_PER_SECOND // 1000
_CHUNK_BYTES = 64 * 1024


class ScrapeError(Exception):
    """A target can't be scraped, or has more than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeLimits:
    """What a target may send; above, nothing of a scrape is stored.

    Attributes:
        timeout_seconds: how long a scrape may take.
        max_body_bytes: of an answer, unpacked.
        max_samples: of a scrape.
        max_labels: of a sample.
        max_label_bytes: of a label's value.
        honor_timestamps: whether times in an answer count.
        honor_labels: whether a sample's label hides that of its target, instead of becoming
            `exported_NAME`.
    """

    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 5.0
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 16 * 1024 * 1024
    max_samples: Annotated[int, Meta(ge=1)] = 20_000
    max_labels: Annotated[int, Meta(ge=1)] = 64
    max_label_bytes: Annotated[int, Meta(ge=1)] = 4096
    honor_timestamps: bool = True
    honor_labels: bool = False


Head = tuple[str, Mapping[str, str]]
"""A measurement and its tags; without a name, the sample is dropped."""
_DROPPED: Head = ("", {})


@dataclass(slots=True)
class Target:
    """A target with what is remembered of it.

    Attributes:
        url: where its metrics are.
        labels: of each of its samples.
        problem: why the last scrape failed.
    """

    url: str
    labels: Mapping[str, str]
    heads: HeadCache[Head] = field(default_factory=HeadCache)
    problem: str = ""


def target_of(labels: Mapping[str, str], rules: Sequence[RelabelRule]) -> Target | None:
    """Return the target that discovered labels stand for; None if a rule drops it."""
    defaults = {SCHEME: "http", PATH: "/metrics"}
    changed = relabeled({**defaults, **labels}, rules)
    if changed is None or not changed.get(ADDRESS):
        return None
    url = f"{changed[SCHEME]}://{changed[ADDRESS]}{changed[PATH]}"
    own = {name: value for name, value in changed.items() if not name.startswith("__") and value}
    return Target(url, {"instance": changed[ADDRESS], **own})


def scrape(
    target: Target,
    pool: urllib3.PoolManager,
    *,
    limits: ScrapeLimits,
    rules: Sequence[RelabelRule],
    now: datetime,
) -> list[Point]:
    """Return the samples of a target, its `up` and how long the scrape took."""
    began, time_ns = time.perf_counter(), to_ns(now)
    points: list[Point] = []
    target.problem = ""
    try:
        text, is_openmetrics = _fetch(target.url, pool, limits)
        scale = NS_PER_SECOND if is_openmetrics else _NS_PER_MS
        points = _points(target, text, limits, rules, (time_ns, scale))
    except (ScrapeError, ExpositionError) as error:
        target.problem = str(error)
    duration = time.perf_counter() - began
    own = {
        "up": float(not target.problem),
        "scrape_duration_seconds": duration,
        "scrape_samples_scraped": float(len(points)),
    }
    points += [Point(name, target.labels, {"value": value}, time_ns) for name, value in own.items()]
    return points


def _fetch(url: str, pool: urllib3.PoolManager, limits: ScrapeLimits) -> tuple[str, bool]:
    headers = {"Accept": ACCEPT, "Accept-Encoding": "gzip", "User-Agent": "vedette-agent"}
    timeout = urllib3.Timeout(total=limits.timeout_seconds)
    deadline = time.monotonic() + limits.timeout_seconds
    try:
        response = pool.request(
            "GET", url, headers=headers, timeout=timeout, preload_content=False, retries=False
        )
        try:
            body = _body(response, limits, deadline=deadline)
        except ScrapeError:
            response.close()
            raise
        response.release_conn()
        media_type = response.headers.get("Content-Type", "")
        return body.decode(), media_type.startswith(OPENMETRICS)
    except urllib3.exceptions.HTTPError as error:
        raise ScrapeError(f"it does not answer: {error}") from error
    except UnicodeDecodeError as error:
        raise ScrapeError("its answer is not UTF-8") from error


def _body(
    response: urllib3.BaseHTTPResponse, limits: ScrapeLimits, *, deadline: float
) -> bytearray:
    """Read an answer up to its limits; `deadline` is of the monotonic clock."""
    if response.status != _OK:
        raise ScrapeError(f"it answers {response.status}")
    body = bytearray()
    while chunk := response.read(_CHUNK_BYTES, decode_content=True):
        body += chunk
        if len(body) > limits.max_body_bytes:
            raise ScrapeError(f"it has more than {limits.max_body_bytes} bytes")
        if time.monotonic() > deadline:
            raise ScrapeError(f"it takes longer than {limits.timeout_seconds:g} s")
    return body


def _points(
    target: Target,
    text: str,
    limits: ScrapeLimits,
    rules: Sequence[RelabelRule],
    clock: tuple[int, int],
) -> list[Point]:
    """Return the samples of an answer.

    Args:
        target: the target.
        text: the answer.
        limits: what it may have.
        rules: how samples are relabeled.
        clock: the time of the scrape, and the nanoseconds of a unit of its times.
    """
    time_ns, scale = clock
    heads = target.heads
    heads.start()
    points: list[Point] = []
    for line in sample_lines(text):
        text_before, _, number = line.rpartition(" ")
        known_head = heads.get(text_before)
        at_ns = time_ns
        if known_head is not None:
            value = _number(number)
        else:
            parsed = parse_line(line)
            known_head = heads.get(parsed.head)
            if known_head is None:
                known_head = _head(parsed.name, parsed.labels, target.labels, limits, rules)
                heads.current[parsed.head] = known_head
            value = parsed.value
            if parsed.time and limits.honor_timestamps:
                at_ns = int(_number(parsed.time) * scale)
        name, tags = known_head
        if not name or not math.isfinite(value):
            continue
        points.append(Point(name, tags, {"value": value}, at_ns))
        if len(points) > limits.max_samples:
            raise ScrapeError(f"it has more than {limits.max_samples} samples")
    return points


def _head(
    name: str,
    labels: Mapping[str, str],
    own: Mapping[str, str],
    limits: ScrapeLimits,
    rules: Sequence[RelabelRule],
) -> Head:
    """Return the measurement and the tags of a sample's name and labels."""
    merged = dict(own)
    for label, value in labels.items():
        if label in own and not limits.honor_labels:
            merged[f"exported_{label}"] = value
        else:
            merged[label] = value
    if rules:
        changed = relabeled({**merged, NAME: name}, rules)
        if changed is None or not changed.get(NAME):
            return _DROPPED
        name = changed.pop(NAME)
        merged = {label: value for label, value in changed.items() if not label.startswith("__")}
    tags = {label: value for label, value in merged.items() if value}
    if len(tags) > limits.max_labels:
        raise ScrapeError(f"{name} has more than {limits.max_labels} labels")
    if any(len(value.encode()) > limits.max_label_bytes for value in tags.values()):
        raise ScrapeError(f"a label of {name} has more than {limits.max_label_bytes} bytes")
    # Our own names have other meanings, and samples of two sources must not mix.
    return (f"prometheus_{name}" if name in DECLARED else name), tags


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ExpositionError(f"{text[:40]!r} is not a number") from error
