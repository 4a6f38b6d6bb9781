"""The form of an order to have a dataset on appliances."""

from wtforms import BooleanField, IntegerField, StringField
from wtforms.validators import NumberRange, Optional

from datasets.prefetches import PrefetchRequest
from portal.forms.form import Form, PairsField
from portal.time_zone import current_zone_name


class PrefetchForm(Form):
    """Which version goes to which appliances, and when."""

    appliance = StringField("Appliance", default="")
    labels = PairsField("Appliance labels", default=dict)
    version = IntegerField("Version", [Optional(), NumberRange(1)])
    schedule = StringField("Schedule", default="")
    time_zone = StringField("Time zone", default=current_zone_name)
    is_pinned = BooleanField("Pin: never evict it from the cache")

    def request(self) -> PrefetchRequest:
        """Return the order."""
        return PrefetchRequest(
            version=self.version.data or 0,
            appliance=(self.appliance.data or "").strip(),
            labels=self.labels.data,
            is_pinned=self.is_pinned.data,
            schedule=(self.schedule.data or "").strip(),
            time_zone=(self.time_zone.data or "").strip() or current_zone_name(),
        )
