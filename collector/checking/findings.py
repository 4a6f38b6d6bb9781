"""What a check finds: one line each, with what to do where something is not in order."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check; `advice` says what to do."""

    verdict: Verdict
    what: str
    says: str
    advice: str = ""
