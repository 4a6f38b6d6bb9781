"""Errors of the API that Prometheus' clients read have its form and its types."""

from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World

BAD, EXECUTION, TIMEOUT = (400, "bad_data"), (422, "execution"), (503, "timeout")
CASES: list[tuple[str, tuple[int, str], str]] = [
    ("query", BAD, 'invalid parameter "query"'),
    ("query?query=sum(", BAD, "unclosed left parenthesis"),
    ("query?query=up @ 1", BAD, "@ is not supported (column 4)"),
    ('query?query=up{a=~"("}', BAD, "illegal regex"),
    ("query?query=1&time=noon", BAD, "'noon'"),
    ("query?query=1&time=nan", BAD, "'nan'"),
    ("query?query=1&time=2026-11-26T00:00:00", BAD, "2026-11-26"),
    ("query?query=1&timeout=x", BAD, "valid duration"),
    ("query?query=up&timeout=0", TIMEOUT, "longer than"),
    ("query?query=label_replace(up,'a b','','','')", EXECUTION, "'a b'"),
    ("query_range?query=1&start=0&end=9&step=0", BAD, "0.001"),
    ("query_range?query=1&start=9&end=0&step=1", BAD, "before"),
    ("query_range?query=1&start=0&end=9e9&step=1", BAD, "steps"),
    ("query_range?query=up[5m]&start=0&end=9&step=1", BAD, "instant vector or a scalar"),
    ("series", BAD, "no match[] parameter"),
    ("series?match[]=1", BAD, "is not a selector"),
    ("labels?match[]=sum(up)", BAD, "is not a selector"),
    ("metadata?limit=x", BAD, "'x' is not a number"),
    ("metadata?limit=--5", BAD, "'--5' is not a number"),
    (f"metadata?limit={'9' * 5_000}", BAD, "is not a number"),
]


def test_errors_have_prometheus_form(alice: Browser, world: World) -> None:
    assert world
    for path, (status, kind), message in CASES:
        answer = alice.get(f"/api/v1/prometheus/api/v1/{path}".replace("+", "%2B"))
        body = answer.json
        assert body is not None, path
        assert (answer.status_code, body["status"], body["errorType"]) == (status, "error", kind)
        assert message in body["error"], (path, body)
