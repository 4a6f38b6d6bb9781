"""What becomes of a body.

A *fault* is a line (or a value of collectd's) that was not stored, and why; the others of its body
are stored all the same, because most senders drop a whole body over one fault.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """What was not stored: the number of its line, counted from 1, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a body: its faults by line, and how many lines held a sample or a fault."""

    faults: list[Fault]
    total: int
