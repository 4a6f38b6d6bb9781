"""The check of requests against the OpenAPI of Kubernetes refuses what it should."""

import pytest

from tests.fixtures.kubernetes_openapi import violations

PODS = "/api/v1/namespaces/vedette/pods"
JOB = "/apis/batch/v1/namespaces/vedette/jobs/vedette-1"
MERGE = "application/merge-patch+json"


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "part"),
    [
        ("GET", PODS, [("limit", "many")], {}, "limit='many' is no Optional[int]"),
        ("GET", PODS, [("labels", "a=b")], {}, "labels is no parameter"),
        ("GET", f"{PODS}/a/exec", [("tty", "1")], {}, "tty='1' is no Optional[bool]"),
        ("GET", f"{PODS}/a/exec", [("tty", "true")] * 2, {}, "tty is there 2 times"),
        ("PUT", PODS, [], {}, "is no operation"),
        ("PATCH", JOB, [], {"spec": {}}, "takes no application/json"),
        ("DELETE", JOB, [], {"kind": "DeleteOptions", "policy": "Orphan"}, "'policy' was unexp"),
        ("DELETE", JOB, [], {"gracePeriodSeconds": "1"}, "'1' is not of type 'integer'"),
        ("POST", PODS, [], {"apiVersion": "v1", "kind": "Pod", "specs": {}}, "'specs' was unexp"),
        (
            "GET",
            "/apis/kueue.x-k8s.io/v1beta1/namespaces/vedette/workloads",
            [("queue", "a")],
            {},
            "queue is no parameter",
        ),
    ],
)
def test_what_the_openapi_does_not_have_is_a_violation(
    method: str, path: str, query: list[tuple[str, str]], body: dict[str, object], part: str
) -> None:
    texts = list(violations(method, path, query, media_type="application/json", body=body))
    assert any(part in text for text in texts), texts


def test_what_it_has_is_none() -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    words = [("command", "a"), ("command", "b"), ("stdin", "true")]
    for method, path, query, body in (
        ("GET", PODS, [("limit", "500"), ("continue", "x")], {}),
        ("GET", f"{PODS}/a/exec", words, {}),
        ("GET", "/apis/metrics.k8s.io/v1beta1/namespaces/vedette/pods", [("limit", "5")], {}),
        ("DELETE", JOB, [], options),
        ("PATCH", JOB, [], {"spec": {"suspend": False}}),
    ):
        media_type = MERGE if method == "PATCH" else "application/json"
        assert not list(violations(method, path, query, media_type=media_type, body=body))
