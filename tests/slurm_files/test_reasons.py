"""Every reason for which Slurm lets a job wait is explained, and one that never ends has a remedy."""

import re

import pytest

from workflow.slurm.commands import explain_wait

# Those of Slurm 22.05's libslurm.
OF_A_JOB = """
PartitionNodeLimit PartitionTimeLimit PartitionConfig ReservationDeleted BadConstraints InvalidAccount
InvalidQOS QOSTimeLimit QOSNotAllowed AccountNotAllowed DependencyNeverSatisfied AssociationTimeLimit
QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit
AssocMaxWallDurationPerJobLimit QOSMinCpuNotSatisfied AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit
AssocMaxNodePerJobLimit AssocMaxCpuPerNode AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxMemMinutesPerJob
AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxGRESMinutesPerJob QOSMaxCpuPerNode QOSMaxMemoryPerJob
QOSMaxMemoryMinutesPerJob QOSMinMemory QOSMinNode QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESMinutesPerJob
QOSMinGRES AssocMaxBillingPerJob QOSMaxBillingPerJob QOSMinBilling MaxMemPerLimit DeadLine
"""
THAT_END = """
Priority Resources BeginTime Dependency PartitionDown PartitionInactive Reservation ReqNodeNotAvail
FrontEndDown SchedDefer NodeDown Cleaning Licenses Prolog AssociationJobLimit AssociationResourceLimit
QOSJobLimit QOSResourceLimit QOSGrpCpuLimit QOSGrpCPURunMinutesLimit QOSGrpJobsLimit QOSGrpMemLimit
QOSGrpNodeLimit QOSGrpSubmitJobsLimit QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit
QOSMaxSubmitJobPerUserLimit AssocGrpCpuLimit AssocGrpCPURunMinutesLimit AssocGrpJobsLimit AssocGrpMemLimit
AssocGrpNodeLimit AssocMaxJobsLimit AssocMaxSubmitJobLimit AssocGrpGRES QOSGrpGRES AssocGrpGRESRunMinutes
QOSMaxGRESPerUser MaxGRESPerAccount MaxJobsPerAccount MaxSubmitJobsPerAccount AccountingPolicy
BurstBufferStageIn PowerNotAvail QOSMaxBillingPerUser
"""
HELD = """
JobHeldUser JobHeldAdmin JobHoldMaxRequeue JobLaunchFailure QOSUsageThreshold QOSGrpCPUMinutesLimit
QOSGrpWallLimit AssocGrpCPUMinutesLimit AssocGrpWallLimit AssocGrpGRESMinutes QOSGrpGRESMinutes
"""


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("QOSMaxWallDurationPerJobLimit", "lower runtime in the profile"),
        ("QOSMaxGRESPerUser", "never if this job alone requests more (`sacctmgr show qos`"),
        ("BadConstraints", "correct constraint"),
        ("(ReqNodeNotAvail, UnavailableNodes:gpu1)", "down, drained or reserved"),
        ("launch failed requeued held", "`scontrol release`"),
    ],
)
def test_the_remedy_names_the_key(reason, says):
    assert says in explain_wait(reason)


def test_an_unknown_reason_is_shown_as_it_is():
    assert explain_wait("SomethingNew") == explain_wait("") == explain_wait("None") == ""
    assert not re.search(r"\{\}", "".join(map(explain_wait, (OF_A_JOB + THAT_END + HELD).split())))
