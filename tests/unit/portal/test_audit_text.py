"""Changes of an audit entry are shown in readable form."""

from typing import Any

import pytest
from flask import Flask

from portal.presenters.audit import NOTHING, differences
from portal.time_zone import ZONE_COOKIE
from tenants.models import AuditEntry


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-11-21T21:48:32.822009+00:00", "2026-11-22 03:18:32 IST"),
        ("2026-11-21T21:48:32Z", "2026-11-22 03:18:32 IST"),
        ("2026-11-21T21:48:32Z or later", "2026-11-21T21:48:32Z or later"),
        (True, "yes"),
        (["jobs", "alerts"], "jobs, alerts"),
        ({"rack": "4"}, "rack=4"),
        (None, NOTHING),
        ("", NOTHING),
        (0, "0"),
    ],
)
def test_a_value_is_shown_in_readable_form(value: Any, text: str) -> None:  # noqa: ANN401 - as JSON
    cookie = {"Cookie": f"{ZONE_COOKIE}=Asia/Kolkata"}
    with Flask("test").test_request_context(headers=cookie):
        (told,) = differences(AuditEntry(before=None, after={"closed_at": value}))
    assert (told.name, told.before, told.after) == ("closed at", None, text)
