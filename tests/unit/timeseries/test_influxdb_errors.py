import pytest

from core.errors import OverloadedError
from timeseries.influxdb.address import parse_address
from timeseries.influxdb.client import LinesRejectedError, RequestTooLargeError, write_error
from timeseries.store import StoreUnavailableError

ADDRESS = parse_address("influxdb://db.example/vedette?token=t0k3n")


def error_of(status: int, body: bytes, *, retry_after: str = "") -> Exception:
    headers = {"Retry-After": retry_after} if retry_after else {}
    return write_error(ADDRESS, status=status, headers=headers, body=body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b'{"error":"partial write: field type conflict: input field x dropped=3"}'),
        (422, b'{"code":"unprocessable entity","message":"failure writing points: dropped=3"}'),
    ],
    ids=["1.x", "2.x"],
)
def test_a_partial_write_reports_how_many_lines_were_dropped(status: int, body: bytes) -> None:
    error = error_of(status, body)

    assert isinstance(error, LinesRejectedError)
    assert error.dropped == 3


def test_a_line_that_does_not_parse_is_a_refusal_without_a_number() -> None:
    error = error_of(400, b'{"error":"unable to parse \'x\': missing fields"}')

    assert isinstance(error, LinesRejectedError)
    assert error.dropped is None


def test_a_body_that_is_too_large_has_its_own_error() -> None:
    assert isinstance(error_of(413, b""), RequestTooLargeError)


def test_an_overload_reports_when_to_retry() -> None:
    error = error_of(429, b'{"message":"limit reached"}', retry_after="17")

    assert isinstance(error, OverloadedError)
    assert error.retry_after_seconds == 17


def test_a_date_in_retry_after_falls_back_to_seconds() -> None:
    error = error_of(429, b"", retry_after="Sat, 21 Nov 2026 15:59:49 GMT")

    assert isinstance(error, OverloadedError)
    assert error.retry_after_seconds == 5


def test_a_full_cache_is_an_overload() -> None:
    body = b'{"error":"engine: cache-max-memory-size exceeded: (1073741824/1073741824)"}'

    assert isinstance(error_of(500, body), OverloadedError)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (503, b"", "503: no reason given"),
        (500, b'{"error":"timeout"}', "500: timeout"),
        (404, b'{"error":"database not found: \\"vedette\\""}', "has no database 'vedette'"),
        (404, b'{"message":"bucket \\"vedette\\" not found"}', "has no database 'vedette'"),
        (401, b'{"error":"authorization failed"}', "'vedette'"),
        (403, b'{"message":"forbidden"}', "or the token"),
    ],
)
def test_other_responses_mean_that_the_store_is_unavailable(
    status: int, body: bytes, message: str
) -> None:
    error = error_of(status, body)

    assert isinstance(error, StoreUnavailableError)
    assert message in error.message
