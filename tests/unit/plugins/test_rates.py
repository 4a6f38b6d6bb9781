"""Rates from counters: the first reading, resets, and devices that come and go."""

from datetime import timedelta

import pytest

from plugins.procfs import CounterRates
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT


def test_a_rate_is_the_growth_for_each_second() -> None:
    rates = CounterRates()
    assert rates.rates("eth0", {"bytes": 1000.0}, now=FIRST_AT) is None
    assert rates.rates("eth0", {"bytes": 3500.0}, now=SECOND_AT) == {"bytes": 250.0}


def test_a_counter_that_went_back_gives_no_rate_and_is_the_new_start() -> None:
    rates = CounterRates()
    rates.rates("eth0", {"bytes": 1000.0}, now=FIRST_AT)
    assert rates.rates("eth0", {"bytes": 10.0}, now=SECOND_AT) is None
    third_at = SECOND_AT + timedelta(seconds=10)
    assert rates.rates("eth0", {"bytes": 110.0}, now=third_at) == {"bytes": 10.0}


@pytest.mark.parametrize("seconds", [0, -5])
def test_time_that_did_not_move_forward_gives_no_rate(seconds: int) -> None:
    rates = CounterRates()
    rates.rates("eth0", {"bytes": 1000.0}, now=FIRST_AT)
    assert rates.rates("eth0", {"bytes": 2000.0}, now=FIRST_AT + timedelta(seconds=seconds)) is None


def test_a_device_that_was_gone_starts_afresh() -> None:
    rates = CounterRates()
    rates.rates("usb0", {"bytes": 1000.0}, now=FIRST_AT)
    rates.keep_only({"eth0"})
    assert rates.rates("usb0", {"bytes": 9000.0}, now=SECOND_AT) is None
