"""What stands between a request and a machine: quotas, of a project and of each of its regions, and
a zone's stock.

Not covered: stock that runs out by itself. A stockout is what /_berg/stockout says.
"""

from collections.abc import Iterable

from localcloud.compute import catalog, networks, tpus
from localcloud.compute.checks import last
from localcloud.compute.state import Compute, Instance

WEEK = 7 * 24 * 3600  # seconds


DISK_METRICS = ("DISKS_TOTAL_GB", "SSD_TOTAL_GB", "HDB_TOTAL_GB")


def disk_metric(disk_type: str) -> str:
    """The quota that disks of a type count against."""
    special = {"pd-standard": "DISKS_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
    return special.get(disk_type, "SSD_TOTAL_GB")


def limit_of(compute: Compute, project: str, region: str | None, metric: str) -> float:
    changed = compute.project_row(project)["quotas"].get(region or "global", {})
    table = catalog.REGION_QUOTAS if region else catalog.PROJECT_QUOTAS
    return changed.get(metric, table.get(metric, 0))


def usage_of(compute: Compute, project: str, region: str | None, metric: str) -> int:
    if metric in DISK_METRICS:  # disks count also while their machine is off
        rows = (
            row
            for (owner, zone, _), row in compute.tables["disks"].items()
            if owner == project and region in (None, catalog.ZONES[zone])
        )
        return sum(int(row["sizeGb"]) for row in rows if disk_metric(last(row["type"])) == metric)
    if metric == "NETWORKS":
        return len(networks.networks(compute, project))
    total = 0
    for instance in compute.instances.values():
        here = instance.project == project and region in (None, catalog.ZONES[instance.zone])
        if here and instance.resource["status"] not in ("PENDING", "TERMINATED"):
            total += instance.needs.get(metric, 0)
    return total


def resources(
    compute: Compute, project: str, region: str | None, metrics: Iterable[str]
) -> list[dict]:
    """Google's Quota resources."""
    return [
        {
            "metric": metric,
            "limit": float(limit_of(compute, project, region, metric)),
            "usage": float(usage_of(compute, project, region, metric)),
        }
        for metric in metrics
    ]


def drawn(
    compute: Compute, project: str, region: str, needs: dict[str, int], scheduling: dict
) -> dict[str, int]:
    """What is counted where: GPUs of machines that are deleted within a week may be among the
    preemptible ones.

    Google does not say which come first; here those that are not.
    """
    seconds = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    brief = 0 < seconds <= WEEK and scheduling.get("instanceTerminationAction") == "DELETE"
    result = {}
    for metric, amount in needs.items():
        other = f"PREEMPTIBLE_{metric}"
        left = limit_of(compute, project, region, metric) - usage_of(
            compute, project, region, metric
        )
        moves = (
            brief
            and metric.startswith("NVIDIA_")
            and amount > left
            and limit_of(compute, project, region, other)
        )
        result[other if moves else metric] = amount
    return result


def quota_error(compute: Compute, project: str, region: str, needs: dict[str, int]) -> dict | None:
    """The operation error for the first quota that `needs` would exceed, of a region and of the
    project; without a region of the project alone.
    """
    needs = dict(needs)
    if "PREEMPTIBLE_CPUS" in needs and not limit_of(compute, project, region, "PREEMPTIBLE_CPUS"):
        needs["CPUS"] = needs.pop("PREEMPTIBLE_CPUS")
    for metric, amount in needs.items():
        is_regional = metric in catalog.REGION_QUOTAS or metric not in catalog.PROJECT_QUOTAS
        where = region if region and is_regional else None
        limit = limit_of(compute, project, where, metric)
        if limit and usage_of(compute, project, where, metric) + amount <= limit:
            continue
        scope = f"in region {region}" if where else "globally"
        name, _, family = metric.partition(":")
        info = {
            "metricName": f"compute.googleapis.com/{name.lower()}",
            "limitName": f"{name.replace('_', '-')}-per-project{'-region' if where else ''}",
            "dimensions": {"region": region} if where else {"global": "global"},
            "limit": float(limit),
        }
        if family:
            info["dimensions"] = {
                "region": region,
                "tpu_family" if name.startswith("TPU") else "gpu_family": family,
            }
        return {
            "code": "QUOTA_EXCEEDED",
            "message": f"Quota '{name}' exceeded.  Limit: {float(limit)} {scope}.",
            "errorDetails": [{"quotaInfo": info}],
        }
    return None


def shortage(compute: Compute, instance: Instance) -> dict | None:
    """Why an instance cannot be turned on now: a new account, quota, then stock."""
    for account in instance.resource.get("serviceAccounts", []):
        if not compute.account_is_known(account["email"]):
            message = f"The resource '{account['email']}' of type 'serviceAccount' was not found."
            return {"code": "EXTERNAL_RESOURCE_NOT_FOUND", "message": message}
    needs = instance.needs
    if compute.is_there(instance):  # its disks count already
        needs = {key: value for key, value in needs.items() if key not in DISK_METRICS}
    error = quota_error(compute, instance.project, catalog.ZONES[instance.zone], needs)
    is_scarce = last(instance.resource["machineType"]) in tpus.SCARCE
    if not error and (is_scarce or compute.stockouts.get(instance.zone, 1) <= 0):
        error = stockout_error(compute, instance.project, instance.zone, instance.resource)
        is_tpu = last(instance.resource["machineType"]) in tpus.MACHINE_TYPES
        if is_tpu and not instance.valid_seconds:  # after minutes of STAGING, seen in 2026-07
            message = "Internal error. Please try again or contact Google Support."
            error = {"code": "INTERNAL_ERROR", "message": message}
    return error


def stockout_error(compute: Compute, project: str, zone: str, resource: dict) -> dict:
    gpus = resource.get("guestAccelerators", [])
    attachment = ",".join(
        f"{last(gpu['acceleratorType'])}:{gpu['acceleratorCount']}" for gpu in gpus
    )
    details = {
        "vmType": last(resource["machineType"]),
        "attachment": attachment,
        "zone": zone,
        "zonesAvailable": "",
    }
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": details,
    }
    return {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "message": f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  '(resource type:compute)'.",
        "errorDetails": [{"errorInfo": info}],
    }
