"""A reason that never ends has a remedy; any other is Slurm's own word."""

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


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("QOSMaxWallDurationPerJobLimit", "lower runtime in the profile"),
        ("BadConstraints", "correct constraint"),
        ("launch failed requeued held", "`scontrol release`"),
    ],
)
def test_the_remedy_names_the_key(reason, says):
    assert says in explain_wait(reason)


@pytest.mark.parametrize("reason", OF_A_JOB.split())
def test_what_never_ends_has_a_remedy(reason):
    assert "does not end by itself" in explain_wait(reason)


@pytest.mark.parametrize("reason", ["SomethingNew", "", "None", *THAT_END.split()])
def test_what_ends_by_itself_is_shown_as_slurm_says_it(reason):
    assert explain_wait(reason) == ""
