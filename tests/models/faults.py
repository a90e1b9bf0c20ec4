"""What goes wrong without each guard of the models, and the invariant that sees it.

A fault of the project is mended and gets a line here: its guard is a name in the model (`Model.needs`, or `without`),
and `test_each_fault_is_seen_by_its_invariant` switches it on again.
"""

from __future__ import annotations

from typing import Final

from tests.models.checker import Fault

OF_BATCHES: Final = {
    "decides by what is pinned": Fault(
        "two attempts decide the same",
        "a batch that runs again goes by the policies of that time",
        "the prototype that lost 563 rows and doubled 718 (CONTRIBUTING.md)",
        "logged",
    ),
    "identity of a batch": Fault(
        "no row is lost",
        "a sink takes a batch for another one of the same number",
        "mend",
        "written",
    ),
    "run fence": Fault(
        "only the owner writes",
        "a run goes on in a directory that another has taken over",
        "mend",
        "two runs",
    ),
    "refused before it begins": Fault(
        "who is refused takes over nothing",
        "a query that is refused ends the run that owns the directory",
        "mend",
        "logged",
    ),
    "reports of another run": Fault(
        "only the owner writes",
        "a run that was taken over deletes what the other has reported",
        "mend",
        "two runs",
    ),
    "reports of another history": Fault(
        "epochs count this history",
        "a checkpoint takes the reports of an undone batch for those of another",
        "mend",
        "two ways",
    ),
    "reports of undone batches": Fault(
        "epochs count this history",
        "a checkpoint that was put back counts what undone batches used",
        "492fc705",
        "put back",
    ),
    "reports that are left": Fault(
        "epochs count every report",
        "a checkpoint that was put back with its sinks forgets what it owes",
        "492fc705",
        "two",
    ),
    "notes of a run": Fault(
        "only the owner writes",
        "a run that was taken over notes policies over the other's",
        "06710828",
        "two runs",
    ),
    "a manifest that is gone": Fault(
        "a query keeps its name",
        "a lost control directory gives the query another name, and sinks take all again",
        "f31096a2",
        "logged",
    ),
    "sinks are not ahead": Fault(
        "a run begins behind no sink",
        "a start does not ask the sinks for later batches",
        "",
        "two",
    ),
    "found owner": Fault(
        "a run begins where it was started",
        "a run begins though another began since its start",
        "",
        "two starts",
    ),
    "epoch before offset": Fault(
        "epochs that are named are there",
        "an offset is logged before its epoch is written",
        "",
        "fresh",
    ),
    "epoch is there": Fault(
        "epochs that are named are there",
        "a run begins without the epoch that the log names",
        "",
        "committed",
    ),
    "changed policies": Fault(
        "changes of policy act in the next batch",
        "no epoch is due when the policies change",
        "",
        "logged",
    ),
    "one report a batch": Fault(
        "epochs count every report",
        "a batch is committed before it has reported",
        "",
        "logged",
    ),
    "state before commit": Fault(
        "no row is lost",
        "a batch is committed whose state was not kept",
        "",
        "logged",
    ),
    "sinks before commit": Fault(
        "no row is lost",
        "a batch is committed before its rows are in the sink",
        "",
        "logged",
    ),
    "offsets are read once": Fault(
        "no row is doubled",
        "a batch begins before the end of the batch before it",
        "",
        "two runs",
    ),
}
"""The guards, and what goes wrong without each."""

OF_LEASES: Final = {
    "other runs of one job": Fault(
        "the quota is kept",
        "a copy of a job takes what the job has for its own",
        "mend",
        "a run beside",
    ),
    "what a replaced run claimed": Fault(
        "the quota is kept",
        "a run that does not know yet that it was replaced is counted with nothing",
        "4c3deeb4",
        "a run beside one of two",
    ),
    "a copy is another member": Fault(
        "nobody yields to a copy",
        "a copied checkpoint shares as the job that it was copied from",
        "f6c4604e",
        "a copy",
    ),
    "floors of the quota as it stands": Fault(
        "a silent part returns",
        "a quota that falls is held by the floor that a silent job had of it",
        "mend",
        "a quota falls",
    ),
    "claims that cannot be read": Fault(
        "the quota is kept",
        "a share grows though what another job claims cannot be read",
        "d5a08604",
        "damaged",
    ),
    "goes beyond what others remember": Fault(
        "who is told of a greater mark goes beyond it or yields",
        "a job that was put back is never heard again",
        "e0ccb4d4",
        "a job that is put back",
    ),
    "the owner goes on": Fault(
        "the owner of a checkpoint may go on",
        "a run yields for good to one that its control directory refuses",
        "e73c23bb",
        "runs of one job",
    ),
    "a lease that ended and began again": Fault(
        "time without a lease is not paid",
        "a decider is paid for the time in which others had its share",
        "3750ad54",
        "paid",
    ),
    "no floor for who yields": Fault(
        "the quota is kept",
        "a run that yielded keeps its floor beside the run that goes on",
        "f5fe7cd5",
        "a run beside",
    ),
    "two margins beside another run": Fault(
        "the quota is kept",
        "a run begins before the other has looked",
        "",
        "a run beside",
    ),
    "a margin before the first use": Fault(
        "the quota is kept",
        "two that start do not see each other yet",
        "",
        "two start",
    ),
    "least claim of the window": Fault(
        "a run uses what all have seen it claim",
        "a run uses its last claim at once",
        "",
        "unequal",
    ),
    "answers of all": Fault(
        "the quota is kept",
        "a run uses a claim that nobody has seen",
        "",
        "unequal",
    ),
    "held from its report on": Fault(
        "the quota is kept",
        "a lease lasts from the visit on",
        "",
        "silent",
    ),
    "uses less as it claims less": Fault(
        "a run uses what all have seen it claim",
        "a smaller claim changes nothing",
        "",
        "unequal",
    ),
    "claims what its epochs use": Fault(
        "a run uses what all have seen it claim",
        "a claim is less than an epoch uses",
        "",
        "unequal",
    ),
}
