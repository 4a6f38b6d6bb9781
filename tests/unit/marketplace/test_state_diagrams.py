"""The drawn state diagrams say the same as the tables that the code obeys."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from marketplace.consequences.states import STANDING_TRANSITIONS
from marketplace.states import CONTRACT_TRANSITIONS, OFFER_TRANSITIONS, USABLE, ContractState
from marketplace.support.states import TICKET_TRANSITIONS
from marketplace.verification.states import VERIFICATION_TRANSITIONS

STATES = Path(__file__).parents[3] / "docs" / "states"
TABLES: list[tuple[str, Any]] = [
    ("offer.md", OFFER_TRANSITIONS),
    ("contract.md", CONTRACT_TRANSITIONS),
    ("ticket.md", TICKET_TRANSITIONS),
    ("standing.md", STANDING_TRANSITIONS),
    ("verification.md", VERIFICATION_TRANSITIONS),
]


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_a_diagram_draws_exactly_the_moves_of_its_table(
    name: str, table: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    drawn = re.findall(r"^\s+(\w+) --> (\w+)", (STATES / name).read_text("utf-8"), re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {
        (before.value, after.value) for before, afters in table.items() for after in afters
    }


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_a_diagram_marks_the_final_states(
    name: str, table: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    text = (STATES / name).read_text("utf-8")
    final = {state.value for state, afters in table.items() if not afters}
    assert set(re.findall(r"(\w+) --> \[\*\]", text)) == final


def test_contracts_are_usable_until_they_are_final() -> None:
    assert not any(state.is_final for state in USABLE)
    assert not ContractState.PROPOSED.is_final
