"""What checks find: the reason, how to mend it, and the evidence."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

# Of one kind, as eight GPUs usually have the same.
MAX_LISTED = 3


class Severity(StrEnum):
    """What follows from a finding: `failure` keeps the appliance out of offers."""

    FAILURE = "failure"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a check found.

    Attributes:
        code: stable, such as `memory_missing`.
        severity: what follows.
        text: what is wrong, for people.
        advice: how to mend it.
        evidence: figures and names, for people and programs.
    """

    code: str
    severity: Severity
    text: str
    advice: str = ""
    evidence: dict[str, Any] = {}


def failure(code: str, text: str, advice: str = "", **evidence: Any) -> Finding:  # noqa: ANN401 - any JSON
    """Return a finding that keeps the appliance out of offers."""
    severity = Severity.FAILURE
    return Finding(code=code, severity=severity, text=text, advice=advice, evidence=evidence)


def warning(code: str, text: str, advice: str = "", **evidence: Any) -> Finding:  # noqa: ANN401 - any JSON
    """Return a finding that its owner should look at."""
    severity = Severity.WARNING
    return Finding(code=code, severity=severity, text=text, advice=advice, evidence=evidence)


def note(code: str, text: str, advice: str = "", **evidence: Any) -> Finding:  # noqa: ANN401 - any JSON
    """Return a finding that explains what was not checked, or what was measured."""
    severity = Severity.NOTE
    return Finding(code=code, severity=severity, text=text, advice=advice, evidence=evidence)


def failures(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings for which an appliance fails."""
    return [finding for finding in findings if finding.severity is Severity.FAILURE]


def reason_of(findings: Sequence[Finding]) -> str:
    """Return the texts of the failures as one."""
    texts = [finding.text for finding in failures(findings)]
    hidden = len(texts) - MAX_LISTED
    rest = f" And {hidden} more." if hidden > 0 else ""
    return " ".join(texts[:MAX_LISTED]) + rest


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding for those of several GPUs that have the same code and severity."""
    groups: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.severity), []).append(finding)
    result = []
    for members in groups.values():
        first = members[0]
        names = [str(member.evidence["gpu"]) for member in members if "gpu" in member.evidence]
        if len(members) > 1:
            evidence = {"gpus": names, "all": [member.evidence for member in members]}
            text = f"{first.text} The same goes for {len(members) - 1} more."
            first = msgspec.structs.replace(first, text=text, evidence=evidence)
        result.append(first)
    return result


def stored(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings as JSON."""
    return [msgspec.to_builtins(finding) for finding in findings]


def loaded(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    """Return stored findings."""
    return msgspec.convert(rows, list[Finding])
