"""The types that `app.operator` returns, and the filters that it takes: for annotations, and to build a filter.

Light: importing this module imports none of them. Each comes from its own module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stepfast.admin.audit import Actor, AuditEntry
    from stepfast.admin.dead_letters import Retried
    from stepfast.admin.debts import DebtReport
    from stepfast.admin.doctor.finding import Finding, Level
    from stepfast.admin.encryption import EncryptionKey, Rotated
    from stepfast.admin.events import KeptEvent, WaitReport
    from stepfast.admin.jobs import JobDetail, JobSummary, LogLine, Relative, TreeLine
    from stepfast.admin.operator import Operator
    from stepfast.admin.outbox import (
        AlertReport,
        DeadMessages,
        DestinationReport,
        MessageDetail,
        MessageSummary,
    )
    from stepfast.admin.quarantine import Entries, EntryDetail, EntryGroup, EntryReport, Quarantine
    from stepfast.admin.run_reports import ErrorGroup, PartitionReport, RunReport
    from stepfast.admin.run_status import (
        PageTimes,
        PartitionProgress,
        Reason,
        RunDetail,
        RunObserver,
        RunProgress,
    )
    from stepfast.admin.runs import PlannedPartition, RunPlan, RunRepair, Runs
    from stepfast.admin.schedules import ScheduleDetail, ScheduleReport, Schedules, TickAhead, TickBehind
    from stepfast.admin.statistics import FailurePattern, KindStatistics, LimitReport
    from stepfast.admin.sweeps import SweepReport
    from stepfast.admin.tasks import EndWebhook, ReceivedEnd, TaskDetail, TaskSummary
    from stepfast.admin.watermarks import WatermarkMoved, WatermarkReport
    from stepfast.admin.workers import LeaseReport, QueueReport, WorkerReport
    from stepfast.jobs.dead_letters import FailureGroup, Filter
    from stepfast.jobs.events import Sent
    from stepfast.jobs.rescue import Rescued
    from stepfast.jobs.state import JobState
    from stepfast.outbox.messages import Channel, MessageState
    from stepfast.results.watch import Ended, Logged, Progressed, StateChanged
    from stepfast.runs.partition import PartitionState
    from stepfast.runs.partitioning.contract import Estimate
    from stepfast.runs.quarantine import QuarantineState
    from stepfast.runs.run import RunKind, RunState
    from stepfast.runs.sweep_rows import SweepState
    from stepfast.transports.dead_messages import DeadMessage


__all__ = [
    "Actor",
    "AlertReport",
    "AuditEntry",
    "Channel",
    "DeadMessage",
    "DeadMessages",
    "DebtReport",
    "DestinationReport",
    "EncryptionKey",
    "EndWebhook",
    "Ended",
    "Entries",
    "EntryDetail",
    "EntryGroup",
    "EntryReport",
    "ErrorGroup",
    "Estimate",
    "FailureGroup",
    "FailurePattern",
    "Filter",
    "Finding",
    "JobDetail",
    "JobState",
    "JobSummary",
    "KeptEvent",
    "KindStatistics",
    "LeaseReport",
    "Level",
    "LimitReport",
    "LogLine",
    "Logged",
    "MessageDetail",
    "MessageState",
    "MessageSummary",
    "Operator",
    "PageTimes",
    "PartitionProgress",
    "PartitionReport",
    "PartitionState",
    "PlannedPartition",
    "Progressed",
    "Quarantine",
    "QuarantineState",
    "QueueReport",
    "Reason",
    "ReceivedEnd",
    "Relative",
    "Rescued",
    "Retried",
    "Rotated",
    "RunDetail",
    "RunKind",
    "RunObserver",
    "RunPlan",
    "RunProgress",
    "RunRepair",
    "RunReport",
    "RunState",
    "Runs",
    "ScheduleDetail",
    "ScheduleReport",
    "Schedules",
    "Sent",
    "StateChanged",
    "SweepReport",
    "SweepState",
    "TaskDetail",
    "TaskSummary",
    "TickAhead",
    "TickBehind",
    "TreeLine",
    "WaitReport",
    "WatermarkMoved",
    "WatermarkReport",
    "WorkerReport",
]

_HOMES: Final = {
    "stepfast.admin.audit": ("Actor", "AuditEntry"),
    "stepfast.admin.dead_letters": ("Retried",),
    "stepfast.admin.debts": ("DebtReport",),
    "stepfast.admin.doctor.finding": ("Finding", "Level"),
    "stepfast.admin.encryption": ("EncryptionKey", "Rotated"),
    "stepfast.admin.events": ("KeptEvent", "WaitReport"),
    "stepfast.admin.jobs": ("JobDetail", "JobSummary", "LogLine", "Relative", "TreeLine"),
    "stepfast.admin.operator": ("Operator",),
    "stepfast.admin.outbox": (
        "AlertReport",
        "DeadMessages",
        "DestinationReport",
        "MessageDetail",
        "MessageSummary",
    ),
    "stepfast.admin.quarantine": ("Entries", "EntryDetail", "EntryGroup", "EntryReport", "Quarantine"),
    "stepfast.admin.run_reports": ("ErrorGroup", "PartitionReport", "RunReport"),
    "stepfast.admin.run_status": (
        "PageTimes",
        "PartitionProgress",
        "Reason",
        "RunDetail",
        "RunObserver",
        "RunProgress",
    ),
    "stepfast.admin.runs": ("PlannedPartition", "RunPlan", "RunRepair", "Runs"),
    "stepfast.admin.schedules": ("ScheduleDetail", "ScheduleReport", "Schedules", "TickAhead", "TickBehind"),
    "stepfast.admin.statistics": ("FailurePattern", "KindStatistics", "LimitReport"),
    "stepfast.admin.sweeps": ("SweepReport",),
    "stepfast.admin.tasks": ("EndWebhook", "ReceivedEnd", "TaskDetail", "TaskSummary"),
    "stepfast.admin.watermarks": ("WatermarkMoved", "WatermarkReport"),
    "stepfast.admin.workers": ("LeaseReport", "QueueReport", "WorkerReport"),
    "stepfast.jobs.dead_letters": ("FailureGroup", "Filter"),
    "stepfast.jobs.events": ("Sent",),
    "stepfast.jobs.rescue": ("Rescued",),
    "stepfast.jobs.state": ("JobState",),
    "stepfast.outbox.messages": ("Channel", "MessageState"),
    "stepfast.results.watch": ("Ended", "Logged", "Progressed", "StateChanged"),
    "stepfast.runs.partitioning.contract": ("Estimate",),
    "stepfast.runs.quarantine": ("QuarantineState",),
    "stepfast.runs.partition": ("PartitionState",),
    "stepfast.runs.run": ("RunKind", "RunState"),
    "stepfast.runs.sweep_rows": ("SweepState",),
    "stepfast.transports.dead_messages": ("DeadMessage",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found  # the next look finds it without this function
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
