"""The actions of a rule when an alert fires, as a user writes them: at most one of each kind.

    {"kind": "label", "labels": {"needs": "repair"}, "max_per_hour": 5, "is_dry_run": False,
     "severity": "critical"}

`severity` is the least one; `labels` are those of `label`, and `receiver` is the name of the
webhook that `webhook` calls. See `alerting.rules.actions` for what happens then.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from alerting.states import ActionKind, Severity
from tenants.fleet.appliance_changes import label_errors
from tenants.permissions import Permission

DEFAULT_MAX_PER_HOUR = 5
MAX_PER_HOUR = 1000
_PERMISSIONS = {
    ActionKind.STOP_JOBS: Permission.STOP_ANY_JOB,
    ActionKind.DRAIN: Permission.MANAGE_APPLIANCES,
    ActionKind.LABEL: Permission.MANAGE_APPLIANCES,
}


def stored_action(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid action with all that its kind has, and nothing else."""
    kind = ActionKind(action["kind"])
    return {
        "kind": kind.value,
        "is_dry_run": bool(action.get("is_dry_run", False)),
        "max_per_hour": int(action.get("max_per_hour", DEFAULT_MAX_PER_HOUR)),
        "severity": Severity(action.get("severity", Severity.WARNING)).value,
        **({"labels": dict(action["labels"])} if kind is ActionKind.LABEL else {}),
        **({"receiver": str(action["receiver"])} if kind is ActionKind.WEBHOOK else {}),
    }


def action_errors(actions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the actions of a rule, without a look at the database."""
    kinds = [action["kind"] for action in actions]
    errors = [
        f"There are several actions {kind.value!r}. Merge them into one."
        for kind in ActionKind
        if kinds.count(kind.value) > 1
    ]
    for action in actions:
        kind, count = action["kind"], action.get("max_per_hour", DEFAULT_MAX_PER_HOUR)
        labels, receiver = action.get("labels") or {}, action.get("receiver") or ""
        if not 1 <= count <= MAX_PER_HOUR:
            errors.append(
                f"{kind}: max_per_hour is {count}. It must be from 1 to {MAX_PER_HOUR:,}."
            )
        if kind == ActionKind.LABEL:
            errors += [f"label: {text}" for text in label_errors(labels)]
            errors += [] if labels else ["label: Give the labels to set, such as needs=repair."]
        elif labels:
            errors.append(f"{kind}: Only 'label' has labels.")
        if kind == ActionKind.WEBHOOK and not receiver:
            errors.append("webhook: Give the name of the receiver to call.")
        elif receiver and kind != ActionKind.WEBHOOK:
            errors.append(f"{kind}: Only 'webhook' has a receiver.")
    return errors


def required_permissions(actions: Sequence[Mapping[str, Any]]) -> set[Permission]:
    """Return what a user needs who does by hand what actions do."""
    kinds = {ActionKind(action["kind"]) for action in actions}
    return {permission for kind, permission in _PERMISSIONS.items() if kind in kinds}


def is_severe_enough(action: Mapping[str, Any], severity: Severity) -> bool:
    """Return whether an alert of a severity has an action."""
    return severity.rank >= Severity(action["severity"]).rank
