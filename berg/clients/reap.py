"""`berg reap`: what is left at Google that no job needs, and its deletion.

Google deletes machines at their limit, and a job's machine deletes itself: this is for faults. What may
hold a devbox's files is named with its disk and asked for by itself, and -y is no answer to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from berg import BergError, gce, google, jobs, terminal
from berg import job as records
from berg.config import Config
from berg.features import roce
from berg.google import GoogleError, last_part
from berg.job import SILENT, State

ORDER = ["group", "machine", "disk", "policy", "template"]  # of deletion: what uses others first
Row = dict[str, Any]


@dataclass(frozen=True)
class Leftover:
    kind: str
    name: str
    path: str  # below the project
    id: str
    user: str
    created_at: str
    why: str
    job: str = ""
    holds: str = ""  # what of a devbox would be lost with it

    @property
    def place(self) -> str:
        """Its zone or region; "" for what is global."""
        return "" if self.path.startswith("/global") else self.path.split("/")[2]


@dataclass
class Seen:
    """What there is, as Google and the bucket list it."""

    states: dict[str, State]
    machines: list[gce.Instance]
    disks: list[Row]
    groups: list[Row]
    templates: list[Row]
    policies: list[Row]  # for placement, of RoCE

    @classmethod
    def now(cls, config: Config) -> Seen:
        label = gce.bucket_label(config)
        query = {"filter": f'(labels.berg="1") AND (labels.berg-bucket="{label}")'}
        columns = {
            "disks": "name,id,zone,labels,creationTimestamp,sizeGb,users",
            "instanceGroupManagers": "name,id,zone,region,creationTimestamp,instanceTemplate,targetSize",
        }
        fields = {kind: f"items/*/{kind}({text}),nextPageToken" for kind, text in columns.items()}

        def listed(path: str, **query: str) -> list[Row]:
            return [*google.items(config, path, maxResults="500", **query)]

        _ = config.credentials
        with google.together(4) as pool:
            disks = pool.submit(listed, "/aggregated/disks", fields=fields["disks"], **query)
            groups = pool.submit(
                listed, "/aggregated/instanceGroupManagers", fields=fields["instanceGroupManagers"]
            )
            templates = pool.submit(
                listed,
                "/global/instanceTemplates",
                fields="items(name,id,creationTimestamp,properties/labels),nextPageToken",
            )
            policies = pool.submit(roce.policies, config)
            states, machines = jobs.observed(config)
        ours = [
            row
            for row in templates.result()
            if row["properties"].get("labels", {}).get("berg-bucket") == label
        ]
        named = {row["name"] for row in ours}
        return cls(
            {state.name: state for state in states},
            [machine for machine in machines if isinstance(machine, gce.Instance)],
            disks.result(),
            [row for row in groups.result() if last_part(row["instanceTemplate"]) in named],
            ours,
            policies.result(),
        )


def leftovers(config: Config, user: str | None) -> list[Leftover]:
    """What no job needs of a user's, or of all users' (None), in the order of deletion."""
    seen = Seen.now(config)
    groups = [*left_groups(seen)]
    going = {each.name for each in groups}
    machines = [each for each in left_machines(config, seen) if each.job not in going]
    found = [
        *groups,
        *machines,
        *left_disks(seen),
        *left_policies(seen, going | {each.job for each in machines}),
        *left_templates(seen, going),
    ]
    return [each for each in found if user in (None, each.user)]


def left_groups(seen: Seen) -> Iterator[Leftover]:
    users = {
        row["name"]: row["properties"]["labels"].get("berg-user", "") for row in seen.templates
    }
    for row in seen.groups:
        state = seen.states.get(row["name"])
        why = reason(state, row["creationTimestamp"])
        if not row["targetSize"] and records.age(row["creationTimestamp"]) > SILENT:
            why = "it wants no machine"  # the laptop that submitted was ended before it asked for them
        if why:
            kind = "region" if "region" in row else "zone"
            path = f"/{kind}s/{last_part(row[kind])}/instanceGroupManagers/{row['name']}"
            user = users[last_part(row["instanceTemplate"])]
            yield leftover("group", row, path, user, why, row["name"])


def left_machines(config: Config, seen: Seen) -> Iterator[Leftover]:
    for machine in seen.machines:
        state = seen.states.get(machine.job)
        if state and state.is_devbox and state.state in (records.STOPPED, records.LOST):
            continue  # it is off, and starts again; only a person ends it
        if why := reason(state, machine.created_at, machine.is_on):
            row = {"name": machine.name, "id": machine.id, "creationTimestamp": machine.created_at}
            made = leftover("machine", row, machine.path, machine.user, why, machine.job)
            if is_box(state, machine.labels):
                disks = [
                    f"{disk['name']} ({disk['sizeGb']} GB)"
                    for disk in seen.disks
                    if any(
                        user.endswith(f"/zones/{machine.zone}/instances/{machine.name}")
                        for user in disk.get("users", [])
                    )
                ]
                made = replace(made, holds=f"its disk {' and '.join(disks) or machine.name}")
            yield made


def left_disks(seen: Seen) -> Iterator[Leftover]:
    for row in seen.disks:
        if row.get("users") or records.age(row["creationTimestamp"]) < SILENT:
            continue
        labels, zone = row["labels"], last_part(row["zone"])
        job, user = labels.get("berg-job", ""), labels.get("berg-user", "")
        path = f"/zones/{zone}/disks/{row['name']}"
        made = leftover("disk", row, path, user, "no machine has it", job)
        is_boxes = is_box(seen.states.get(job), labels)
        yield replace(made, holds=f"{row['sizeGb']} GB of files" if is_boxes else "")


def left_templates(seen: Seen, going: set[str]) -> Iterator[Leftover]:
    used = {last_part(row["instanceTemplate"]) for row in seen.groups if row["name"] not in going}
    for row in seen.templates:
        if row["name"] not in used and records.age(row["creationTimestamp"]) > SILENT:
            user = row["properties"]["labels"].get("berg-user", "")
            path = f"/global/instanceTemplates/{row['name']}"
            yield leftover("template", row, path, user, "no group uses it")


def left_policies(seen: Seen, going: set[str]) -> Iterator[Leftover]:
    """Policies of jobs that have no machine, or none that stays."""
    used = {machine.job for machine in seen.machines} | {row["name"] for row in seen.groups}
    for row in seen.policies:
        name, state = row["name"], seen.states.get(row["name"])
        if name not in used - going and (why := reason(state, row["creationTimestamp"])):
            path = f"/regions/{last_part(row['region'])}/resourcePolicies/{name}"
            yield leftover("policy", row, path, state.user if state else "", why, name)


def reason(state: State | None, created_at: str, is_on: bool = True) -> str:
    """Why no job needs a machine or group; "" if one may: a job that has ended deletes them itself."""
    if state is None:
        is_settled = not is_on or records.age(created_at) > SILENT
        return "no job has its name, or a record that can be read" if is_settled else ""
    is_settled = not is_on or records.age(max(state.changed_at, state.kept_until)) > SILENT
    return f"the job is {state.state}" if state.is_final and is_settled else ""


def is_box(state: State | None, labels: dict[str, str]) -> bool:
    """Whether something is of a devbox, or may be, as nothing says that it is not."""
    return state.is_devbox if state else labels.get("berg-kind") != "job"


def leftover(kind: str, row: Row, path: str, user: str, why: str, job: str = "") -> Leftover:
    return Leftover(kind, row["name"], path, row["id"], user, row["creationTimestamp"], why, job)


def confirmed(each: Leftover) -> bool:
    """Whether a person, at a terminal, lets go what a devbox holds."""
    text = f"{each.kind} {each.name} in {each.place} of {each.user or 'nobody known'}"
    try:
        return terminal.confirm(f"Delete the {text}, with {each.holds}?", False, "a terminal")
    except BergError:
        verb = f"berg kill {each.job or each.name}" if each.kind == "machine" else "berg reap"
        terminal.warn(
            f"the {text} stays, with {each.holds}: -y is no answer. At a terminal: {verb}"
        )
        return False


def delete(config: Config, each: Leftover) -> None:
    """Delete something, if it is still what was seen: its name may be another one's by now."""
    try:
        row = google.find(config, each.path, fields="id")
        if row and row["id"] == each.id:
            google.delete(config, each.path)
            terminal.say(f"Deleted the {each.kind} {each.name}")
    except GoogleError as error:  # somebody began to use it
        terminal.warn(f"the {each.kind} {each.name} was not deleted: {error.message}")


@click.command()
@click.option("-a", "--all", "everyone", is_flag=True, help="Also what other users left.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, but for what a devbox holds.")
@click.option("--json", "as_json", is_flag=True, help="Only look, and print JSON.")
def reap(everyone: bool, yes: bool, as_json: bool) -> None:
    """Find what was left behind at Google, and delete it after asking.

    \b
    berg reap
    berg reap --all --json                   # only look
    """
    config = Config.load()
    user = None if everyone else config.user
    with terminal.waiting("Looking for machines, disks, groups, policies and templates"):
        found = leftovers(config, user)
    if as_json:
        hidden = {"path", "id", "job"}
        rows = [
            {key: text for key, text in asdict(each).items() if key not in hidden} for each in found
        ]
        return terminal.show_json([{**row, "place": each.place} for row, each in zip(rows, found)])
    if not found:
        return terminal.say("Nothing was left behind")
    table = [
        [
            each.kind, each.name, each.place or "global", each.user,
            terminal.duration(records.age(each.created_at)), each.why,
        ]
        for each in found
    ]  # fmt: skip
    terminal.show_table(["KIND", "NAME", "WHERE", "USER", "AGE", "WHY"], table)
    plain = [each for each in found if not each.holds]
    question = f"Delete {', '.join(each.name for each in plain)}?"
    agreed = plain if plain and terminal.confirm(question, yes, "-y") else []
    agreed += [each for each in found if each.holds and confirmed(each)]
    if not agreed:
        return terminal.say("Nothing was deleted")
    known = {(each.path, each.id) for each in leftovers(config, user)}  # the answer took its time
    for each in sorted(agreed, key=lambda each: ORDER.index(each.kind)):
        if (each.path, each.id) in known:
            delete(config, each)
        else:
            terminal.say(f"The {each.kind} {each.name} is in use, or gone by now")
    return None
