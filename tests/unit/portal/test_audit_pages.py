"""The audit log in the browser and by REST: who sees what of it, narrowed, paged and exported."""

import csv
import itertools
import json
from datetime import timedelta

import pytest
from sqlalchemy import event, select

from core.db import Base, SessionFactory
from portal.pages.audit import KINDS
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting, record
from tenants.models import PLATFORM_CHAIN, AuditEntry, Tenant
from tests.cast import NOON, Cast, FrozenClock
from tests.unit.portal.conftest import Browser, MakeToken

ALICE = Actor(name="alice@acme.example", via="browser", address="192.0.2.7")


def test_the_filter_lists_every_kind_that_is_audited() -> None:
    models = [mapper.class_ for mapper in Base.registry.mappers]
    kinds = {model.audited.kind for model in models if hasattr(model, "audited")}
    assert "saved_report" in kinds
    assert kinds <= KINDS.keys()


@pytest.fixture
def log(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> SessionFactory:
    """120 entries in acme's log, a minute between each, and one in globex's."""
    audited = acting(sessions, ALICE, clock=clock)
    with audited.begin() as session:
        for number in range(120):
            record(
                session,
                action="rule.renamed" if number % 40 == 0 else "job.submitted",
                target_kind="rule",
                target_id=None,
                target_name=f"thing {number}",
                tenant_id=cast.acme.id,
                before={"name": "<old>"},
                after={"name": f"new {number}", "labels": {"rack": "4"}, "is_enabled": True},
                now=NOON + timedelta(minutes=number),
            )
        session.get_one(Tenant, cast.globex.id).name = "Globex Labs"
    return sessions


def test_alice_reads_her_tenants_log_with_what_was_and_what_is(
    log: SessionFactory, alice: Browser
) -> None:
    del log
    page = alice.get("/audit").text
    assert "thing 119" in page
    assert "<del>&lt;old&gt;</del>" in page
    assert "<ins>new 119</ins>" in page
    assert "rack=4" in page
    assert "192.0.2.7" in page
    assert "Globex Labs" not in page


def test_older_entries_are_a_link_away_and_filters_stay_in_the_address(
    log: SessionFactory, alice: Browser
) -> None:
    del log
    first = alice.get("/audit?action=job.submitted").text
    assert "thing 119" in first
    assert "thing 80" not in first
    older = first.split('rel="next"')[0].rsplit('href="', 1)[1].split('"')[0].replace("&amp;", "&")
    assert "action=job.submitted" in older
    second = alice.get(older).text
    assert "thing 119" not in second
    assert "thing 90" in second


def test_filters_narrow_the_list(log: SessionFactory, alice: Browser) -> None:
    del log
    for filters, count in (
        ("action=rule", 3),
        ("action=rule.renamed", 3),
        ("action=rul", 0),
        ("target=thing+7", 1),
        ("text=THING+11", 11),
        ("actor=alice@acme.example&action=rule", 3),
        ("actor=bob@acme.example", 0),
        ("since=2026-03-02T12:10:00Z&until=2026-03-02T12:15:00Z", 5),
    ):
        answer = alice.get(f"/api/v1/audit?page_size=500&{filters}").json
        assert answer is not None
        assert len(answer["items"]) == count
        assert answer["total"] is None


def test_a_page_continues_after_the_last_one(
    log: SessionFactory, alice: Browser, cast: Cast
) -> None:
    with log() as session:
        everything = set(session.scalars(select(AuditEntry.id).filter_by(chain=cast.acme.id)))
    seen: list[str] = []
    address = "/api/v1/audit?page_size=50"
    while True:
        answer = alice.get(address).json
        assert answer is not None
        seen += [item["id"] for item in answer["items"]]
        assert answer["total"] >= 120
        if answer["next"] is None:
            break
        address = f"/api/v1/audit?page_size=50&before={answer['next']}"
    assert len(seen) == len(set(seen))
    assert everything <= set(seen)


def test_a_page_without_an_index_scans_a_limited_number_of_entries_and_links_to_the_next(
    log: SessionFactory, alice: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    del log
    monkeypatch.setattr("tenants.auditing.log.SCAN_LIMIT", 50)
    assert 'rel="next"' in alice.get("/audit?text=thing+3").text
    names: list[str] = []
    pages, before = 0, ""
    while pages == 0 or before:
        answer = alice.get(f"/api/v1/audit?text=thing+3&before={before}").json
        assert answer is not None
        names += [item["target_name"] for item in answer["items"]]
        pages, before = pages + 1, answer["next"] or ""
    assert names == [f"thing {number}" for number in (*range(39, 29, -1), 3)]
    assert pages == 3
    exported = alice.get("/audit/export?format=jsonl&text=thing+3").text
    assert len(exported.splitlines()) == len(names)


def test_olivia_reads_the_platforms_log_any_tenants_and_all(
    log: SessionFactory, olivia: Browser, cast: Cast
) -> None:
    del log
    chains = {
        query: {item["chain"] for item in olivia.get(f"/api/v1/audit?{query}").json["items"]}  # type: ignore[index] # JSON
        for query in (
            "page_size=500",
            "chain=platform",
            f"chain={cast.acme.id}",
            "chain=all&page_size=500",
        )
    }
    assert chains["page_size=500"] == chains["chain=all&page_size=500"]
    assert chains["chain=platform"] == {PLATFORM_CHAIN}
    assert chains[f"chain={cast.acme.id}"] == {cast.acme.id}
    assert chains["chain=all&page_size=500"] == {PLATFORM_CHAIN, cast.acme.id, cast.globex.id}
    for path in ("/audit", "/audit?chain=all", f"/audit?chain={cast.acme.id}"):
        assert olivia.get(path).status_code == 200


def test_charlie_never_reads_acmes_log_whatever_he_asks_for(
    log: SessionFactory, charlie: Browser, cast: Cast
) -> None:
    with log() as session:
        foreign = session.scalars(select(AuditEntry.id).filter_by(chain=cast.acme.id)).first()
    for chain in (cast.acme.id, "all", "platform"):
        for path in ("/audit", "/api/v1/audit", "/audit/export", "/api/v1/audit/export"):
            answer = charlie.get(f"{path}?chain={chain}")
            assert answer.status_code == 200
            assert "thing 1" not in answer.text, path
    missing = charlie.get("/api/v1/audit?before=01a1ff55-0000-7000-8000-000000000000")
    assert charlie.get(f"/api/v1/audit?before={foreign}").status_code == 422
    assert missing.status_code == 422


def test_members_may_not_read_it(log: SessionFactory, bob: Browser) -> None:
    del log
    for path in ("/audit", "/audit/export", "/api/v1/audit", "/api/v1/audit/export"):
        assert bob.get(path).status_code == 403
    assert 'href="/audit"' not in bob.get("/jobs").text


def test_a_log_without_entries_shows_an_empty_state(
    sessions: SessionFactory, cast: Cast, olivia: Browser
) -> None:
    del sessions
    assert 'class="vd-empty"' in olivia.get("/audit?action=quota").text
    assert 'class="vd-empty"' in olivia.get(f"/audit?chain={cast.globex.id}").text


def test_a_time_that_is_none_is_said(alice: Browser) -> None:
    answer = alice.get("/audit?since=yesterday")
    assert answer.status_code == 422
    assert "2026-03-02T12:00" in answer.text


def test_an_export_has_all_entries_and_is_itself_an_entry(
    log: SessionFactory, alice: Browser, cast: Cast
) -> None:
    answer = alice.get("/audit/export?format=csv&action=job")
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="audit_acme_')
    assert len(rows) == 117
    assert json.loads(rows[0]["after"])["name"] == "new 119"
    with log() as session:
        newest = select(AuditEntry).filter_by(chain=cast.acme.id, action="audit.exported")
        (entry,) = session.scalars(newest)
    assert entry.after == {"action": "job", "format": "csv"}
    assert entry.actor_name == "alice@acme.example"


def test_json_lines_hold_all_that_the_hash_is_made_of(
    log: SessionFactory, make_token: MakeToken, cast: Cast, alice: Browser
) -> None:
    del log
    headers = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    answer = alice.client.get("/api/v1/audit/export?format=jsonl", headers=headers)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    numbers = [line["number"] for line in lines]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[-1] == 1
    assert lines[0]["action"] == "audit.exported"
    assert lines[0]["via"] == "API token test"
    assert all(a["previous_hash"] == b["hash"] for a, b in itertools.pairwise(lines))


def test_a_spreadsheet_takes_nothing_in_it_for_a_formula(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, alice: Browser
) -> None:
    with acting(sessions, ALICE, clock=clock).begin() as session:
        session.get_one(Tenant, cast.acme.id).name = "=1+1"
    rows = csv.DictReader(alice.get("/audit/export?action=tenant").text.splitlines())
    assert [row["target_name"] for row in rows] == ["'=1+1"]


def test_a_page_costs_the_same_queries_however_long_the_log_is(
    log: SessionFactory, alice: Browser
) -> None:
    seen: list[str] = []
    engine = log.kw["bind"]

    def note(*args: object) -> None:
        seen.append(str(args[2]))

    event.listen(engine, "before_cursor_execute", note)
    counts = []
    for path in ("/audit?action=quota", "/audit", "/audit"):
        seen.clear()
        alice.get(path)
        counts.append(len(seen))
    event.remove(engine, "before_cursor_execute", note)
    assert counts[1] == counts[2]
    assert counts[2] <= counts[0] + 2


def test_changes_in_the_browser_are_logged_with_its_address(
    sessions: SessionFactory, alice: Browser, cast: Cast
) -> None:
    form: dict[str, object] = {
        "name": "Hook",
        "kind": "webhook",
        "target": "https://acme.example/hook",
    }
    page = alice.post("/receivers", form).text
    secret = "vdw_" + page.split("vdw_")[1].split('"')[0]
    with sessions() as session:
        entry = session.scalars(
            select(AuditEntry).filter_by(chain=cast.acme.id, action="receiver.created")
        ).one()
    assert (entry.actor_name, entry.via) == ("alice@acme.example", "browser")
    assert (entry.address, entry.actor_id) == ("127.0.0.1", cast.alice.id)
    assert secret not in json.dumps(entry.after)
    assert secret not in alice.get("/audit").text


def test_sign_ins_failed_sign_ins_and_sign_outs_are_logged(
    sessions: SessionFactory, nobody: Browser, cast: Cast
) -> None:
    nobody.sign_in(cast.alice.email, "wrong password")
    nobody.sign_in(cast.alice.email)
    nobody.post("/logout")
    with sessions() as session:
        entries = session.scalars(
            select(AuditEntry).filter_by(chain=cast.acme.id).order_by(AuditEntry.number)
        ).all()
    told = [(entry.action, entry.target_name) for entry in entries]
    email = "alice@acme.example"
    assert told == [
        ("session.failed", email),
        ("session.started", email),
        ("session.ended", email),
    ]
    assert {entry.address for entry in entries} == {"127.0.0.1"}
