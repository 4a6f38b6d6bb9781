"""nginx before the portal has the portal's deadlines and bounds, and the portal trusts it.

That nginx accepts the file is shown by the tests that run it.
"""

import re
from pathlib import Path

import pytest

from core.settings import ServerSettings
from protocol.inventory import MAX_REPORT_BYTES
from protocol.relays import MAX_SAMPLES_BYTES
from serving.portal_requests import MAX_ANONYMOUS_BODY_BYTES

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CONFIGURATION = (DEPLOY / "nginx" / "vedette.conf").read_text(encoding="utf-8")
SETTINGS = ServerSettings()


def value_of(directive: str) -> str:
    match = re.search(rf"^ *{directive} +([^;]+);", CONFIGURATION, re.MULTILINE)
    assert match, directive
    return match[1]


@pytest.mark.parametrize(
    ("directive", "value"),
    [
        ("client_header_timeout", f"{SETTINGS.header_timeout_seconds:g}s"),
        ("client_body_timeout", f"{SETTINGS.body_timeout_seconds:g}s"),
        ("send_timeout", f"{SETTINGS.write_timeout_seconds:g}s"),
        ("keepalive_timeout", f"{SETTINGS.keep_alive_seconds:g}s"),
        ("limit_conn", f"vedette_addresses {SETTINGS.max_connections_per_address}"),
        ("client_max_body_size", f"{SETTINGS.max_body_bytes // 1_000_000}m"),
        ("proxy_request_buffering", "on"),
        ("proxy_set_header X-Forwarded-For", "$remote_addr"),
        ("proxy_set_header X-Forwarded-Proto", "$scheme"),
    ],
)
def test_nginx_has_the_portals_defaults(directive: str, value: str) -> None:
    assert value_of(directive) == value


def test_nginx_lets_relays_send_as_much_as_the_portal_takes() -> None:
    block = CONFIGURATION.partition("location = /relay/v1/samples {")[2].partition("}")[0]
    assert f"client_max_body_size {MAX_SAMPLES_BYTES // 2**20}m;" in block


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("/login", f"{MAX_ANONYMOUS_BODY_BYTES // 1024}k"),
        ("/agent/v1/enroll", f"{MAX_REPORT_BYTES // 2**20}m"),
    ],
)
def test_nginx_limits_bodies_without_credentials_as_the_portal_does(path: str, size: str) -> None:
    block = CONFIGURATION.partition(f"location = {path} {{")[2].partition("}")[0]
    assert f"client_max_body_size {size};" in block
