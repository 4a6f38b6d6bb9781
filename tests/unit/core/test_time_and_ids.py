"""Instants, nanoseconds, ids and secrets."""

import hashlib
from datetime import UTC, datetime, timedelta

from core.clock import from_ns, to_ns, utc_now
from core.ids import ID_LENGTH, hash_secret, new_id, new_secret


def test_an_instant_survives_the_way_to_nanoseconds_and_back_exactly() -> None:
    at = datetime(2026, 3, 2, 12, 0, 0, 123457, tzinfo=UTC)
    assert to_ns(at) == 1_772_452_800_123_457_000
    assert from_ns(to_ns(at)) == at


def test_instants_before_the_epoch_count_backwards() -> None:
    assert to_ns(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == -1_000_000_000


def test_the_clock_is_aware_and_utc() -> None:
    assert utc_now().utcoffset() == timedelta(0)


def test_ids_sort_by_their_age() -> None:
    ids = [new_id() for _ in range(1000)]
    assert ids == sorted(set(ids))
    assert {len(ident) for ident in ids} == {ID_LENGTH}


def test_a_secret_names_its_kind_and_is_never_the_same() -> None:
    secrets = {new_secret("vda") for _ in range(100)}
    assert len(secrets) == 100
    assert all(s.startswith("vda_") and len(s) == len("vda_") + 43 for s in secrets)


def test_a_secrets_hash_is_its_sha256() -> None:
    assert hash_secret("vda_x") == hashlib.sha256(b"vda_x").hexdigest()
