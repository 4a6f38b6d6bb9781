"""Prometheus' HTTP API for reading, at `/api/v1/prometheus`: for Grafana, promtool and federation.

Answers and errors have its form, and parameters that it does not know are ignored, as there. The
tenant is that of the API token, which may also be the password of HTTP Basic.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import wraps
from http import HTTPStatus
from importlib.metadata import version

import msgspec
from flask import Blueprint, Response, request
from flask.typing import ResponseReturnValue
from promql_parser import parse_duration
from werkzeug.exceptions import HTTPException

from core.clock import to_ns
from core.errors import OverloadedError, UnavailableError, VedetteError
from portal.context import now
from portal.sample_sources import admitted_source
from timeseries.promql import discovery
from timeseries.promql.queries import query_instant, query_range, selector_matchers
from timeseries.promql.render import CONTENT_TYPE, exposition, rendered
from timeseries.promql.selection import Matchers, QueryTimeoutError, Source
from timeseries.promql.syntax import EvaluationError, PromQLError
from timeseries.promql.values import Grid, Labels
from timeseries.sample_query import MAX_SECONDS
from timeseries.store import TooManySamplesError

_BASE = "/api/v1"
_METHODS = ["GET", "POST"]
_MAX_TIME_MS = 2**53
_MAX_LIMIT = 1_000_000
_NS_PER_MS = 1_000_000
_ALL_TIME_MS = (0, 4_102_444_800_000)

pages = Blueprint("prometheus", __name__, url_prefix="/api/v1/prometheus")
View = Callable[..., bytes]


def _reading(path: str, methods: Iterable[str] = _METHODS) -> Callable[[View], View]:
    """Register a view of samples that returns the `data` of its answer."""

    def decorate(view: View) -> View:
        @wraps(view)
        def answer(**arguments: str) -> Response:
            with _source() as source:
                data = view(source, **arguments)
            return _json(b'{"status":"success","data":%b}' % data)

        pages.add_url_rule(f"{_BASE}{path}", view.__name__, answer, methods=list(methods))
        return view

    return decorate


@_reading("/query")
def query(source: Source) -> bytes:
    """Return the value of an expression at an instant."""
    return rendered(query_instant(source, _required("query"), at_ms=_time("time", _now_ms())))


@_reading("/query_range")
def query_over_range(source: Source) -> bytes:
    """Return the value of an expression at each step of a range."""
    text = _required("query")
    start_ms, end_ms = _time("start"), _time("end")
    step_ms = round(_seconds("step", _required("step")) * 1000)
    if step_ms <= 0:
        raise PromQLError('invalid parameter "step": it must be at least 0.001 s')
    if end_ms < start_ms:
        raise PromQLError('invalid parameter "end": it must not be before "start"')
    grid = Grid(start_ms, step_ms, (end_ms - start_ms) // step_ms + 1)
    return rendered(query_range(source, text, grid))


@_reading("/series")
def series(source: Source) -> bytes:
    """Return the labels of series."""
    if not request.values.getlist("match[]"):
        raise PromQLError("no match[] parameter provided")
    return msgspec.json.encode(_series(source))


@_reading("/labels")
def labels(source: Source) -> bytes:
    """Return the names of labels."""
    if not request.values.getlist("match[]"):
        return msgspec.json.encode(discovery.label_names(source))
    return msgspec.json.encode(sorted({name for own in _series(source) for name in own}))


@_reading("/label/<label>/values", ["GET"])
def label_values(source: Source, label: str) -> bytes:
    """Return the values of a label."""
    if not request.values.getlist("match[]"):
        return msgspec.json.encode(discovery.label_values(source, label))
    values = {own[label] for own in _series(source) if label in own}
    return msgspec.json.encode(sorted(values))


@_reading("/metadata", ["GET"])
def metadata(source: Source) -> bytes:
    """Return the type, the unit and the description of metrics."""
    wanted, described = request.args.get("metric"), discovery.metadata(source)
    limit = _integer("limit")
    names = [name for name in described if wanted in {None, "", name}]
    return msgspec.json.encode({name: [described[name]] for name in names[:limit]})


@_reading("/query_exemplars")
def query_exemplars(source: Source) -> bytes:
    """Return no exemplars: none are stored."""
    assert source  # noqa: S101 - as all views have it
    return b"[]"


@_reading("/status/buildinfo", ["GET"])
def build_info(source: Source) -> bytes:
    """Return the version whose language this is: clients choose what they ask for by it."""
    assert source  # noqa: S101 - as all views have it
    info = {"version": "2.42.0", "application": "Vedette", "revision": version("vedette")}
    return msgspec.json.encode(info | dict.fromkeys(["branch", "buildUser", "buildDate"], ""))


@pages.get("/federate")
def federate() -> ResponseReturnValue:
    """Return the newest sample of each series in the text format that Prometheus scrapes."""
    with _source() as source:
        text = exposition(source, _selectors(), at_ms=_now_ms())
    return Response(text, content_type=CONTENT_TYPE)


def _source() -> AbstractContextManager[Source]:
    """Return the samples of the current tenant within the time that the client gives."""
    seconds = _seconds("timeout", request.values.get("timeout") or str(MAX_SECONDS))
    return admitted_source(max_seconds=seconds)


def _series(source: Source) -> list[Labels]:
    start_ms, end_ms = (
        _time(name, default) for name, default in zip(("start", "end"), _ALL_TIME_MS, strict=True)
    )
    return discovery.series(source, _selectors(), start_ms=start_ms, end_ms=end_ms)


def _selectors() -> list[Matchers]:
    return [selector_matchers(text) for text in request.values.getlist("match[]")]


def _required(name: str) -> str:
    text = request.values.get(name, "")
    if not text:
        raise PromQLError(f'invalid parameter "{name}": it is missing')
    return text


def _time(name: str, default: int | None = None) -> int:
    """Return a time in milliseconds: a number of seconds, or RFC 3339."""
    text = request.values.get(name, "")
    if not text and default is not None:
        return default
    try:
        try:
            at_ms = round(float(text) * 1000)
        except ValueError:
            at_ms = to_ns(datetime.fromisoformat(text)) // _NS_PER_MS
    except (ValueError, OverflowError, TypeError):
        at_ms = _MAX_TIME_MS
    if abs(at_ms) >= _MAX_TIME_MS:
        raise PromQLError(
            f'invalid parameter "{name}": cannot parse {text[:100]!r} to a valid timestamp'
        )
    return at_ms


def _seconds(name: str, text: str) -> float:
    """Return a duration: a number of seconds, or as PromQL writes it."""
    try:
        try:
            seconds = float(text)
        except ValueError:
            seconds = parse_duration(text).total_seconds()
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < _MAX_TIME_MS / 1000:
        raise PromQLError(
            f'invalid parameter "{name}": cannot parse {text[:100]!r} to a valid duration'
        )
    return seconds


def _integer(name: str) -> int | None:
    text = request.values.get(name, "")
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise PromQLError(f'invalid parameter "{name}": {text[:100]!r} is not a number') from None
    return None if number < 0 else min(number, _MAX_LIMIT)


def _now_ms() -> int:
    return to_ns(now()) // _NS_PER_MS


@pages.errorhandler(VedetteError)
def _on_error(error: VedetteError) -> Response:
    retry_after_seconds = error.retry_after_seconds
    if isinstance(error, EvaluationError | TooManySamplesError):
        return _error("execution", HTTPStatus.UNPROCESSABLE_ENTITY, error.message)
    if isinstance(error, QueryTimeoutError):
        return _error("timeout", HTTPStatus.SERVICE_UNAVAILABLE, error.message)
    if isinstance(error, UnavailableError | OverloadedError):
        kind, retry_after_seconds = "unavailable", retry_after_seconds or 5
    else:
        kind = "bad_data" if error.status in {400, 422} else error.code
    response = _error(kind, error.status, error.message)
    if retry_after_seconds:
        response.headers["Retry-After"] = f"{retry_after_seconds:.0f}"
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Basic realm="Vedette"'
    return response


@pages.errorhandler(HTTPException)
def _on_http_error(error: HTTPException) -> Response:
    return _error("bad_data", error.code or 500, error.description or "")


def _error(kind: str, status: int, message: str) -> Response:
    body = {"status": "error", "errorType": kind, "error": message}
    return _json(msgspec.json.encode(body), status=status)


def _json(body: bytes, *, status: int = HTTPStatus.OK) -> Response:
    return Response(body, status=status, content_type="application/json")
