"""How a table's rows are told in the audit log; a model declares it as its class's `audited`."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What of a row the audit log tells.

    Attributes:
        kind: what a row is called; actions are named `<kind>.<verb>`.
        name: the attribute that people know a row by.
        fields: the attributes whose values are told. A change of any other makes no entry.
        secrets: attributes whose change is told and whose value never is, and what to call them.
        verbs: for a change of this attribute alone: what it is called when it gets a value, and
            when it loses it or becomes false. Two equal words where that makes no difference.
        created: what it is called that a row is made.
    """

    kind: str
    name: str
    fields: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    verbs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    created: str = "created"

    def verb_of(self, changes: Mapping[str, object]) -> str:
        """Return what to call a change, given the new values by attribute."""
        if len(changes) != 1:
            return "changed"
        (attribute, value), *_ = changes.items()
        when_set, when_cleared = self.verbs.get(attribute, ("changed", "changed"))
        return when_set if value else when_cleared
