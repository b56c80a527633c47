"""Explains Slurm's reasons why a job waits: whether the wait ends by itself, and the remedy if it does not."""

from __future__ import annotations

import re

_ENDS, _NEVER = "{}", "does not end by itself: {}, then `rolloutbench cancel` it and start again"
_ALONE = "{}; never if this job alone requests more (`sacctmgr show qos`, `show assoc`)"
# https://slurm.schedmd.com/job_reason_codes.html; the first pattern that matches a whole reason counts.
_REASONS: tuple[tuple[str, str, str], ...] = (
    ("Priority", _ENDS, "other jobs have priority"),
    ("Resources", _ENDS, "no suitable node is free"),
    ("BeginTime", _ENDS, "it was requeued and waits for two minutes"),
    ("Dependency", _ENDS, "another job of this run has not ended"),
    ("JobHeldUser", _ENDS, "held by its user; `scontrol release` lets it run"),
    ("JobHeldAdmin", _ENDS, "held by an administrator"),
    ("launch failed.*|Job(LaunchFail|HoldMax).*", _ENDS, "its node could not start it; `scontrol release` lets it run"),
    ("PartitionTimeLimit", _NEVER, "it requests more time than the partition allows; lower runtime in the profile"),
    ("PartitionNodeLimit", _NEVER, "it requests more nodes than the partition allows; choose another slurm_partition"),
    ("PartitionConfig", _NEVER, "the partition rejects its nodes, time, QOS or account (`scontrol show partition`)"),
    ("Partition(Down|Inactive)", _ENDS, "the partition starts no jobs until an administrator opens it"),
    ("ReqNodeNotAvail|NodeDown|FrontEndDown", _ENDS, "the nodes that it requests are down, drained or reserved"),
    ("Reservation", _ENDS, "its reservation has not begun, or is in use"),
    ("ReservationDeleted", _NEVER, "its reservation does not exist; remove reservation from the profile"),
    ("BadConstraints", _NEVER, "no node has what it requests; correct constraint, gres or nodelist in the profile"),
    ("InvalidAccount|AccountNotAllowed", _NEVER, "set slurm_account in the profile to an account that you may use"),
    ("InvalidQOS|QOSNotAllowed", _NEVER, "set qos in the profile to one that you may use"),
    (r"\w+MaxWall\w+|\w+TimeLimit", _NEVER, "its QOS or account allows less time; lower runtime in the profile"),
    (
        r"\w+Max\w*Minutes\w*",
        _NEVER,
        "its QOS or account allows fewer CPU or GPU minutes; lower runtime in the profile",
    ),
    (r"\w+Max\w+Per(Job|Node)\w*|MaxMemPer\w+", _NEVER, "its QOS or account allows less; lower gres, CPUs or mem_mb"),
    (r"QOSMin\w+", _NEVER, "it requests less than its QOS requires; set another qos in the profile"),
    (r"\w*(MaxJobs|SubmitJob|JobLimit|GrpJobs)\w*", _ENDS, "your limit of jobs is reached"),
    (r"(QOS)?Max\w+Per(User|Account)\w*", _ALONE, "your other jobs use what the QOS allows"),
    (r"\w+RunMinutes\w*", _ALONE, "running jobs have reserved the minutes of your account or QOS"),
    (r"\w+Grp\w*(Minutes|Wall)\w*|QOSUsage.*", _ENDS, "the budget of your account or QOS is used up; ask its owner"),
    (r"\w+Grp\w+|\w+ResourceLimit|AccountingPolicy", _ALONE, "jobs of your account or QOS use its limit"),
    ("DependencyNeverSatisfied|DeadLine", _NEVER, "Slurm will not start it"),
    (r"Licenses|SchedDefer|Cleaning|Prolog|Power\w+|BurstBuffer\w+|Block\w+", _ENDS, "Slurm starts it later by itself"),
)


def explain_wait(reason: str) -> str:
    """What a reason means; empty if it is unknown. `ReqNodeNotAvail, UnavailableNodes:gpu1` has details."""
    first = reason.strip("()").split(",")[0]
    return next((kind.format(text) for name, kind, text in _REASONS if re.fullmatch(name, first)), "")
