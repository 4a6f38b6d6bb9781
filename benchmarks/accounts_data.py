"""Rows for the benchmark of accounts: appliances, and an audit log that the server makes itself.

A million entries are made by one statement from MariaDB's sequence engine. Their hashes are no
chain: lists do not look at them.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from core.ids import hash_secret
from tenants.models import ApplianceState

FIRST_AT = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS_APART = 10
TARGET_ID = "00000000-0000-7000-8000-0000000000ff"
_TARGETS = 5_000
_PEOPLE = 200

# Every thousandth entry is of a rare kind, and one person has done nothing at all.
ENTRIES_SQL = f"""
INSERT INTO audit_entries (id, chain, number, at, actor_id, actor_name, via, action, target_kind,
    target_id, target_name, `before`, `after`, reason, address, user_agent, previous_hash, hash)
SELECT CONCAT('00000000-0000-7000-8000-', LPAD(HEX(1000000000 + seq), 12, '0')), :chain, seq,
    TIMESTAMPADD(SECOND, seq * {SECONDS_APART}, '2026-01-01'), NULL,
    CONCAT('user', seq % {_PEOPLE}, '@acme.example'), 'browser',
    CASE WHEN seq % 1000 = 0 THEN 'rule.renamed' WHEN seq % 3 = 0 THEN 'job.submitted'
         ELSE 'session.started' END,
    'thing', CONCAT('00000000-0000-7000-8000-', LPAD(HEX(seq % {_TARGETS}), 12, '0')),
    CONCAT('thing ', seq % {_TARGETS}), '{{"name": "before"}}', '{{"name": "after", "gpus": 8}}',
    '', '192.0.2.7', 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0',
    SHA2(seq - 1, 256), SHA2(seq, 256)
FROM seq_1_to_1000000 WHERE seq <= :entries
"""  # noqa: S608 - of constants alone
HEAD_SQL = "INSERT INTO audit_heads VALUES (:chain, :entries, SHA2(:entries, 256))"


def questions(*, since: str, until: str, last_page: int) -> dict[str, str]:
    """Return the addresses that are asked for, by name; the time is in the log's middle."""
    page = "/api/v1/appliances?page_size=50"
    return {
        "appliances page": "/appliances",
        "appliances page searched": "/appliances?search=gpu-0004",
        "appliances page by state": "/appliances?sort=status",
        "appliances by REST": page,
        "appliances by three names": f"{page}&sort=-gpus,site,-name",
        "appliances by what is nowhere": f"{page}&search=nowhere",
        "appliances, last page": f"{page}&page={last_page}",
        "audit page": "/audit",
        "audit by REST": "/api/v1/audit?page_size=50",
        "audit by action": "/api/v1/audit?action=rule.renamed",
        "audit by kind": "/api/v1/audit?action=membership",
        "audit by actor": "/api/v1/audit?actor=nobody@acme.example",
        "audit by target": f"/api/v1/audit?target={TARGET_ID}",
        "audit by a text that is nowhere": "/api/v1/audit?text=nowhere",
        "audit by time": f"/api/v1/audit?since={since}&until={until}",
    }


def instant_of(number: int) -> datetime:
    """Return when an entry was made."""
    return FIRST_AT + timedelta(seconds=number * SECONDS_APART)


def entry_id(number: int) -> str:
    """Return the id of an entry."""
    return f"00000000-0000-7000-8000-{1_000_000_000 + number:012X}"


def appliances(tenant_id: str, count: int, *, now: datetime) -> Iterator[dict[str, Any]]:
    """Return rows of appliances that are online, each with its inventory."""
    for number in range(count):
        name = f"gpu-{number:05}"
        gpus = [
            {"index": i, "uuid": f"GPU-{name}-{i}", "model": "H100", "memory_bytes": 80 * 2**30}
            for i in range(8)
        ]
        yield {
            "tenant_id": tenant_id,
            "name": name,
            "site": f"rack {number % 100}",
            "labels": {"rack": str(number % 100)},
            "state": ApplianceState.ONLINE,
            "secret_hash": hash_secret(name),
            "inventory": {"hostname": name, "cpu_count": 96, "memory_bytes": 2**40, "gpus": gpus},
            "enrolled_at": now,
            "last_seen_at": now,
        }
