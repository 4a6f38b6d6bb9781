"""Which names of hosts are of one host."""

import pytest

from core.host_names import is_same_host


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("r1", "r1.foo.local"),
        ("R1.Foo.local", "r1.foo.local"),
        ("r1.foo.local.", "r1.foo.local"),
        ("10.0.0.5", "10.0.0.5"),
        ("fe80::1", "FE80::1"),
        ("localhost.localdomain", "localhost"),
    ],
)
def test_a_short_name_is_of_the_host_with_a_domain(first: str, second: str) -> None:
    assert is_same_host(first, second)
    assert is_same_host(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("r1.foo.local", "r1.bar.local"),
        ("10.0.0.5", "10.7.7.7"),
        ("10", "10.0.0.5"),
        ("fe80::1", "fe80::2"),
        ("::ffff:10.0.0.5", "::ffff:10"),
        ("r1", "r2"),
        ("r1", "r2.foo.local"),
    ],
)
def test_other_domains_and_addresses_are_other_hosts(first: str, second: str) -> None:
    assert not is_same_host(first, second)
    assert not is_same_host(second, first)
