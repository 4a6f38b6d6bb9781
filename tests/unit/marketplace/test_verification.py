"""Verification of appliances: what is checked, when challenges run, and what keeps one out."""

from dataclasses import replace
from datetime import timedelta
from itertools import product

import msgspec
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from collector.inventory import simulated_devices, simulated_inventory
from core.errors import ConflictError, ForbiddenError, NotFoundError
from jobqueue.executors.simulated.challenge import SimulatedChallenges
from jobqueue.models import Attempt
from jobqueue.states import AttemptState
from marketplace.cases import Dimension
from marketplace.offers.coverage import refresh_provider
from marketplace.terms import ComplianceFact
from marketplace.verification.answer_checks import answer_findings
from marketplace.verification.compliance import notify_expiring
from marketplace.verification.evidence import check_cases
from marketplace.verification.findings import Severity, failure, failures, warning
from marketplace.verification.inventory_checks import inventory_findings
from marketplace.verification.known import is_weak, known_models, model_of, weaknesses
from marketplace.verification.orders import Policy, next_challenge_at, order_for
from marketplace.verification.sample_checks import ENERGY, Readings, backward
from marketplace.verification.service import MAX_UNANSWERED
from marketplace.verification.states import VERIFICATION_TRANSITIONS, Facts, next_state
from marketplace.verification.views import (
    get_verification,
    list_challenges,
    list_verifications,
    verify_now,
)
from plugins.simulation.config import GIB, SimulationConfig
from protocol.challenges import ChallengeResult
from tenants.models import (
    Appliance,
    ApplianceState,
    Challenge,
    ChallengeOutcome,
    OfferedAppliance,
    Verification,
    VerificationState,
)
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit
from tests.unit.marketplace.builders import admit_sides, publish, terms
from tests.unit.marketplace.verifying import INTERVAL_SECONDS, Verifying

H100 = SimulationConfig(seed="h100")
POLICY = Policy(image="python:3.13-slim", interval=timedelta(days=7), accepts_simulated=True)


def codes(
    config: SimulationConfig, *, accepts_simulated: bool = True, **changes: object
) -> set[str]:
    """Return what an inventory fails for."""
    inventory = msgspec.structs.replace(
        simulated_inventory(config, executors=["simulated"]), can_challenge=True, **changes
    )
    findings = inventory_findings(inventory, accepts_simulated=accepts_simulated)
    return {finding.code for finding in failures(findings)}


class TestKnowledge:
    """What the data files say."""

    def test_models_are_told_apart_by_their_names(self) -> None:
        titles = {
            name: model.title if (model := model_of(name)) else None
            for name in (
                "NVIDIA A10", "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "NVIDIA L40S", "NVIDIA L40",
                "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA A10G",
                "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X OAM",
            )
        }  # fmt: skip
        assert list(titles.values()) == [
            "A10", "A100 SXM4 40 GB", "L4", "L40S", "L40", "H100 SXM5 80 GB", "H200 SXM",
            "H200 NVL", None, "GeForce RTX 4090", None,
        ]  # fmt: skip

    def test_every_model_makes_sense(self) -> None:
        devices = [device for model in known_models() for device in model.pci_devices]
        assert len(devices) == len(set(devices))
        for model in known_models():
            # A multiprocessor has 64 or 128 CUDA cores.
            assert model.cores / model.processors in {64, 128}, model.title
            assert model.clock_megahertz[0] < model.clock_megahertz[1], model.title
            assert model.watts[0] <= model.watts[1], model.title

    def test_every_weakness_has_a_source(self) -> None:
        assert all(weakness.source.startswith("https://") for weakness in weaknesses())
        kernels = [weakness for weakness in weaknesses() if weakness.component == "kernel"]
        assert not any(weakness.is_blocking for weakness in kernels)

    @pytest.mark.parametrize(
        ("version", "fixed", "weak"),
        [
            ("1.17.4", ("1.17.8",), True),
            ("1.17.8", ("1.17.8",), False),
            ("1.18.0-rc.1", ("1.17.8",), False),
            ("1.1.15", ("1.2.8", "1.3.3"), True),
            ("1.2.8", ("1.2.8", "1.3.3"), False),
            ("1.3.0", ("1.2.8", "1.3.3"), True),
            ("550.163.01", ("535.230.02", "550.144.03"), False),
            ("550.127.05", ("535.230.02", "550.144.03"), True),
            ("545.23.08", ("535.230.02", "550.144.03"), True),
            ("580.65.06", ("535.230.02", "550.144.03"), False),
            ("24.0.9", ("23.0.15", "25.0.6"), True),
            ("", ("1.17.8",), False),
            ("unknown", ("1.17.8",), False),
        ],
    )
    def test_a_version_is_compared_with_the_fix_of_its_branch(
        self, version: str, fixed: tuple[str, ...], *, weak: bool
    ) -> None:
        assert is_weak(version, fixed) is weak


class TestInventories:
    """What an inventory alone gives away."""

    @pytest.mark.parametrize(
        "config",
        [
            H100,
            SimulationConfig(seed="a", gpu_model="NVIDIA H200", gpu_memory_bytes=141 * GIB),
            SimulationConfig(
                seed="b", gpu_model="NVIDIA A100-SXM4-80GB", power_limit_watts=400, nvlinks=12,
                sm_clock_hertz=1_410_000_000,
            ),
        ],
    )  # fmt: skip
    def test_real_ones_are_right(self, config: SimulationConfig) -> None:
        assert codes(config) == set()

    def test_another_card_under_the_name_of_a_better_one_is_seen(self) -> None:
        lesser = replace(H100, gpu_memory_bytes=40 * GIB)
        assert codes(lesser) == {"memory_differs"}
        (gpu,) = simulated_inventory(replace(H100, gpu_count=1)).gpus
        fake = msgspec.structs.replace(
            gpu, pci_device_id="10de:20b0", core_count=6912, compute_capability="8.0",
            sm_clock_max_hertz=1_410_000_000,
        )  # fmt: skip
        assert codes(H100, gpus=[fake]) == {
            "pci_device_differs", "cores_differ", "compute_differs", "clock_differs",
        }  # fmt: skip

    def test_a_gpu_that_is_listed_twice_is_seen(self) -> None:
        (gpu,) = simulated_inventory(replace(H100, gpu_count=1)).gpus
        assert codes(H100, gpus=[gpu, msgspec.structs.replace(gpu, index=1)]) == {
            "gpu_listed_twice"
        }

    def test_simulated_hardware_passes_only_where_the_operator_wants_it(self) -> None:
        assert codes(H100, accepts_simulated=False) == {"simulated"}

    def test_ways_out_of_containers_fail_and_others_warn(self) -> None:
        components = {"nvidia-container-toolkit": "1.17.5", "runc": "1.2.5", "docker": "26.0.0"}
        inventory = msgspec.structs.replace(simulated_inventory(H100), components=components)
        severities = {
            finding.code: finding.severity
            for finding in inventory_findings(inventory, accepts_simulated=True)
            if finding.code.startswith("weakness_")
        }
        assert severities["weakness_cve_2025_23266"] is Severity.FAILURE
        assert "weakness_cve_2025_23359" not in severities
        assert severities["weakness_cve_2025_31133"] is Severity.WARNING
        assert severities["weakness_cve_2024_41110"] is Severity.WARNING

    def test_unknown_models_are_noted(self) -> None:
        odd = replace(H100, gpu_model="Imagination X")
        inventory = simulated_inventory(odd)
        findings = inventory_findings(inventory, accepts_simulated=True)
        assert "unknown_model" in {finding.code for finding in findings}
        assert codes(odd) == set()


def test_a_state_moves_only_as_its_table_says() -> None:
    bad, odd = [failure("x", "x")], [warning("y", "y")]
    for current, findings, answered, can_challenge, is_open in product(
        VerificationState, ([], bad, odd), (None, [], bad, odd), (True, False), (True, False)
    ):
        facts = Facts(
            findings=findings, answered=answered, can_challenge=can_challenge, is_open=is_open
        )
        state = next_state(facts)
        assert state is current or state in VERIFICATION_TRANSITIONS[current]
        assert (state is VerificationState.PASSED) == (
            findings is not bad and answered is not None and answered is not bad
        )


class TestOrders:
    """When challenges run, and of what."""

    def test_times_can_not_be_predicted(self) -> None:
        times = [next_challenge_at(POLICY, now=NOON) - NOON for _ in range(500)]
        assert min(times) >= timedelta(days=1)
        assert max(times) <= timedelta(days=21)
        assert len(set(times)) > 300
        mean = sum(times, timedelta()) / len(times)
        assert timedelta(days=5.5) < mean < timedelta(days=8.5)

    def test_amd_and_cut_gpus_are_not_challenged(self) -> None:
        gpus = simulated_inventory(replace(H100, gpu_count=3)).gpus
        changed = [
            gpus[0],
            msgspec.structs.replace(gpus[1], is_mig_enabled=True),
            msgspec.structs.replace(gpus[2], uuid="AMD-1"),
        ]
        inventory = msgspec.structs.replace(simulated_inventory(H100), gpus=changed)
        order = order_for(inventory, POLICY, number=3)
        assert order.gpu_uuids == [gpus[0].uuid]
        assert (order.number, order.leaves) == (3, 2**18)
        assert order_for(inventory, POLICY, number=3).seed != order.seed

    def test_half_of_the_memory_is_left_to_a_host_that_shares_it(self) -> None:
        spark = replace(H100, gpu_model="NVIDIA GB10", gpu_count=1)
        (gpu,) = simulated_inventory(spark).gpus
        gpus = [msgspec.structs.replace(gpu, has_unified_memory=True)]
        inventory = msgspec.structs.replace(simulated_inventory(spark), gpus=gpus)
        order = order_for(inventory, POLICY, number=3)
        assert order.memory_percent == 50
        small = msgspec.structs.replace(
            order, leaves=8, steps=2, rounds=1, cpu_words=512, cpu_leaves=8, busy_seconds=0.0
        )
        (device,) = simulated_devices(spark)
        device = msgspec.structs.replace(device, memory_bytes=gpu.memory_bytes // 2)
        result = SimulatedChallenges(FrozenClock(), lambda: [device]).run(small)
        later = NOON + timedelta(seconds=60)
        findings = answer_findings(small, result, inventory, ordered_at=NOON, answered_at=later)
        assert not failures(findings)

    def test_nothing_is_ordered_beside_jobs_or_of_absent_appliances(
        self, portal: Verifying, cast: Cast
    ) -> None:
        agent, away = portal.agent(cast.acme, "dgx-01"), portal.agent(cast.acme, "away")
        with portal.sessions.begin() as session:
            session.get_one(Appliance, away.appliance_id).state = ApplianceState.LOST
            job = submit(session, cast.bob, name="train", gpus=1)
            dispatch(session, now=NOON)
            attempt = session.scalars(select(Attempt).where(Attempt.job_id == job.id)).one()
            assert attempt.appliance_id == agent.appliance_id
        portal.tasks.verify_appliances()
        assert portal.order(agent) is None
        assert portal.row(agent).state is VerificationState.PENDING
        with portal.sessions.begin() as session:
            ended = update(Attempt).where(Attempt.id == attempt.id)
            session.execute(ended.values(state=AttemptState.SUCCEEDED))
        portal.tasks.verify_appliances()
        assert portal.order(agent) is not None
        assert portal.order(away) is None


def test_a_counter_that_starts_anew_does_not_run_backward() -> None:
    def energy(*joules: float) -> Readings:
        times = [number * 10 * 10**9 for number in range(len(joules))]
        return Readings(field=ENERGY, gpu="GPU-1", times_ns=times, values=joules)

    # The second reboot of the day, two minutes after the first.
    assert not list(backward([energy(8_400, 9_100, 1_400, 2_100)]))
    assert list(backward([energy(9.4e6, 9.5e6, 9.3e6)]))


class TestAnswers:
    """What becomes of an ordered challenge."""

    def test_a_job_that_came_is_no_failure(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        portal.tasks.verify_appliances()
        order = portal.order(agent)
        assert order is not None
        portal.report(agent, ChallengeResult(number=order.number, is_interrupted=True))
        assert portal.order(agent) is None
        portal.clock.advance(60)
        portal.tasks.verify_appliances()
        row = portal.row(agent)
        assert (row.state, row.unanswered) == (VerificationState.PENDING, 0)
        portal.clock.advance(600)
        portal.tasks.verify_appliances()
        following = portal.order(agent)
        assert following is not None
        assert following.number == order.number + 1
        assert following.seed != order.seed

    def test_late_and_repeated_results_change_nothing(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        portal.tasks.verify_appliances()
        order = portal.order(agent)
        assert order is not None
        result = agent.answer(order)
        portal.report(agent, ChallengeResult(number=order.number + 1))
        assert portal.order(agent) == order
        portal.report(agent, result)
        portal.report(agent, ChallengeResult(number=order.number, problem="later"))
        with portal.sessions() as session:
            stored = session.scalars(select(Challenge)).one().result
        assert msgspec.convert(stored, ChallengeResult) == result

    def test_an_answer_that_waited_for_the_portal_is_no_failure(
        self, portal: Verifying, cast: Cast
    ) -> None:
        agent = portal.agent(cast.acme, "dgx-03")
        portal.send_history(agent)
        portal.tasks.verify_appliances()
        order = portal.order(agent)
        assert order is not None
        for number in range(30):
            portal.clock.advance(INTERVAL_SECONDS)
            portal.write(agent, agent.samples(portal.clock.now, is_busy=2 <= number < 4))
        portal.report(agent, agent.answer(order))
        portal.clock.advance(60)
        portal.tasks.verify_appliances()
        assert portal.signs(agent) == set()

    def test_absurd_figures_of_an_agent_keep_nobody_else_from_passing(
        self, portal: Verifying, cast: Cast
    ) -> None:
        absurd = portal.agent(cast.globex, "dgx-66")
        with portal.sessions.begin() as session:
            appliance = session.get_one(Appliance, absurd.appliance_id)
            gpus = [{**gpu, "memory_bytes": 10**400} for gpu in appliance.inventory["gpus"]]
            appliance.inventory = {**appliance.inventory, "gpus": gpus}
        agent = portal.agent(cast.acme, "dgx-03")
        portal.send_history(agent)
        portal.challenge(agent)
        assert portal.row(agent).state is VerificationState.PASSED

    def test_silence_fails_after_a_while_and_an_answer_mends_it(
        self, portal: Verifying, cast: Cast
    ) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        for _ in range(MAX_UNANSWERED):
            assert portal.row(agent).state is not VerificationState.FAILED
            portal.due(agent)
            portal.tasks.verify_appliances()
            assert portal.order(agent) is not None
            portal.clock.advance(16 * 60)
            portal.tasks.verify_appliances()
        assert portal.signs(agent) == {"no_answer"}
        assert "did not answer in time" in portal.row(agent).reason
        portal.due(agent)
        portal.challenge(agent)
        assert portal.row(agent).state is VerificationState.PASSED

    def test_an_answer_of_other_gpus_does_not_count(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        portal.challenge(agent)
        other = msgspec.to_builtins(
            msgspec.structs.replace(
                simulated_inventory(SimulationConfig(seed="other"), executors=["simulated"]),
                can_challenge=True,
            )
        )
        with portal.sessions.begin() as session:
            session.get_one(Appliance, agent.appliance_id).inventory = other
        portal.clock.advance(3601)
        portal.tasks.verify_appliances()
        assert portal.row(agent).state is VerificationState.PENDING
        assert portal.order(agent) is not None

    def test_an_agent_that_is_too_old_stays_unverified(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        with portal.sessions.begin() as session:
            appliance = session.get_one(Appliance, agent.appliance_id)
            appliance.inventory = {**appliance.inventory, "can_challenge": False}
        portal.tasks.verify_appliances()
        row = portal.row(agent)
        assert row.state is VerificationState.UNVERIFIED
        assert "update" in row.reason
        assert portal.order(agent) is None

    def test_cases_of_a_provider_are_its_challenges(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        portal.challenge(agent)
        agent.is_idle = True
        portal.clock.advance(86_400)
        portal.due(agent)
        portal.challenge(agent)
        with portal.sessions() as session:
            cases = check_cases(session, cast.acme.id, since=NOON)
            assert [(case.good, case.kind) for case in cases] == [
                (1.0, "challenge_passed"), (0.0, "idle_while_challenged"),
            ]  # fmt: skip
            assert {case.dimension for case in cases} == {Dimension.CHECKS}
            assert check_cases(session, cast.globex.id, since=NOON) == []


class TestOffers:
    """What is left out of offers."""

    @pytest.fixture(autouse=True)
    def admitted(self, session: Session, cast: Cast) -> None:
        admit_sides(session, cast)

    @staticmethod
    def offered(session: Session, cast: Cast, *, requires: bool = True) -> int:
        refresh_provider(session, cast.acme.id, now=NOON, requires_verification=requires)
        return len(session.scalars(select(OfferedAppliance)).all())

    def test_only_what_has_passed_is_on_offer(self, session: Session, cast: Cast) -> None:
        appliance = add_appliance(session, cast.acme, "dgx-01")
        publish(session, cast, "dgx-01")
        row = session.get_one(Verification, appliance.id)
        assert row.state is VerificationState.UNVERIFIED
        assert self.offered(session, cast) == 0
        assert self.offered(session, cast, requires=False) == 1
        row.state = VerificationState.PASSED
        assert self.offered(session, cast) == 1
        row.state, row.reason = VerificationState.FAILED, "It lied."
        assert self.offered(session, cast, requires=False) == 0

    def test_there_is_time_after_an_upgrade(self, session: Session, cast: Cast) -> None:
        appliance = add_appliance(session, cast.acme, "dgx-01")
        publish(session, cast, "dgx-01")
        row = session.get_one(Verification, appliance.id)
        row.grace_until = NOON + timedelta(days=1)
        assert self.offered(session, cast) == 1
        row.state = VerificationState.FAILED
        assert self.offered(session, cast) == 0
        row.state, row.grace_until = VerificationState.PENDING, NOON
        assert self.offered(session, cast) == 0

    def test_an_appliance_that_waits_is_in_one_offer(self, session: Session, cast: Cast) -> None:
        add_appliance(session, cast.acme, "dgx-01")
        publish(session, cast, "dgx-01")
        assert self.offered(session, cast) == 0
        with pytest.raises(ConflictError, match="Already in another offer"):
            publish(session, cast, "dgx-01", name="second")

    def test_its_provider_is_warned_once_before_a_fact_expires(
        self, session: Session, cast: Cast
    ) -> None:
        add_appliance(session, cast.acme, "dgx-01")
        until = (NOON + timedelta(days=20)).date().isoformat()
        facts = (ComplianceFact(name="iso27001", valid_until=until), ComplianceFact(name="gdpr"))
        publish(session, cast, "dgx-01", terms=terms(facts=facts))
        assert notify_expiring(session, "https://portal.example", now=NOON) == 1
        assert notify_expiring(session, "https://portal.example", now=NOON) == 0


class TestViews:
    """Who sees what, and who may verify."""

    def test_others_see_nothing(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        with portal.sessions.begin() as session:
            charlie = scope_of(cast.charlie)
            assert list_verifications(session, charlie).total == 0
            for call in (get_verification, list_challenges):
                with pytest.raises(NotFoundError):
                    call(session, charlie, agent.appliance_id)
            with pytest.raises(NotFoundError):
                verify_now(session, charlie, agent.appliance_id, now=NOON)
            with pytest.raises(ForbiddenError):
                verify_now(session, scope_of(cast.bob), agent.appliance_id, now=NOON)
            assert list_verifications(session, scope_of(cast.olivia)).total == 1

    def test_owner_and_operator_verify_now(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        portal.challenge(agent)
        for user in (cast.alice, cast.olivia):
            portal.clock.advance(60)
            with portal.sessions.begin() as session:
                verify_now(session, scope_of(user), agent.appliance_id, now=portal.clock.now)
            portal.challenge(agent)
        with portal.sessions() as session:
            page = list_challenges(session, scope_of(cast.alice), agent.appliance_id)
            assert [row.number for row in page.items] == [3, 2, 1]
            assert {row.outcome for row in page.items} == {ChallengeOutcome.PASSED}

    def test_one_challenge_runs_at_a_time(self, portal: Verifying, cast: Cast) -> None:
        agent = portal.agent(cast.acme, "dgx-01")
        portal.tasks.verify_appliances()
        with portal.sessions.begin() as session, pytest.raises(ConflictError):
            verify_now(session, scope_of(cast.alice), agent.appliance_id, now=NOON)
