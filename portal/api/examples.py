"""Example request bodies for the API description, by name of the schema."""

from typing import Any

_ID = "01998c5e-3c2a-7b1e-9f6d-2a4b8c0d1e2f"
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_GIB = 1024**3
_SAVED_REPORT = {
    "name": "Monthly GPU time",
    "kind": "gpu-time",
    "by": "user",
    "period": "last-month",
    "time_zone": "Europe/Oslo",
    "schedule": "0 7 1 * *",
    "recipients": ["dana@example.com"],
}
_DASHBOARD = {
    "name": "Training",
    "is_shared": True,
    "panels": [
        {
            "title": "GPU power",
            "chart": "band",
            "measurement": "gpu",
            "fields": ["power_watts"],
            "group_by": ["appliance"],
        }
    ],
}

_TERMS = {
    "currency": "EUR",
    "price": "2.45",
    "hourly_prices": [
        {"days": [0, 1, 2, 3, 4], "from_hour": 0, "until_hour": 6, "price": "1.9"},
        {"days": [5, 6], "from_hour": 0, "until_hour": 24, "price": "1.9"},
    ],
    "time_zone": "Europe/Oslo",
    "allows_slices": True,
    "min_seconds": 60,
    "max_seconds": "72h",
    "max_gpus": 64,
    "region": "eu-north",
    "term_days": 365,
    "notice_days": 30,
    "service_level": {
        "availability_percent": 99.5,
        "start_within_seconds": 300,
        "credits": [{"below_percent": 99.5, "credit_percent": "10"}],
    },
    "facts": [{"name": "iso27001", "valid_until": "2027-06-30"}],
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "TicketFileSchema": {"name": "nccl.log", "content": "TkNDTCBXQVJOIC4uLgo="},
    "TicketRequestSchema": {
        "title": "Job stops after a minute",
        "text": "It ran yesterday. The log is attached.",
        "subject_kind": "job",
        "subject_id": _ID,
        "files": [{"name": "nccl.log", "content": "TkNDTCBXQVJOIC4uLgo="}],
    },
    "TicketMessageSchema": {"text": "We replaced the GPU. Please try again."},
    "TicketRatingSchema": {"rating": 5, "comment": "Fast and clear."},
    "AssigneeSchema": {"user": "dana@example.com"},
    "DismissalRequestSchema": {"key": "short:NVIDIA H100 80GB HBM3"},
    "OfferRequestSchema": {
        "name": "H100s in Oslo",
        "description": "Eight to a host, with NVLink",
        "labels": {"pool": "rent"},
        "calendar": [{"days": [5, 6]}, {"from_hour": 18}],
        "terms": _TERMS,
    },
    "NewRatingSchema": {"stars": 4, "comment": "Fast, but two late starts.", "month": ""},
    "MarketAccountChangeSchema": {"public_name": "Acme Compute", "country": "NO"},
    "AdmissionRequestSchema": {"side": "provider"},
    "AdmissionSchema": {"side": "provider", "state": "active"},
    "ChargesSchema": {"tax_percent": "25", "fee_percent": None, "is_prepaid": True},
    "AppealRequestSchema": {"text": "Our carrier was down; its report is at https://example.com"},
    "AppealAnswerSchema": {"answer": "The carrier confirms it"},
    "StandingReasonSchema": {"reason": "It resells stolen accounts"},
    "StandingPolicyRequestSchema": {
        "policy": {
            "placement_weight": 2.0,
            "fee_tiers": [{"score": 0.9, "points": "-2"}],
            "suspension_breaches": 5,
        },
        "note": "Reputation counts more",
    },
    "StandingPolicyPreviewRequestSchema": {
        "policy": {
            "placement_weight": 2.0,
            "fee_tiers": [{"score": 0.9, "points": "-2"}],
            "suspension_breaches": 5,
        },
    },
    "TakeSchema": {"offer_id": _ID, "terms_hash": _DIGEST},
    "HashSchema": {"terms_hash": _DIGEST},
    "ContractProposalSchema": {
        "offer_id": _ID,
        "terms": {**_TERMS, "price": "2.2"},
        "note": "For 64 GPUs over a year",
    },
    "ProposalSchema": {"terms": {**_TERMS, "price": "2.3"}},
    "TerminationSchema": {"reason": "The provider has closed its site"},
    "ApplicationSchema": {
        "jobs": [
            {"name": "train", "image": "acme/train:1", "gpus": 2, "memory_bytes": "16GiB"},
            {"name": "watch", "image": "tensorflow/tensorflow", "kind": "service"},
        ],
        "is_dry_run": True,
    },
    "PriceListRequestSchema": {
        "prices": [{"gpu_model": "H100", "price": "2.45"}, {"price": "0.40"}],
        "valid_from": "2026-04-01T00:00:00Z",
        "note": "New price of power",
    },
    "CorrectionRequestSchema": {
        "amount": "-12.50",
        "note": "Slow network on March 3",
        "reference": "T-1042",
        "contract_id": _ID,
    },
    "CreditRequestSchema": {
        "tenant_id": _ID,
        "amount": "100.00",
        "reference": "Bank transfer 4711",
    },
    "ProjectRequestSchema": {
        "name": "vision",
        "description": "Models for cameras",
        "shares": 3,
        "budget_label": "CC-4711",
    },
    "SimulationRequestSchema": {
        "since": "2026-10-01T00:00:00Z",
        "policies": ["best_fit", "least_fragmentation"],
        "added": ["2xdgx-01"],
        "shares": ["vision=3"],
        "quotas": ["vision:gpus:guaranteed=4,maximum=8"],
    },
    "ProjectChangeSchema": {"shares": 2, "budget_label": "CC-4712"},
    "ProjectMemberRequestSchema": {"user": "dana@example.com", "shares": 1, "is_default": True},
    "QuotaListSchema": {
        "quotas": [
            {"resource": "gpus", "gpu_model": "H100", "guaranteed": 8, "borrowing_limit": 8},
            {"resource": "cpus", "maximum": 256},
        ]
    },
    "AccessPointRequestSchema": {
        "name": "Frankfurt",
        "url": "https://fra.portal.example.com",
        "kind": "relay",
        "region": "eu-central",
    },
    "AccessPointChangeSchema": {"weight": 0},
    "ForwardChangeSchema": {"is_enabled": False},
    "ForwardRequestSchema": {
        "name": "Loki",
        "kind": "loki",
        "url": "https://loki.example.com",
        "sources": ["job", "appliance"],
        "minimum_level": "info",
    },
    "DashboardFileSchema": {"dashboards": [_DASHBOARD], "is_dry_run": True},
    "DashboardRequestSchema": _DASHBOARD,
    "SavedViewRequestSchema": {"name": "Unhealthy", "address": "/dashboards/?state=unhealthy"},
    "ApplianceChangeSchema": {"site": "Oslo", "labels": {"rack": "b12"}},
    "AgentRolloutRequestSchema": {
        "sites": ["Oslo"],
        "stage_percents": [10, 50, 100],
        "soak_seconds": 900,
        "max_failures": 1,
    },
    "PrometheusGroupsSchema": {
        "groups": [
            {
                "name": "hosts",
                "rules": [{"alert": "Load", "expr": "node_load1 > 64", "for": "5m"}],
            }
        ]
    },
    "DrainRequestSchema": {"wait_seconds": 3600},
    "PrefetchRequestSchema": {
        "version": 0,
        "appliance": "",
        "labels": {"pool": "train"},
        "is_pinned": False,
        "schedule": "0 2 * * *",
        "time_zone": "Europe/Oslo",
    },
    "DataSettingsSchema": {
        "results_connection_id": _ID,
        "results_retention_days": 90,
        "allows_peers": True,
    },
    "CleanupPoliciesSchema": {"policies": [{"site": "", "image_days": 30, "disk_percent": 85}]},
    "BulkRequestSchema": {
        "appliance_ids": [_ID],
        "action": "label",
        "labels": {"rack": "b12", "tier": None},
    },
    "CodeSchema": {"code": "123456"},
    "ReenrollSchema": {"lifetime_hours": 24},
    "WriteTokenRequestSchema": {
        "name": "Prometheus in Oslo",
        "appliance_pattern": "gpu-*",
        "lifetime_days": 365,
    },
    "EnrollmentRequestSchema": {
        "name": "rack b12",
        "site": "Oslo",
        "labels": {"rack": "b12"},
        "uses": 4,
        "lifetime_hours": 24,
    },
    "InvitationRequestSchema": {"email": "dana@example.com", "role": "member"},
    "JobRequestSchema": {
        "name": "train",
        "image": "acme/train:1",
        "command": ["python", "train.py"],
        "env": {"EPOCHS": "10"},
        "kind": "batch",
        "gpus": 2,
        "memory_bytes": 16 * _GIB,
        "mounts": [{"source": "/data/images", "target": "/data"}],
        "time_limit_seconds": 7200,
        "max_retries": 2,
    },
    "JobUpdateSchema": {"image": "acme/api:2", "env": {"WORKERS": "4"}},
    "PasswordSchema": {
        "current": "correct horse battery",
        "new": "a longer one that nobody guesses",
    },
    "SettingsSchema": {"time_zone": "Europe/Oslo"},
    "PolicyChoiceSchema": {"allowed": ["restricted", "standard"], "default": "restricted"},
    "SavedReportRequestSchema": _SAVED_REPORT,
    "SavedReportFileSchema": {"reports": [_SAVED_REPORT], "is_dry_run": True},
    "PrioritySchema": {"priority": -5},
    "ProofSchema": {"proof": "correct horse battery"},
    "QueueSettingsSchema": {
        "placement_policy": "best_fit",
        "max_gpus_per_user": 16,
        "allows_preemption": True,
        "data_roots": [{"path": "/data/shared"}, {"path": "/scratch", "is_read_only": False}],
    },
    "SchedulePatchSchema": {"schedule": "30 3 * * *", "job": {"gpus": 4}},
    "ScaleSchema": {"instances": 3},
    "AutoscalingSchema": {
        "min_instances": 0,
        "max_instances": 4,
        "metric": "concurrent_requests",
        "target": 8,
    },
    "QuotaSchema": {"max_appliances": 100, "max_gpus": 800},
    "AlertLabelsSchema": {"labels": {"rule": "GPU too hot", "severity": "critical"}},
    "NotificationPolicySchema": {
        "route": {
            "receivers": ["On call"],
            "group_by": ["rule", "appliance"],
            "group_wait": "30s",
            "routes": [{"matchers": ["severity=critical"], "receivers": ["Pager"]}],
        },
        "inhibit_rules": [
            {
                "source_matchers": ["pack_key=appliance-down"],
                "target_matchers": ["pack_key!=appliance-down"],
                "equal": ["appliance_id"],
            }
        ],
    },
    "PartitionPolicyRequestSchema": {
        "name": "Notebooks",
        "mode": "mig",
        "gpu_model": "H100",
        "labels": {"pool": "notebooks"},
        "layout": ["3g.40gb", "1g.10gb", "1g.10gb"],
        "may_change_layout": True,
    },
    "AnnouncementSchema": {"sha256s": [_DIGEST]},
    "ConnectionRequestSchema": {
        "name": "minio",
        "url": "s3://acme-data",
        "endpoint_url": "https://minio.acme.example",
        "region": "us-east-1",
        "access_key_id": "vedette",
        "secret_access_key": "a secret",
    },
    "DatasetChangeSchema": {"name": "imagenet-2012", "description": "1.28 million images"},
    "DatasetRequestSchema": {
        "name": "imagenet-2012",
        "description": "1.28 million images",
        "source_url": "s3://acme-data/imagenet",
    },
    "VersionRequestSchema": {"appliance_id": _ID},
    "ReceiverChangeSchema": {"name": "On call, nights"},
    "ReceiverRequestSchema": {"name": "On call", "kind": "email", "target": "oncall@example.com"},
    "RemovalRequestSchema": {"tenant_id": _ID, "name": "Acme"},
    "BudgetRequestSchema": {
        "target": "project",
        "target_id": "vision",
        "amount": "1000.00",
        "action": "stop_new_jobs",
    },
    "ReservationRequestSchema": {
        "name": "Nightly training",
        "project_id": "vision",
        "appliance_ids": ["dgx-01", "dgx-02"],
        "schedule": "0 22 * * 1-5",
        "duration_seconds": "8h",
        "time_zone": "Europe/Oslo",
    },
    "RevocationSchema": {"reason": "The host was sold."},
    "RoleRequestSchema": {"role": "viewer"},
    "RuleFileSchema": {
        "rules": [
            {
                "name": "GPU too hot",
                "expression": "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85",
                "receivers": ["On call"],
            }
        ],
        "is_dry_run": True,
    },
    "RuleRequestSchema": {
        "name": "GPU too hot",
        "measurement": "gpu",
        "field": "temperature_celsius",
        "aggregate": "avg",
        "window_seconds": 300,
        "group_by": ["appliance", "gpu"],
        "warning_threshold": 85,
        "critical_threshold": 95,
    },
    "ScheduleRequestSchema": {
        "name": "nightly evaluation",
        "schedule": "0 2 * * *",
        "time_zone": "Europe/Oslo",
        "overlap": "skip",
        "missed": "run_once",
        "job": {"name": "eval", "image": "acme/eval:1", "gpus": 1, "time_limit_seconds": "2h"},
    },
    "SecretNamesSchema": {"names": ["HF_TOKEN"]},
    "ImportedSilenceSchema": {
        "matchers": [{"name": "alertname", "value": "GPU too hot", "isRegex": False}],
        "startsAt": "2026-12-31T11:00:00Z",
        "endsAt": "2026-12-31T12:00:00Z",
        "comment": "Fans are being replaced.",
    },
    "PlatformRuleFileSchema": {
        "rules": [
            {"name": "GPU too hot", "expression": "max(gpu.temperature_celsius) by gpu > 90"}
        ],
        "is_dry_run": True,
    },
    "PlatformRuleRequestSchema": {
        "name": "GPU too hot",
        "expression": "avg(gpu.temperature_celsius) over 5m by gpu > 90",
        "receivers": ["On call"],
    },
    "WindowRequestSchema": {
        "name": "Updates of rack b12",
        "matchers": ["label.rack=b12"],
        "schedule": "0 22 * * 0",
        "duration_seconds": 14400,
        "time_zone": "Europe/Oslo",
    },
    "SilenceRequestSchema": {
        "matchers": ["rule=GPU too hot", "appliance=~dgx-.*"],
        "ends_at": "2026-12-31T12:00:00Z",
        "comment": "Fans are being replaced.",
    },
    "TemplateRequestSchema": {
        "name": "fine-tuning",
        "description": "LoRA on one GPU.",
        "job": {"name": "fine-tune", "image": "acme/tune:3", "gpus": 1, "memory_bytes": "64GiB"},
    },
    "TenantRequestSchema": {"name": "Acme", "slug": "acme"},
    "TokenRequestSchema": {
        "name": "nightly build",
        "scopes": ["read", "jobs"],
        "lifetime_days": 90,
    },
    "UserRequestSchema": {
        "tenant_id": _ID,
        "email": "dana@example.com",
        "name": "Dana",
        "role": "admin",
        "password": "correct horse battery",
    },
}
