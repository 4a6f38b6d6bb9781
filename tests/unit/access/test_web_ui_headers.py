"""Headers between a job's server and a user's browser."""

import pytest

from access.jobs.web_ui_headers import request_headers, response_headers


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        (b"b=1; Domain=jobs.localhost", b"b=1"),
        (b"b=1; Domain =jobs.localhost", b"b=1"),
        (b"b=1;\tdOmAiN\t= jobs.localhost; Path=/", b"b=1; Path=/"),
        (b"b=1; Domain=x; Domain=jobs.localhost; Domain=", b"b=1"),
        (b"b=1; Domain", b"b=1"),
        (b'b="1; Domain=jobs.localhost; x"', b'b="1; x"'),
        (b"Domain=1; Secure", b"Domain=1; Secure"),
        (b"b=domain=x; Path=/domain=x", b"b=domain=x; Path=/domain=x"),
    ],
)
def test_a_jobs_cookie_is_of_its_own_origin(sent: bytes, returned: bytes) -> None:
    assert response_headers([(b"Set-Cookie", sent)]) == [(b"set-cookie", returned)]


@pytest.mark.parametrize("character", [b"\x00", b"\x0b", b"\x0c", b"\x1f", b"\x7f"])
def test_a_cookie_with_control_characters_is_dropped(character: bytes) -> None:
    cookie = b"b=1; Domain" + character + b"=jobs.localhost"
    assert response_headers([(b"set-cookie", cookie), (b"X-Own", b"1")]) == [(b"x-own", b"1")]


def test_the_pass_stays_out_of_the_jobs_sight_in_each_notation() -> None:
    cookies = b"a=1; vedette-job=x;vedette-job =y; vedette-jobs=2;vedette-job"
    scope = {"headers": [(b"cookie", cookies), (b"host", b"a.jobs.localhost:80")]}
    headers = dict(request_headers(scope, cookie="vedette-job", is_https=True))
    assert headers[b"cookie"] == b"a=1; vedette-jobs=2"
    assert headers[b"x-forwarded-proto"] == b"https"
    assert headers[b"x-forwarded-host"] == b"a.jobs.localhost:80"
