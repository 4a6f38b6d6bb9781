"""Forms about tenants: a new one, its quotas, its removal."""

from wtforms import EmailField, IntegerField, StringField
from wtforms.validators import DataRequired, NumberRange, Optional

from portal.forms.base import Form
from portal.forms.fields import SizeField
from tenants.customers.quotas import MAX_COUNT, Limits


class NewTenantForm(Form):
    """A new tenant, and whom to invite as its first admin."""

    name = StringField("Name", [DataRequired("Enter the customer's name.")])
    slug = StringField("Short name")
    email = EmailField("First admin")


class OptionalSizeField(SizeField):
    """Bytes, written like `8 GiB`; an empty box is no number."""

    empty = staticmethod(lambda: None)  # type: ignore[assignment] # none, unlike its base

    def write(self, value: int) -> str:
        """Return the size with its unit; a limit of nothing is 0."""
        return super().write(value) or "0"


def _count(label: str) -> IntegerField:
    fault = "Write a whole number of at least 0, or nothing for no limit."
    return IntegerField(label, [Optional(), NumberRange(0, MAX_COUNT, fault)])


class QuotaForm(Form):
    """The most that a tenant may have; what is empty is without a limit."""

    max_appliances = _count("Appliances")
    max_gpus = _count("GPUs")
    max_active_jobs = _count("Jobs at a time")
    max_series = _count("Series")
    max_storage_bytes = OptionalSizeField("Storage")

    def limits(self) -> Limits:
        """Return what was typed."""
        return Limits(**{name: self._fields[name].data for name in Limits.__dataclass_fields__})


class RemovalForm(Form):
    """The name of the tenant that is to be removed."""

    name = StringField(
        "Type the tenant's name",
        [DataRequired("Type the tenant's name.")],
        render_kw={"autocomplete": "off", "autocapitalize": "off", "spellcheck": "false"},
    )
