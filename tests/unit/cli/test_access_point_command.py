"""`vedette access-point` against a real portal."""

import json

from core.db import SessionFactory
from tenants.models import AccessPoint
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.in_process import run_vedette


def test_an_operator_adds_changes_and_removes_access_points(
    *, url: str, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        secrets = [
            create_api_token(session, scope_of(user), name="test", now=NOON)[1]
            for user in (cast.olivia, cast.alice)
        ]

    def access_point(*words: str, secret: str = secrets[0]) -> tuple[int, str]:
        environ = {"VEDETTE_URL": url, "VEDETTE_TOKEN": secret}
        done = run_vedette("access-point", *words, environ=environ)
        return done.returncode, done.stdout + done.stderr

    assert "No access points yet" in access_point("list")[1]
    assert access_point("list", secret=secrets[1])[0] == 1, "operators only"
    status, settings = access_point("add", "fra", "https://fra.example", "--relay", "--weight", "7")
    assert status == 0
    names = [line.partition("=")[0] for line in settings.splitlines()]
    assert names == ["VEDETTE_RELAY_UPSTREAM_URL", "VEDETTE_RELAY_TOKEN"]
    assert access_point("add", "fra", "https://fra.example/x")[0] == 1
    assert access_point("add", "osl", "https://osl.example", "--region", "eu-north")[0] == 0
    with sessions.begin() as session:
        point = session.query(AccessPoint).filter_by(name="fra").one()
        point.spool_bytes, point.max_spool_bytes = 2**30, 10 * 2**30
    lines = access_point("list")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "fra", "osl"]
    assert "never seen" in lines[1]
    assert "1 GiB of 10 GiB" in lines[1]
    assert access_point("set", "osl", "--weight", "0", "--tenant", cast.acme.slug)[0] == 0
    assert access_point("list")[1].splitlines()[2].split()[4] == cast.acme.slug
    assert "no tenant 'none'" in access_point("set", "osl", "--tenant", "none")[1]
    listed = json.loads(access_point("list", "-o", "json")[1])
    assert [(row["weight"], row["tenant_id"]) for row in listed] == [(7, None), (0, cast.acme.id)]
    assert access_point("set", "osl", "--tenant", "all", "--name", "oslo")[0] == 0
    assert access_point("set", "oslo")[0] == 2
    status, renewed = access_point("token", "fra")
    assert (status, renewed == settings) == (0, False)
    assert access_point("token", "oslo")[0] == 1
    assert access_point("remove", "oslo") == (0, "oslo removed\n")
    assert access_point("remove", "oslo")[0] == 1
