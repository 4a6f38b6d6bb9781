"""The form of a cleanup policy."""

from wtforms import BooleanField, HiddenField, IntegerField, SelectField
from wtforms.fields import SelectChoice
from wtforms.validators import InputRequired, NumberRange

from jobqueue.storage.policies import MAX_DAYS, CleanupPolicy
from portal.forms.form import Form

_DAYS = [InputRequired("Enter a number of days."), NumberRange(1, MAX_DAYS)]


class CleanupPolicyForm(Form):
    """When images and stopped containers are deleted at a site."""

    site = SelectField("Site", choices=[SelectChoice("", "All other sites")], default="")
    is_automatic = BooleanField("Clean up automatically")
    image_days = IntegerField("Unused images, days", _DAYS)
    disk_percent = IntegerField(
        "Disk use, %",
        [InputRequired("Enter a percentage."), NumberRange(1, 100)],
    )
    container_days = IntegerField("Stopped containers, days", _DAYS)
    includes_others = BooleanField("Include what no job used")
    action = HiddenField(default="")

    @property
    def is_removal(self) -> bool:
        """Return whether the site's own policy is to be removed."""
        return bool(self.site.data) and self.action.data == "remove"

    def policy(self) -> CleanupPolicy:
        """Return the policy."""
        return CleanupPolicy(
            is_automatic=self.is_automatic.data,
            image_days=self.image_days.data,
            disk_percent=self.disk_percent.data,
            container_days=self.container_days.data,
            includes_others=self.includes_others.data,
        )
