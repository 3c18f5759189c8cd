"""The parts of an insert's body, each checked, and as Google writes it back: scheduling, accounts,
policies. Network interfaces are in interfaces.py.

A field that is not kept and shown again is refused with 501, not dropped. Wording of errors that
Google does not document is as remembered from practice.

Not covered: host names of one's own.
"""

from localcloud import schema
from localcloud.compute import catalog, tpus
from localcloud.compute.checks import LINK, invalid, last, served
from localcloud.compute.state import Compute
from localcloud.errors import ApiError, unserved

MIN_RUN, MAX_RUN = 30, 120 * 24 * 3600  # seconds, of maxRunDuration
MIN_FLEX_RUN, MAX_FLEX_RUN = 600, 7 * 24 * 3600  # of machines with flex-start
INSTANCE = (
    "name",
    "description",
    "kind",
    "machineType",
    "networkInterfaces",
    "disks",
    "metadata",
    "scheduling",
    "labels",
    "serviceAccounts",
    "guestAccelerators",
    "reservationAffinity",
    "resourcePolicies",
    "advancedMachineFeatures",
    "params",
)
NEVER_CLOSE = ("e2", "n1", "f1", "g1", "t2d")  # families of machine types
SCHEDULING = (
    "automaticRestart",
    "onHostMaintenance",
    "provisioningModel",
    "instanceTerminationAction",
    "maxRunDuration",
    "preemptionNoticeDuration",
    "onInstanceStopAction",
    "localSsdRecoveryTimeout",
)


def honoured(where: str, given: dict, names: tuple[str, ...]) -> None:
    """Refuse what is asked for and not kept here."""
    for key, value in given.items():
        unserved(key not in names and value not in (None, "", [], {}, False), f"{where}.{key}")


# --- scheduling


def check_scheduling(body: dict, kind: catalog.MachineType, has_gpu: bool) -> dict:
    """Return a Scheduling resource with Google's defaults filled in."""
    given = dict(body.get("scheduling", {}))
    honoured("resource.scheduling", given, SCHEDULING)
    model = given.get("provisioningModel") or "STANDARD"
    spot, run = model == "SPOT", given.get("maxRunDuration")
    check_model(body, kind, model, given)
    if model != "STANDARD" and given.get("automaticRestart"):
        message = f"Scheduling of {model} must have AutomaticRestart be false."
        raise ApiError(400, "invalid", message)
    maintenance = given.get("onHostMaintenance") or (
        "MIGRATE" if model == "STANDARD" else "TERMINATE"
    )
    if has_gpu and maintenance != "TERMINATE":
        message = "Instances with guest accelerators do not support live migration."
        raise ApiError(400, "invalid", message)
    if run is not None:
        check_run(given, run, model)
    scheduling = {
        "automaticRestart": not spot and given.get("automaticRestart", model == "STANDARD"),
        "onHostMaintenance": maintenance,
        "preemptible": spot,
        "provisioningModel": model,
    }
    if spot or given.get("instanceTerminationAction"):
        scheduling["instanceTerminationAction"] = given.get("instanceTerminationAction", "STOP")
    if run is not None:
        scheduling["maxRunDuration"] = {"seconds": str(run.get("seconds", 0))}
    if (notice := given.get("preemptionNoticeDuration")) is not None:
        seconds = int(notice.get("seconds", 0))
        if seconds != 120 or not spot:
            why = "Must be 120 seconds, and of a Spot instance."
            raise invalid("resource.scheduling.preemptionNoticeDuration", seconds, why)
        scheduling["preemptionNoticeDuration"] = {"seconds": str(seconds)}
    if (recovery := given.get("localSsdRecoveryTimeout")) is not None:
        served("resource.scheduling.localSsdRecoveryTimeout", recovery, {"seconds": "0"})
        scheduling["localSsdRecoveryTimeout"] = recovery
    if given.get("onInstanceStopAction"):
        scheduling["onInstanceStopAction"] = given["onInstanceStopAction"]
    return scheduling


def check_run(given: dict, run: dict, model: str) -> None:
    honoured("resource.scheduling.maxRunDuration", run, ("seconds",))
    seconds = int(run.get("seconds", 0))
    is_flex = model == "FLEX_START"
    least, most = (MIN_FLEX_RUN, MAX_FLEX_RUN) if is_flex else (MIN_RUN, MAX_RUN)
    if not least <= seconds <= most:
        why = f"Max run duration must be between {least} seconds and {most // 86400} days."
        raise invalid("resource.scheduling.maxRunDuration", seconds, why)
    if not given.get("instanceTerminationAction"):
        message = "You must specify an instance termination action when you set a max run duration."
        raise ApiError(400, "invalid", message)


def check_model(body: dict, kind: catalog.MachineType, model: str, given: dict) -> None:
    """Whether a machine type can be had with a provisioning model, and what that needs."""
    field = "resource.scheduling.provisioningModel"
    affinity = body.get("reservationAffinity") or {}
    kind_of_affinity = affinity.get("consumeReservationType")
    which = (None, "NO_RESERVATION", "SPECIFIC_RESERVATION")
    served("resource.reservationAffinity.consumeReservationType", kind_of_affinity, *which)
    if kind_of_affinity == "SPECIFIC_RESERVATION":
        key = "compute.googleapis.com/reservation-name"
        served("resource.reservationAffinity.key", affinity.get("key"), key)
        if model in ("SPOT", "FLEX_START"):
            raise invalid(field, model, "Such instances do not consume reservations.")
    models = catalog.of_family(catalog.MODELS, kind.name, ())
    if models and model not in models:
        raise invalid(field, model, f"Machine type {kind.name} supports: {', '.join(models)}.")
    if model == "FLEX_START" and not given.get("maxRunDuration"):
        raise invalid(field, model, "A max run duration must be specified.")
    # "all accelerator-optimized machine types (except A4X and G4)" in 2025: compute/docs/instances/about-flex-start-vms.
    # G4 since 2026, as others report.
    is_flexible = kind.is_tpu or (kind.accelerator and not kind.name.startswith("a4x-"))
    if model == "FLEX_START" and not is_flexible:
        raise invalid(field, model, f"Machine type {kind.name} does not support it.")


# --- the rest


def check_policies(
    compute: Compute, project: str, region: str, kind: catalog.MachineType, links: list[str]
) -> list[str]:
    """The placement policy of an instance, by its URL or, from a template, by its name; those for
    workloads are for groups.
    """
    base = f"projects/{project}/regions/{region}/resourcePolicies/"
    for link in links:
        placement = compute.row("policies", base + last(link)).get("groupPlacementPolicy")
        if placement is None:
            message = "Resource policy must have one of [VmMaintenancePolicy, GroupPlacementPolicy, InstanceSchedulePolicy]"
            raise ApiError(400, "invalid", message)
        if "collocation" in placement and kind.family in NEVER_CLOSE:
            why = f"Machine type {kind.name} does not support compact placement."
            raise invalid("resource.resourcePolicies[0]", link, why)
    return [LINK + base + last(link) for link in links]


def check_threads(kind: catalog.MachineType, features: dict) -> None:
    """Raise the refusal of a number of threads for each core that a machine type does not have."""
    field = "resource.advancedMachineFeatures"
    honoured(field, features, ("threadsPerCore",))
    threads = features.get("threadsPerCore", 0)
    offered = (
        (1,) if kind.name in tpus.SINGLE_THREADED else (0, 2) if kind.shared_core else (0, 1, 2)
    )
    if threads not in offered:
        why = f"Machine type {kind.name} supports: {', '.join(map(str, offered))}."
        raise invalid(f"{field}.threadsPerCore", threads, why)


def check_service_accounts(compute: Compute, project: str, body: dict) -> list[dict]:
    default = f"{compute.projects[project]['number']}-compute@developer.gserviceaccount.com"
    given = body.get("serviceAccounts") or []
    result = []
    for account in given:
        email, scopes = account.get("email", "default"), account.get("scopes") or []
        email = default if email == "default" else email
        if not compute.account_exists(email):
            raise ApiError(
                404, "notFound", f"The resource '{email}' of type 'serviceAccount' was not found."
            )
        if wrong := [scope for scope in scopes if scope not in schema.scopes()]:
            message = "One or more of the service account scopes are invalid: "
            raise ApiError(400, "invalid", message + ", ".join(f"'{scope}'" for scope in wrong))
        result.append({"email": email, "scopes": scopes})
    return result
