"""Forms for tenants: creation, quotas and removal."""

from wtforms import EmailField, IntegerField, StringField
from wtforms.validators import DataRequired, NumberRange, Optional

from portal.forms.form import Form, OptionalSizeField
from tenants.quotas import MAX_COUNT, Limits


class NewTenantForm(Form):
    """A new tenant and its first admin."""

    name = StringField("Name", [DataRequired("Enter the customer's name.")])
    slug = StringField("Slug")
    email = EmailField("Admin email")


def _count(label: str) -> IntegerField:
    message = "Enter a whole number, or leave empty for no limit."
    return IntegerField(label, [Optional(), NumberRange(0, MAX_COUNT, message)])


class QuotaForm(Form):
    """A tenant's quotas; empty means no limit, or the default."""

    max_appliances = _count("Appliances")
    max_gpus = _count("GPUs")
    max_active_jobs = _count("Active jobs")
    max_series = _count("Series")
    max_measurements = _count("Measurements")
    max_fields = _count("Fields")
    max_storage_bytes = OptionalSizeField("Storage")
    max_waiting_jobs = _count("Waiting jobs")
    max_rules = _count("Rules")
    max_receivers = _count("Receivers")
    max_schedules = _count("Schedules")
    max_dashboards = _count("Dashboards")
    max_data_bytes = OptionalSizeField("Stored data")

    def limits(self) -> Limits:
        """Return the quotas."""
        return Limits(**{name: self._fields[name].data for name in Limits.__dataclass_fields__})


class RemovalForm(Form):
    """The name of the tenant, to confirm its removal."""

    name = StringField(
        "Tenant name",
        [DataRequired("Enter the tenant's name to confirm.")],
        render_kw={"autocomplete": "off", "autocapitalize": "off", "spellcheck": "false"},
    )
