"""The forms of standings: appeals, and the operator's policy."""

from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from wtforms import BooleanField, FloatField, IntegerField, StringField, TextAreaField
from wtforms.validators import DataRequired, InputRequired, Length

from marketplace.consequences.models import MAX_APPEAL_LENGTH, MAX_NOTE_LENGTH
from marketplace.consequences.policy import FeeTier, Policy
from portal.forms.form import Form, LinesField

_NUMBER = [InputRequired("Enter a number.")]


def parse_tier(line: str) -> FeeTier:
    """Return the tier of `0.9: -2`.

    Raises:
        ValueError: the line says something else.
    """
    score, _, points = line.partition(":")
    try:
        return FeeTier(score=float(score), points=Decimal(points.strip()))
    except (ValueError, InvalidOperation):
        message = f"{line.strip()[:40]!r}: write score: points, such as 0.9: -2."
        raise ValueError(message) from None


def format_tier(tier: FeeTier) -> str:
    """Return a tier as `0.9: -2`."""
    return f"{tier.score:g}: {tier.points.normalize():f}"


class AppealForm(Form):
    """What a provider says against its suspension."""

    text = TextAreaField(
        "Your appeal",
        [DataRequired("Say why the suspension is wrong."), Length(max=MAX_APPEAL_LENGTH)],
    )


class PolicyForm(Form):
    """What follows from scores and breaches."""

    placement_weight = FloatField("Weight of the score in placement", _NUMBER)
    last_below = FloatField("Listed last below", _NUMBER)
    unlisted_below = FloatField("Not listed below", _NUMBER)
    fee_tiers = LinesField("Fees by score", parse=parse_tier, format=format_tier)
    suspension_breaches = IntegerField("Breaches that lead to notice", _NUMBER)
    breaches_per_hundred = FloatField("Per 100 appliances and contracts", _NUMBER)
    window_days = IntegerField("Days that breaches count", _NUMBER)
    mend_days = IntegerField("Days to mend", _NUMBER)
    mend_breaches = IntegerField("Breaches after notice that suspend", _NUMBER)
    suspension_days = IntegerField("Days of suspension", _NUMBER)
    requires_checks = BooleanField("Failed checks must be passed before the return")
    probation_days = IntegerField("Days of probation", _NUMBER)
    probation_max_gpus = IntegerField("GPUs of a contract during probation", _NUMBER)
    probation_breaches = IntegerField("Probation breaches that lead to notice", _NUMBER)
    note = StringField("Note", [Length(max=MAX_NOTE_LENGTH)], default="")

    def policy(self) -> Policy:
        """Return the policy."""
        values: dict[str, Any] = {name: self[name].data for name in Policy.__struct_fields__}
        return Policy(**values | {"fee_tiers": tuple(values["fee_tiers"])})

    @classmethod
    def of(cls, policy: Policy) -> "PolicyForm":
        """Return the form of a policy; a submitted one has what was entered."""
        return cls(data=msgspec.structs.asdict(policy))
