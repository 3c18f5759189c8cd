"""Links to networks and subnetworks: of the machine's own project, or of a host project whose
network it shares (Shared VPC).

Each project has one network, `default`, with a subnetwork `default` in each region. Not covered:
which projects are attached to a host project: each may use the network of each, if the caller has
the permissions there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from localcloud.compute.checks import LINK, invalid
from localcloud.compute.state import Compute, Instance

BEGINNING = r"(?:https?://[^/]+/compute/[^/]+/)?(?:projects/(?P<project>[^/]+)/)?"
FORMS = {
    "network": re.compile(BEGINNING + r"global/(?P<region>)networks/(?P<name>[^/]+)"),
    "subnetwork": re.compile(BEGINNING + r"regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)"),
}
NOT_FOUND = "The referenced network resource cannot be found."


class Subnetwork(NamedTuple):
    """Where an interface is: always on the network and subnetwork `default` of a project."""

    project: str
    region: str

    @property
    def network_link(self) -> str:
        return f"{LINK}projects/{self.project}/global/networks/default"

    @property
    def link(self) -> str:
        return f"{LINK}projects/{self.project}/regions/{self.region}/subnetworks/default"


def find(compute: Compute, project: str, region: str, given: dict, field: str) -> Subnetwork:
    """Return the subnetwork that an interface in a project and a region names."""
    owners = {}
    for which, form in FORMS.items():
        link = given.get(which) or ""
        if not link:
            continue
        found = form.fullmatch(link)
        if found is None:
            raise invalid(f"{field}.{which}", link, "The URL is malformed.")
        owner = found["project"] or project
        if which == "subnetwork" and found["region"] != region:
            why = f"The subnetwork must be in the region of the instance, {region}."
            raise invalid(f"{field}.subnetwork", link, why)
        if found["name"] != "default" or owner not in compute.projects:
            scope = "global" if which == "network" else f"regions/{region}"
            full = f"{LINK}projects/{owner}/{scope}/{which}s/{found['name']}"
            raise invalid(f"{field}.{which}", full, NOT_FOUND)
        owners[which] = owner
    if len(set(owners.values())) > 1:
        why = "The subnetwork is not one of the network's."
        raise invalid(f"{field}.subnetwork", given["subnetwork"], why)
    return Subnetwork(next(iter(owners.values()), project), region)


def owner(project: str, given: dict) -> str:
    """Return the project of an interface's network, before it is checked."""
    links = [(which, given.get(which) or "") for which in ("subnetwork", "network")]
    found = next((FORMS[which].fullmatch(link) for which, link in links if link), None)
    return (found and found["project"]) or project


def owner_of(instance: Instance) -> str:
    """Return the project whose network a machine is on."""
    return owner(instance.project, instance.resource["networkInterfaces"][0])
