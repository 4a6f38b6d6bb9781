"""All tables of jobs: jobs and attempts, templates and schedules, services, settings."""

from jobqueue.models.jobs import (
    CHARGED_FROM,
    OPTIONS,
    OWN_APPLIANCE_ID,
    Attempt,
    Job,
    JobDependency,
    JobEvent,
    LogChunk,
    LongText,
)
from jobqueue.models.schedules import JobSchedule, JobTemplate, ScheduleRun
from jobqueue.models.services import ServiceScaler, ServiceTraffic, ServiceUpdate
from jobqueue.models.settings import (
    DEFAULT_FETCH_MINUTES,
    TenantContainerPolicies,
    TenantQueueSettings,
)
