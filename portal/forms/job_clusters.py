"""The fields of a job form about clusters: which one, its options, running without an image."""

from collections.abc import Mapping, Sequence
from typing import Any

from wtforms import BooleanField, Field, SelectField, StringField, TextAreaField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, StopValidation, ValidationError

from core.errors import VedetteError
from jobqueue.jobs.cluster_requests import Cluster
from portal.forms.form import Form, PairsField
from protocol.clusters import OPTIONS, ClusterQueue
from protocol.job_spec import JobRequest

# Options of clusters that have a field of their own; its name begins with the kind of cluster.
CLUSTER_FIELDS = {
    "slurm.partition": "slurm_partition",
    "slurm.account": "slurm_account",
    "slurm.qos": "slurm_qos",
    "kubernetes.queue": "kubernetes_queue",
    "ray.runtime_env": "ray_runtime_env",
}


class _ImageRequired(DataRequired):  # type: ignore[misc] # WTForms ships no types
    """Requires an image, unless the job runs without a container."""

    def __call__(self, form: "ClusterFields", field: Field) -> None:
        """Check the field."""
        if form.is_without_image:
            raise StopValidation
        super().__call__(form, field)


class ClusterFields(Form):
    """The part of a form; `clusters` are those of the tenant."""

    image = StringField("Container image", [_ImageRequired("Enter a container image.")])
    without_image = BooleanField("Run without a container", default=False)
    cluster = SelectField("Cluster", choices=[], default="")
    slurm_partition = StringField("Partition", default="")
    slurm_account = StringField("Account", default="")
    slurm_qos = StringField("Quality of service", default="")
    kubernetes_queue = StringField("Queue", default="")
    ray_runtime_env = TextAreaField("Runtime environment", default="")
    cluster_options = PairsField("Further options", default=dict)
    # Whichever the form has.
    appliance: Field
    clusters: Sequence[Cluster] = ()
    offers_no_image: Sequence[str] = ()

    def offer_clusters(self, clusters: Sequence[Cluster]) -> None:
        """Set the clusters to choose from, and remove the fields of those that a tenant hasn't.

        What a copied job has stays, to be seen.
        """
        self.clusters = clusters
        self.offers_no_image = [
            cluster.name for cluster in clusters if not cluster.report.needs_image
        ]
        kinds = {cluster.kind for cluster in clusters}
        for name in CLUSTER_FIELDS.values():
            field = getattr(self, name)
            if field and name.partition("_")[0] not in kinds and not field.data:
                delattr(self, name)
        if self.without_image and not (self.offers_no_image or self.without_image.data):
            del self.without_image
        if not (clusters or self.chosen_options()):
            self.remove_clusters()
            return
        choices = [SelectChoice(cluster.id, cluster.title) for cluster in clusters]
        self.cluster.choices = [SelectChoice("", "Any that takes the job"), *choices]
        chosen = [
            cluster.id for cluster in clusters if self.appliance.data in {cluster.id, cluster.name}
        ]
        if chosen and not self.is_submitted():
            self.cluster.data, self.appliance.data = chosen[0], ""

    @property
    def cluster_kinds(self) -> dict[str, str]:
        """The kinds of the clusters by id."""
        return {cluster.id: cluster.kind.value for cluster in self.clusters}

    @property
    def further_options(self) -> dict[str, list[str]]:
        """The names of the options that have no field of their own, by the kind of cluster."""
        kinds = sorted({cluster.kind for cluster in self.clusters})
        names = {kind.value: [f"{kind}.{name}" for name in OPTIONS[kind]] for kind in kinds}
        return {
            kind: [name for name in of_kind if name not in CLUSTER_FIELDS]
            for kind, of_kind in names.items()
        }

    def queues(self, kind: str) -> list[tuple[Cluster, ClusterQueue]]:
        """Return the queues of the clusters of a kind."""
        return [
            (cluster, queue)
            for cluster in self.clusters
            for queue in cluster.report.queues
            if cluster.kind == kind
        ]

    def validate_appliance(self, field: StringField) -> None:
        """Refuse an appliance beside a cluster."""
        if self.cluster and self.cluster.data and (field.data or "").strip():
            raise ValidationError("Enter an appliance or choose a cluster, not both.")

    def show_error(self, error: VedetteError, *, renamed: Mapping[str, str] | None = None) -> None:
        """Add errors of options to the fields of these."""
        super().show_error(error, renamed=renamed)
        if not self.cluster_options:
            return
        messages, self.cluster_options.errors = self.cluster_options.errors, []
        for message in messages:
            own = self._fields.get(CLUSTER_FIELDS.get(message.partition(" ")[0], ""))
            field = own or self.cluster_options
            field.errors = [*field.errors, message]

    @property
    def is_without_image(self) -> bool:
        """Return whether the job runs without a container."""
        return bool(self.without_image and self.without_image.data)

    def chosen_options(self) -> dict[str, str]:
        """Return the options of the job, without those of other kinds than the chosen cluster."""
        kinds = [cluster.kind for cluster in self.clusters if cluster.id == self.cluster.data]
        options = {
            option: (field.data or "").strip()
            for option, name in CLUSTER_FIELDS.items()
            if (field := getattr(self, name)) and (not kinds or name.startswith(f"{kinds[0]}_"))
        }
        entered = (self.cluster_options.data or {}) if self.cluster_options else {}
        return {name: value for name, value in options.items() if value} | entered

    def remove_clusters(self) -> None:
        """Remove the fields from a form of a job that runs on no cluster."""
        for name in ("cluster", "cluster_options", "without_image", *CLUSTER_FIELDS.values()):
            delattr(self, name)


def values_of_clusters(job: JobRequest) -> dict[str, Any]:
    """Return the values of the fields for a job."""
    options = dict(job.cluster_options)
    values: dict[str, Any] = {
        name: options.pop(option, "") for option, name in CLUSTER_FIELDS.items()
    }
    return values | {"without_image": not job.image, "cluster_options": options}
