"""Jobs for clusters: options, and jobs without an image, are checked when they are submitted."""

from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.jobs.cluster_requests import cluster_problems, tenant_clusters
from jobqueue.queue.schedules import ScheduleRequest, create_schedule
from jobqueue.queue.templates import TemplateRequest, save_template
from protocol.job_spec import DatasetMount, JobKind, JobRequest, Mount, Port
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, submit

PARTITION = {"slurm.partition": "gpu"}


def add_cluster(
    session: Session,
    cast: Cast,
    connector: str,
    kind: str = "slurm",
    **report: Any,  # noqa: ANN401 - fields of a report
) -> str:
    queues = [
        {"name": "gpu", "is_default": True, "time_limit_seconds": 86400},
        {"name": "old", "is_open": False},
    ]
    cluster = {"kind": kind, "queues": queues, **report}
    appliance = add_appliance(session, cast.acme, connector, cluster=cluster, executors=[kind])
    return appliance.id


def errors_of(
    session: Session,
    cast: Cast,
    **fields: Any,  # noqa: ANN401 - fields of a job
) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as raised:
        submit(session, cast.bob, **{"command": ["true"], **fields})
    return raised.value.errors


@pytest.fixture
def slurm(session: Session, cast: Cast) -> str:
    return add_cluster(session, cast, "slurm-a")


def test_a_job_has_the_options_and_no_image(session: Session, cast: Cast, slurm: str) -> None:
    options = {"slurm.partition": "gpu,cpu", "slurm.account": "vision", "slurm.nice": "100"}
    job = submit(session, cast.bob, image="", command=["./train.sh"], cluster_options=options)
    assert (job.image, job.cluster_options) == ("", options)
    assert submit(session, cast.bob, image="", command=["true"], appliance_id=slurm).image == ""
    assert submit(session, cast.bob, image="", command=["true"], appliance_id="slurm-a").image == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"slurm.partion": "gpu"},
            "There is no option 'slurm.partion'. Did you mean 'slurm.partition'?",
        ),
        ({"": "gpu"}, "There is no option ''. Use one of: slurm.partition, "),
        ({"slurm.partition": " "}, "slurm.partition is empty; enter a value, or remove it."),
        ({"slurm.qos": "x" * 501}, "slurm.qos has 501 characters; use at most 500."),
        ({"slurm.qos": "a\nb"}, "slurm.qos has control characters or line breaks; remove them."),
        ({"slurm.qos": "a\0b"}, "slurm.qos has control characters or line breaks; remove them."),
        ({"slurm.qos": "--wrap=id"}, "slurm.qos is '--wrap=id'; it can't begin with '-'."),
        ({"slurm.nice": "ten"}, "slurm.nice is 'ten'; enter a whole number, such as 100."),
        ({"ray.runtime_env": "{"}, "ray.runtime_env is not JSON: "),
        ({"ray.runtime_env": "[" * 5000}, "ray.runtime_env is n"),
        ({"ray.runtime_env": "[]"}, "ray.runtime_env is not a JSON object; enter one, such as {}."),
        (
            {"ray.runtime_env": '"' + "x" * 8000 + '"'},
            "ray.runtime_env has 8002 characters; use at most 8000.",
        ),
        (
            {"ray.resources": '{"TPU": true}'},
            "ray.resources: 'TPU' is not a number above 0.",
        ),
        ({"ray.resources": '{"GPU": 1}'}, "ray.resources has GPU; use the fields of the job for"),
        (
            {"kubernetes.node_selector": "pool=a,zone"},
            "kubernetes.node_selector: 'zone' is not KEY=VALUE; enter such as pool=a,zone=b.",
        ),
        (
            {"slurm.partition": "gpu", "kubernetes.queue": "main"},
            "The options are for slurm and kubernetes; set those of one kind of cluster.",
        ),
        (
            {f"x{number}": "1" for number in range(21)},
            "cluster_options has 21 entries; use at most 20.",
        ),
    ],
)
def test_wrong_options_are_refused(
    session: Session, cast: Cast, slurm: str, options: dict[str, str], text: str
) -> None:
    del slurm
    errors = errors_of(session, cast, cluster_options=options)["cluster_options"]
    assert any(error.startswith(text) for error in errors), errors


def test_json_of_several_lines_is_an_option(session: Session, cast: Cast) -> None:
    add_cluster(session, cast, "ray-1", kind="ray")
    options = {"ray.runtime_env": '{\n\t"pip": ["torch"]\r\n}', "ray.resources": '{"spot": 0.5}'}
    job = submit(session, cast.bob, image="", command=["true"], cluster_options=options)
    assert job.cluster_options == options


@pytest.mark.parametrize(
    "refused",
    [
        ("kind", JobKind.SERVICE, "Slurm runs jobs that end, not services."),
        ("nodes", 2, "Slurm runs each job on one node; the members of a gang need appliances of"),
        ("gpu_slice", "1g.10gb", "Slurm runs jobs on whole GPUs only; request gpus in place of a"),
        ("gpu_memory_bytes", 2**30, "Slurm runs jobs on whole GPUs only; request gpus in place"),
        ("ports", [Port(container_port=80)], "Slurm publishes no ports."),
        ("datasets", [DatasetMount(dataset="d", target="/d")], "Slurm fetches no datasets, which"),
        ("outputs", ["/results"], "Slurm keeps no results, which only appliances with the exec"),
        ("uses_rdma", True, "Slurm passes no RDMA devices, which only appliances with"),
        ("mounts", [Mount(source="/d", target="/e")], "Without an image, /d can't be at /e."),
        ("shared_memory_bytes", 2**20, "Slurm leaves jobs the /dev/shm of their node; remove"),
        ("network", "host", "Slurm gives no job the host's network, which only appliances"),
    ],
)
@pytest.mark.parametrize("options", [PARTITION, {}])
def test_what_clusters_cannot_do_is_refused(
    session: Session, cast: Cast, options: dict[str, str], refused: tuple[str, object, str]
) -> None:
    field, value, text = refused
    add_cluster(session, cast, "slurm-a")
    fields = {field: value, "image": "", "command": ["x"], "cluster_options": options}
    errors = errors_of(session, cast, **fields)
    assert any(error.startswith(text) for error in errors[field]), errors


def test_options_need_a_cluster_of_their_kind(session: Session, cast: Cast) -> None:
    errors = errors_of(session, cast, cluster_options=PARTITION)
    ask = "Remove the options, or ask an admin to connect a Slurm cluster."
    assert errors == {"cluster_options": [f"No Slurm cluster is connected. {ask}"]}
    add_cluster(session, cast, "ray-1", kind="ray", name="Lab")
    errors = errors_of(session, cast, cluster_options=PARTITION)
    only = "No Slurm cluster is connected, only ray-1 (Ray, Lab)."
    assert errors == {"cluster_options": [f"{only} {ask}"]}


def test_clusters_of_other_tenants_do_not_count(session: Session, cast: Cast, slurm: str) -> None:
    del slurm
    with pytest.raises(InvalidInputError, match=r"^The job can't be submitted\. No Slurm cluster"):
        submit(session, cast.charlie, command=["true"], cluster_options=PARTITION)
    assert tenant_clusters(session, cast.globex.id) == []


def test_a_cluster_without_containers_takes_no_images(
    session: Session, cast: Cast, slurm: str
) -> None:
    del slurm
    errors = errors_of(session, cast, cluster_options=PARTITION)
    assert errors == {"image": ["slurm-a runs no images; leave the image empty."]}
    add_cluster(session, cast, "slurm-b")
    errors = errors_of(session, cast, cluster_options=PARTITION)
    both = "slurm-a (Slurm) and slurm-b (Slurm)"
    assert errors == {"image": [f"{both} run no images; leave the image empty."]}
    add_cluster(session, cast, "slurm-c", runs_images=True)
    job = submit(session, cast.bob, command=["true"], cluster_options=PARTITION)
    assert job.cluster_options == PARTITION


def test_an_empty_image_needs_a_cluster_that_takes_it(session: Session, cast: Cast) -> None:
    empty = {"image": ["The image is empty; name one, such as 'python:3.13'."]}
    assert errors_of(session, cast, image="", command=["true"]) == empty
    add_cluster(session, cast, "k8s", kind="kubernetes", needs_image=True, runs_images=True)
    needs = {"image": ["k8s needs an image; name one, such as 'python:3.13'."]}
    assert errors_of(session, cast, image="", command=["true"]) == needs
    add_cluster(session, cast, "slurm-a")
    assert submit(session, cast.bob, image="", command=["true"]).image == ""
    errors = errors_of(session, cast, image="", command=[])
    assert errors == {"command": ["Slurm requires a command; add it to the job."]}


def test_a_chosen_appliance_that_is_no_cluster_is_refused(
    session: Session, cast: Cast, slurm: str
) -> None:
    del slurm
    add_appliance(session, cast.acme, "dgx-01")
    fields: dict[str, Any] = {"image": "", "command": ["true"], "appliance_id": "dgx-01"}
    errors = errors_of(session, cast, **fields, cluster_options=PARTITION)
    assert errors == {"appliance_id": ["dgx-01 is no Slurm cluster; choose slurm-a (Slurm)."]}
    errors = errors_of(session, cast, **fields)
    assert errors == {"appliance_id": ["dgx-01 is no cluster; choose slurm-a (Slurm)."]}


def test_schedules_and_templates_are_checked_as_well(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.bob)
    job = JobRequest(name="nightly", command=["true"], cluster_options=PARTITION)
    schedule = ScheduleRequest(name="nightly", schedule="@daily", job=job)
    template = TemplateRequest(name="nightly", job=job)
    with pytest.raises(InvalidInputError, match="No Slurm cluster is connected"):
        create_schedule(session, scope, schedule, box=BOX, now=NOON)
    with pytest.raises(InvalidInputError, match="No Slurm cluster is connected"):
        save_template(session, scope, template, now=NOON)
    add_cluster(session, cast, "slurm-a")
    made = create_schedule(session, scope, schedule, box=BOX, now=NOON)
    assert (made.request["image"], made.request["cluster_options"]) == ("", PARTITION)
    saved = save_template(session, scope, template, now=NOON)
    assert (saved.request["image"], saved.request["cluster_options"]) == ("", PARTITION)


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({"cluster_options": PARTITION}, []),
        ({"image": "acme/train:1"}, []),
        (
            {"image": "acme/train:1", "cluster_options": PARTITION},
            ["slurm-a runs no images; leave the image empty."],
        ),
        (
            {"cluster_options": {"slurm.partition": "gpux"}},
            ["slurm-a lists no partition gpux. It has gpu, old."],
        ),
        (
            {"cluster_options": {"slurm.partition": "old"}},
            ["The partition old of slurm-a takes no jobs now."],
        ),
        (
            {"time_limit_seconds": 172800},
            ["The partition gpu of slurm-a allows 1d at most; the time limit of the job is 2d."],
        ),
    ],
)
def test_what_a_cluster_refuses_is_shown_before(
    session: Session, cast: Cast, slurm: str, fields: dict[str, Any], problems: list[str]
) -> None:
    del slurm
    clusters = tenant_clusters(session, cast.acme.id)
    assert cluster_problems(clusters, JobRequest(name="", **fields)) == problems


def test_a_cluster_that_takes_no_jobs_says_why(session: Session, cast: Cast) -> None:
    add_cluster(session, cast, "slurm-a", problem="slurm_load_jobs error: Unable to contact")
    clusters = tenant_clusters(session, cast.acme.id)
    assert cluster_problems(clusters, JobRequest(name=""), appliance="slurm-a") == [
        "slurm-a takes no jobs now: slurm_load_jobs error: Unable to contact."
    ]


def test_a_mount_without_a_claim_is_refused_when_the_connector_lists_its_roots(
    session: Session, cast: Cast
) -> None:
    options = {"kubernetes.priority_class": "low"}
    mounts = [Mount(source="/data/a", target="/a"), Mount(source="/scratch/b", target="/b")]
    fields: dict[str, Any] = {"mounts": mounts, "cluster_options": options}
    add_cluster(session, cast, "k8s", kind="kubernetes", runs_images=True, data_roots=["/data"])
    text = "k8s can't mount /scratch/b. It has volumes for /data."
    assert text in errors_of(session, cast, **fields)["mounts"]
    # By its name, too, where a job with an image could run elsewhere.
    fields = {"mounts": mounts, "appliance_id": "k8s"}
    assert text in errors_of(session, cast, **fields)["mounts"]
    request = JobRequest(name="", image="hello:1", mounts=mounts)
    clusters = tenant_clusters(session, cast.acme.id)
    assert text in cluster_problems(clusters, request, appliance="k8s")


@pytest.mark.parametrize("roots", [{}, {"data_roots": None}, {"data_roots": ["/"]}])
def test_mounts_are_left_to_connectors_that_list_no_roots_or_have_them(
    session: Session, cast: Cast, roots: dict[str, object]
) -> None:
    add_cluster(session, cast, "k8s", kind="kubernetes", runs_images=True, **roots)
    mounts = [Mount(source="/data/a", target="/a")]
    request = JobRequest(name="", image="hello:1", mounts=mounts)
    problems = cluster_problems(tenant_clusters(session, cast.acme.id), request, appliance="k8s")
    assert not any("mount" in problem for problem in problems)


def test_secrets_are_refused_where_all_users_of_the_cluster_would_see_them(
    session: Session, cast: Cast
) -> None:
    fields: dict[str, Any] = {"image": "", "secrets": {"KEY": "s3cr3t"}}
    add_cluster(session, cast, "ray-a", kind="ray", refuses_secrets=True)
    errors = errors_of(session, cast, **fields, cluster_options={"ray.resources": '{"a": 1}'})
    assert "all users of its cluster" in errors["secrets"][0]
    # Another cluster takes them.
    add_cluster(session, cast, "slurm-a")
    assert submit(session, cast.bob, command=["true"], **fields).secret_names == ["KEY"]
