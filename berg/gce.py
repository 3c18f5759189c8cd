"""Compute Engine as a place for jobs: machines, and slices of TPUs.

A job's slice is a zonal group in BULK mode, named like the job, with a workload policy that has its
topology. Google repairs a slice whose host fails: all machines restart, and the job with them. By
flex-start the group stays until Google has room. The requests are in google/: instances, groups.
Not covered: reservations for slices, several slices for one job.
"""

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import SCOPES, Config
from berg.google import api, fabric, groups, iam, instances, offers, prices, shapes
from berg.job import NO_GROUP, Group, Machine, Resource
from berg.plain import plural
from berg.plan import Choice, Offer, Plan
from berg.spec import JobSpec

STARTUP_SCRIPT = Path(__file__).with_name("machine") / "boot.py"
MOST_REGIONS = 3  # in which a machine waits for room
FLEX_SECONDS = 7200  # for which Google waits for room, at most
SLICE_TIMEOUT = 1500  # seconds; Google may take 12 minutes to say that there is no room
SLICE_HEALS = {prices.STANDARD: "failed hosts, all machines together"}
QUEUED = 60  # seconds without a machine, after which a slice by flex-start is in Google's queue
warm_up = instances.import_compute
waiting = groups.waiting
set_metadata = instances.set_metadata
console = instances.serial_output
proxy, shell = instances.tunnel, instances.no_shell
login = instances.login


def machines(
    config: Config, jobs: Collection[str] = (), sweeps: Collection[str] = (), *, zone: str = ""
) -> list[Machine]:
    """Return machines as `Place.machines` says.

    If jobs are named, Compute Engine vouches for each machine; else their names count.
    """
    found = instances.find(config, jobs, sweeps, zone=zone)
    if not jobs:
        return found
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda each: instances.vouched(config, each), found))


# --- what there is for a spec


def choose(config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
    """Return the machines that a spec means; raise BergError if Google has none like that."""
    image, project = config.image
    if spec.tpu is not None:
        tpu = shapes.parse_tpu(spec.tpu)
        if is_sweep and tpu.hosts > 1:
            raise BergError(
                f"--tpu {spec.tpu} is a slice of {tpu.hosts} machines: each job of a sweep runs on "
                "one machine. See: berg gpus --tpu"
            )
        if not spec.image:  # TPUs have images of their own
            image, project = tpu.about.image, shapes.TPU_IMAGES
        return Choice(tpu.shape, tpu.hosts, image, project, is_slice=tpu.hosts > 1)
    shape = shapes.choose(spec.num_gpus, spec.gpu_type, spec.num_cpus, spec.machine_type)
    is_never_reserved = shape.machine_type.startswith(shapes.NOT_RESERVED)
    from_elsewhere = spec.elsewhere and not (spec.reservation and is_never_reserved)
    shapes.check(shape, image, from_elsewhere)
    if spec.flex:
        shapes.check_flex(shape)
    shape = shapes.with_ssds(shape, spec.local_ssd)
    return Choice(shape, spec.num_machines, image, project)


def offer(config: Config, spec: JobSpec, choice: Choice, sweep: int) -> Offer:
    """Look up image, zones and quotas; raise BergError where there is no image or no zone."""
    # The quotas of this region probably matter: they are read before zones are known.
    likely = prices.region_of(next(iter(config.zones), config.region))
    with ThreadPoolExecutor() as pool:
        image = pool.submit(offers.find_image, config, choice.image, choice.image_project)
        quotas = pool.submit(offers.quotas, config, likely)
        reserved = reservation(config, spec, choice)
        zones = zones_to_try(config, spec, choice, reserved)
        odds = []
        if spec.spot:
            odds = offers.advice_by_zone(config, choice.shape, zones, sweep or choice.hosts)
        if not (spec.zones or spec.regions):
            zones = list(dict.fromkeys([*(each.zone for each in odds), *zones]))
        regions = list(dict.fromkeys(prices.region_of(zone) for zone in zones))
        if regions[0] != likely:
            quotas = pool.submit(offers.quotas, config, regions[0])
        without_address = regions if config.no_external_ip else []
        egress = pool.map(lambda region: egress_of(config, region), without_address)
        found = Offer(
            shape=choice.shape,
            hosts=choice.hosts,
            image=image.result(),
            zones=zones,
            rows=[],
            ender="Google deletes the machine",
            disk_gb=spec.disk_gb,
            egress=list(egress),
            shortages=shortages(config, spec, choice, sweep, quotas.result()),
            priced=None if reserved else choice.shape,
            reservation=reserved,
            odds=list(map(str, odds)),
            is_fast=is_fast(spec, choice),
        )
    if choice.is_slice:
        found.heals = SLICE_HEALS.get(spec.model, "")
    elif is_in_group(spec, choice.hosts, sweep):
        let_wait(found, spec, choice.hosts, regions)
    found.rows = rows(spec, found)
    return found


def reservation(config: Config, spec: JobSpec, choice: Choice) -> offers.Reservation | None:
    """Return the reservation that a spec names; None if it names none."""
    if not spec.reservation:
        return None
    return offers.find_reservation(
        config, spec.reservation, choice.shape.machine_type, list(spec.zones)
    )


def let_wait(found: Offer, spec: JobSpec, hosts: int, regions: list[str]) -> None:
    """Let a group make the machines of an offer where there is room."""
    most = most_regions(spec, hosts)
    found.regions, found.left_out = regions[:most], regions[most:]
    found.group = Group(region=regions[0])
    found.zones = [zone for zone in found.zones if prices.region_of(zone) in found.regions]
    if found.is_fast:
        found.zones = fabric.zone_of_each(found.zones)
    if not spec.flex:
        alone, several = "wherever there is room", "each made again in their zone"
        found.heals = f"lost machines, {alone if hosts == 1 else several}"


def is_in_group(spec: JobSpec, hosts: int, sweep: int) -> bool:
    """Return whether a group makes the machines: again when lost, or by flex-start.

    Not a devbox's: its user would find another machine. Sweeps and slices have no such groups.
    """
    is_job = spec.cmd is not None and not sweep and spec.tpu is None
    is_kept = is_job and (spec.spot or spec.wait_for_capacity)
    # by flex-start several machines come at once, and one may wait longer than two hours
    return is_kept or (spec.flex and (hosts > 1 or spec.queue_timeout > 0))


def most_regions(spec: JobSpec, hosts: int) -> int:
    """Return in how many regions a job's machines may wait for room.

    Several machines that Google makes one after another wait in one region: otherwise each region
    might have some of them, and none all.
    """
    return MOST_REGIONS if hosts == 1 or spec.flex else 1


def is_fast(spec: JobSpec, choice: Choice) -> bool:
    return fabric.is_fast(choice.shape.machine_type, choice.hosts, spec.network)


def zones_to_try(
    config: Config, spec: JobSpec, choice: Choice, reserved: offers.Reservation | None
) -> list[str]:
    """Return the zones for a spec's machines: the reservation's, those named, or all of the region.

    Of regions that are named the cheapest one's come first, after the zones named. Machines that
    are to talk over RoCE leave out the zones that lack it.
    """
    if reserved:
        found = offers.zones_with(config, choice.shape, [reserved.zone])
    elif spec.regions:
        found = zones_of_regions(config, spec, choice)
    else:
        found = offers.zones_with(config, choice.shape, config.zones)
    return fabric.zones_with(config, found) if is_fast(spec, choice) else found


def zones_of_regions(config: Config, spec: JobSpec, choice: Choice) -> list[str]:
    """Return the zones of the regions that a spec names, the cheapest first, after those named."""
    first = offers.zones_with(config, choice.shape, [*spec.zones]) if spec.zones else []
    zones = offers.zones_with(config, choice.shape, regions=spec.regions)
    listed = prices.latest(config, map(prices.region_of, zones))

    def order(zone: str) -> tuple[float, bool, str]:
        there, hourly = listed.get(prices.region_of(zone)), None
        if there:
            hourly = there.per_hour(choice.shape, spec.model, spec.disk_gb)
        return hourly or math.inf, prices.region_of(zone) != config.region, zone

    return list(dict.fromkeys([*first, *sorted(zones, key=order)]))


def shortages(
    config: Config,
    spec: JobSpec,
    choice: Choice,
    sweep: int,
    quotas: dict[str, tuple[float, float]],
) -> list[str]:
    """Return a sentence for each quota that has no room for the machines now."""
    needs = shapes.quota_needs(
        choice.shape,
        machines=sweep or choice.hosts,
        disk_gb=spec.disk_gb,
        spot=spec.spot,
        addresses=not config.no_external_ip,
        brief=spec.max_hours <= 7 * 24,
    )
    return offers.shortages(quotas, needs)


def egress_of(config: Config, region: str) -> offers.Egress:
    """Return what leads out of a region; raise BergError if machines would not reach Google."""
    found = offers.egress(config, region)
    if found.to_google is False:
        raise BergError(
            "a machine without an external address reaches nothing of Google's from the "
            f"subnetwork {found.subnetwork} in {found.region}. "
            f"Allow it: {found.command(to_internet=False)}"
        )
    return found


def rows(spec: JobSpec, offer: Offer) -> list[tuple[str, str]]:
    """Return the rows of a plan about the machines."""
    several = f"{offer.hosts} machines, each " if offer.hosts > 1 else ""
    model = {prices.SPOT: ", spot", prices.FLEX: ", flex-start"}.get(spec.model, "")
    has_scratch = bool(offer.shape.scratch)
    found = [
        ("Machine", f"{several}{offer.shape}{model}, {spec.disk_gb} GB disk"),
        *fabric.row(offer.shape, offer.hosts, spec.network),
        *([("Scratch", f"{offer.shape.scratch} of local SSD at /mnt/scratch")] * has_scratch),
        ("Image", api.last_part(offer.image)),
        ("Zones", ", ".join(offer.zones)),
    ]
    if offer.left_out:
        what = "one machine waits" if offer.hosts == 1 else "several machines wait"
        most = plural(most_regions(spec, offer.hosts), "region")
        found.append(("", f"not in {', '.join(offer.left_out)}: {what} in {most} at most"))
    if offer.reservation:
        found.append(("Reserved", str(offer.reservation)))
    if offer.odds:
        found.append(("Odds", "\n".join(offer.odds)))
    return found


def longest_name(first: str, names: list[str]) -> str:
    """Return the longest of these machines' names."""
    return names[-1]


# --- the request to Google


def request(plan: Plan) -> dict[str, Any]:
    """Return the body of each machine without its name, by zone in the order of the attempts.

    A slice has them below `zones`, next to its `topology`.
    """
    zones = {zone: body(plan, zone) for zone in plan.offer.zones}
    if plan.job.place == "tpu":
        return {"topology": shapes.parse_tpu(plan.job.tpu).topology, "zones": zones}
    return zones


def body(plan: Plan, zone: str) -> dict[str, Any]:
    """Return a machine in a zone, in the API's words."""
    config, shape = plan.config, plan.offer.shape
    labels = {**plan.labels, "berg-bucket": instances.bucket_label(config)}
    if plan.job.place == "tpu":
        labels["berg-place"] = "tpu"
    disk = {
        "sourceImage": plan.job.image,
        "diskSizeGb": str(plan.offer.disk_gb),
        "diskType": f"zones/{zone}/diskTypes/{shape.disk_type}",
        "labels": labels,
    }
    is_deleted = not plan.job.stops_when_idle
    made = {
        "machineType": f"zones/{zone}/machineTypes/{shape.machine_type}",
        "labels": labels,
        "scheduling": scheduling(plan),
        "networkInterfaces": [interface(config, shape, zone)],
        "serviceAccounts": [{"email": config.service_account or "default", "scopes": SCOPES}],
        "metadata": {"items": [{"key": k, "value": v} for k, v in metadata(plan).items()]},
        "disks": [
            {"boot": True, "autoDelete": is_deleted, "initializeParams": disk},
            *shape.ssd_disks(f"zones/{zone}"),
        ],
        **shapes.TPU_EXTRAS.get(shape.machine_type, {}),
        **shape.guests(f"zones/{zone}"),
    }
    if plan.offer.is_fast:
        made["networkInterfaces"] += fabric.interfaces(config, zone)
        # Google puts the machines of a reservation, and those it queues, close to each other itself
        if plan.model != prices.FLEX and not plan.offer.reservation:
            made["resourcePolicies"] = [fabric.policy_of(zone, plan.job.job_name, config.project)]
    if plan.model == prices.FLEX:
        made |= instances.queued(FLEX_SECONDS)
    if plan.offer.reservation:
        made["reservationAffinity"] = offers.affinity(config, plan.offer.reservation)
    return made


def scheduling(plan: Plan) -> dict[str, Any]:
    """Return when Google may stop a machine, and what happens to it then."""
    end: dict[str, Any] = {"instanceTerminationAction": "DELETE"}
    if plan.job.keeps_disk:
        end = {"instanceTerminationAction": "STOP", **plan.offer.shape.stop_action}
    found: dict[str, Any] = {
        "maxRunDuration": {"seconds": str(plan.machine_seconds)},
        **end,
        "automaticRestart": plan.job.is_restarted and plan.model == prices.STANDARD,
    }
    is_spot = plan.model == prices.SPOT
    if plan.model != prices.STANDARD:
        found["provisioningModel"] = plan.model
    if is_spot:  # else the machine hears of it with the power-off
        found["preemptionNoticeDuration"] = {"seconds": "120"}
    if plan.offer.reservation and plan.offer.reservation.is_bound:
        found["provisioningModel"] = "RESERVATION_BOUND"
    if is_spot or plan.offer.shape.num_gpus or plan.job.tpu:
        found["onHostMaintenance"] = "TERMINATE"
    return found


def interface(config: Config, shape: shapes.Shape, zone: str) -> dict[str, Any]:
    """Return a machine's network interface."""
    found: dict[str, Any] = {**offers.interface(config, prices.region_of(zone))}
    if shape.nic_type:
        found["nicType"] = shape.nic_type
    if not config.no_external_ip:
        found["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return found


def metadata(plan: Plan) -> dict[str, str]:
    """Return a machine's metadata."""
    facts = {f"berg-{key.replace('_', '-')}": value for key, value in plan.facts.items() if value}
    found = {
        **plan.owner,
        **facts,
        "startup-script": STARTUP_SCRIPT.read_text(),
        **shapes.driver_metadata(plan.offer.shape.gpu_type),
        **({"berg-local-ssds": str(number)} if (number := plan.offer.shape.local_ssds) else {}),
        "enable-guest-attributes": "TRUE",  # where the machine writes its host keys
    }
    # OS Login refuses the metadata's keys. Root's are installed by the worker, whatever the
    # organisation says of OS Login.
    if plan.config.ssh_user != "root":
        found["enable-oslogin"] = "FALSE"
    if plan.ssh_key:
        found["ssh-keys"] = plan.ssh_key
    return found


def preview(config: Config, request: dict[str, Any], names: list[str], keep: bool) -> Any:
    """Return the body of the request for the machines, or the bodies of those for a group."""
    if "topology" in request:
        zone, body = next(iter(request["zones"].items()))
        return groups.requests(config, groups.SLICE, [zone], body, names, request["topology"])
    if not keep:
        return instances.request_body(next(iter(request.values())), names)
    found = []
    for zones in by_region(request):
        body = request[zones[0]]
        found.append(groups.requests(config, groups.shape_of(body), zones, body, names))
    return found[0] if len(found) == 1 else found


def why_gone(config: Config, job: str, group: Group, zone: str) -> str:
    """Return why machines never came, in Google's words; "" if that is not known."""
    if group:
        return groups.reason(api.find(config, groups.request_path(group.region, job)))
    return instances.why_gone(config, job, zone)


def create(
    config: Config,
    request: dict[str, Any],
    names: list[str],
    keep: bool,
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> str:
    """Create the machines in the first zone that has room for all, or a group that keeps one.

    Return the zone, "" while the group has no room. Raise BergError with every zone that was tried
    and why it failed.
    """
    if keep:
        return create_groups(config, request, names, say)
    if "topology" in request:
        zones, make_all = request["zones"], make_slice
        hint = "Try other zones (--zone), another topology, or --spot"
    else:
        zones, make_all = request, make_machines
        hint = "Try other zones (--zone), other or fewer GPUs (-t, -g) or TPUs (--tpu), or --spot"
    make = functools.partial(make_all, config, request, names, say, still_trying)
    return in_turn(list(zones), make, hint, say, still_trying)


def make_machines(
    config: Config,
    request: dict[str, Any],
    names: list[str],
    say: Callable[[str], None],
    still_trying: Callable[[], None],
    zone: str,
) -> None:
    """Create machines in a zone, all or none; raise OperationFailed with Google's message."""
    body, tries = request[zone], itertools.count()
    make_ready(config, zone, body, say)
    say(f"Creating {'the machine' if len(names) == 1 else f'{len(names)} machines'} in {zone}")

    def insert() -> None:
        # Machines of the try before may have begun the job before they were deleted.
        if next(tries):
            still_trying()
        try:
            instances.insert(config, zone, body, names)
        except api.OperationFailed as error:
            is_tpu = api.last_part(body["machineType"]) in shapes.TPU_TYPES
            raise (groups.tpu_error(error) if is_tpu else error) from None

    try:
        iam.once_known(config, insert)
    except BergError:
        leave_none(config, body)
        raise


def make_ready(config: Config, zone: str, body: dict[str, Any], say: Callable[[str], None]) -> None:
    """Make the networks and the placement policy that machines name, if they name any."""
    if len(body["networkInterfaces"]) > 1:
        say(f"Checking the networks for RoCE in {zone}")
        fabric.make(config, zone)
    for path in body.get("resourcePolicies", []):
        forget_policies(config)
        fabric.make_policy(config, path, groups.description(config))


def leave_none(config: Config, body: dict[str, Any]) -> None:
    """Delete the placement policy of machines that could not be created."""
    for path in body.get("resourcePolicies", []):
        forget_policies(config, api.last_part(path))


def by_region(zones: Iterable[str]) -> list[list[str]]:
    """Return zones by their regions, in the order of the first of each."""
    found: dict[str, list[str]] = {}
    for zone in zones:
        found.setdefault(prices.region_of(zone), []).append(zone)
    return list(found.values())


def create_groups(
    config: Config, request: dict[str, Any], names: list[str], say: Callable[[str], None]
) -> str:
    """Create a group in each region until one has its machine; return its zone, "" for none.

    The machine that comes first deletes the other groups (worker.py). Raise the last error if the
    machine can wait in no region.
    """
    refused, is_waiting = BergError(""), False
    for zones in by_region(request):
        try:
            make_ready(config, zones[0], request[zones[0]], say)
            zone = groups.create(config, zones, request[zones[0]], names, say)
        except BergError as error:
            leave_none(config, request[zones[0]])
            refused = error
            say(error.message)
            continue
        if zone:
            return zone
        is_waiting = True
    if not is_waiting:
        raise refused
    return ""


def in_turn(
    zones: list[str],
    make: Callable[[str], None],
    hint: str,
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> str:
    """Return the first zone in which `make` works; raise BergError with why none of them does.

    `still_trying` is called before each zone but the first, when there are no machines.
    """
    tried: list[str] = []
    full_regions: set[str] = set()
    for zone in zones:
        region = prices.region_of(zone)
        if region in full_regions:
            continue
        if tried:
            still_trying()
        try:
            make(zone)
        except api.OperationFailed as error:
            tried.append(f"{zone}: {error.explain(region)}")
            if error.blocks == "region":
                full_regions.add(region)
            elif error.blocks != "zone":  # no other zone would do
                hint = hint if error.blocks else ""
                break
        else:
            if tried:
                say("\n".join(tried))
            return zone
    failed = "no machine could be created, and none was left behind.\n  " + "\n  ".join(tried)
    if hint:  # other machines would do
        raise api.NoRoom(f"{failed}\n{hint}")
    raise BergError(failed)


# --- slices


def make_slice(
    config: Config,
    request: dict[str, Any],
    names: list[str],
    say: Callable[[str], None],
    still_trying: Callable[[], None],
    zone: str,
) -> None:
    """Create a slice in a zone, all of it or nothing, and wait until it runs.

    By flex-start it may stay in Google's queue. Raise OperationFailed with Google's message.
    """
    body, topology = request["zones"][zone], request["topology"]
    bodies = groups.requests(config, groups.SLICE, [zone], body, names, topology)
    may_queue = body["scheduling"].get("provisioningModel") == prices.FLEX
    say(f"Creating a slice of {len(names)} machines in {zone}")

    def make() -> None:
        try:
            send(config, zone, bodies)
            wait(config, zone, names, may_queue, say, still_trying)
        except api.OperationFailed as error:
            if error.code != "alreadyExists":
                say(f"Taking back what there is in {zone}")
                sha256 = instances.metadata_of(body)[instances.JOB_SHA256]
                take_back(config, bodies["group"]["name"], sha256)
            raise

    iam.once_known(config, make)


def send(config: Config, zone: str, bodies: dict[str, Any]) -> None:
    """Send the requests for a slice; raise OperationFailed with Google's message."""
    try:
        groups.send(config, f"/zones/{zone}", bodies)
    except api.Conflict:
        message = f"a group {bodies['group']['name']!r} exists in {zone}"
        raise api.OperationFailed("alreadyExists", message) from None
    except api.GoogleError as error:
        raise api.OperationFailed(error.reason, error.message) from None


def wait(
    config: Config,
    zone: str,
    names: list[str],
    may_queue: bool,
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> None:
    """Wait until every machine of a slice runs; raise OperationFailed if one will not.

    With `may_queue` return while there is no machine yet if Google lets the slice wait for room.
    """
    path = group_path(zone, groups.job_of(names))
    began = reported = time.monotonic()
    while True:
        status = api.call(config, "GET", path, fields="status").get("status", {})
        counts, waited = status.get("currentInstanceStatuses", {}), time.monotonic() - began
        running = counts.get("running", 0)
        if running == len(names):
            return
        is_queued = may_queue and counts.get("nonExistent", 0) >= len(names)
        for failed in groups.bulk_errors(status):
            if is_queued and failed.blocks:
                return
            raise failed
        if is_queued and waited > QUEUED:
            return
        if waited > SLICE_TIMEOUT:
            raise not_there(config, zone, names)
        if time.monotonic() > reported + 60:  # a line a minute
            reported = time.monotonic()
            say(f"{running} of {len(names)} machines run after {waited:.0f} s")
            still_trying()
        time.sleep(min(0.5 + waited / 30, 5))


def not_there(config: Config, zone: str, names: list[str]) -> api.OperationFailed:
    """Return the error that names the machines of a slice that did not come."""
    there = {each.name for each in machines(config, [groups.job_of(names)], zone=zone)}
    missing = [name for name in names if name not in there] or names
    message = f"{', '.join(missing)} did not come within {SLICE_TIMEOUT // 60} minutes"
    return api.OperationFailed("RESOURCE_NOT_READY", message)


def group_path(where: str, name: str) -> str:
    """Return the path of a group in a region, or of a slice's in a zone."""
    if prices.region_of(where) == where:
        return groups.path_of(where, name)
    return f"/zones/{where}/instanceGroupManagers/{name}"


# --- what is done to machines


def let_in(config: Config, machine: Machine, line: str) -> bool | None:
    """Add a line to the keys in a machine's metadata.

    Return whether it was new there, None if the machine is gone.
    """
    items = instances.metadata(config, machine)
    if items is None:
        return None
    if line in items.get("ssh-keys", "").splitlines():
        return False
    set_metadata(config, machine, "ssh-keys", lambda old: "\n".join([*old.splitlines(), line]))
    return True


def delete(config: Config, job: str, machines: list[Machine], group: Group = NO_GROUP) -> None:
    """Delete machines, or a job's groups or slice with them, and wait until they are gone.

    The disks of devboxes are deleted with them, as a person chose.
    """
    for machine in machines:
        instances.let_disk_go(config, machine)
    with ThreadPoolExecutor(16) as pool:
        paths = what_to_delete(config, job, machines, group)
        list(pool.map(lambda path: api.delete(config, path, wait_for_it=True), paths))
    if group:
        forget_templates(config, job)
    if not machines or any(each.machine_type in fabric.ROCE for each in machines):
        forget_policies(config, job)


def take_back(config: Config, name: str, sha256: str) -> None:
    """Delete the groups and machines that a submit made, and wait until they are gone."""

    def is_ours(machine: Machine) -> bool:
        return (instances.metadata(config, machine) or {}).get(instances.JOB_SHA256) == sha256

    def remove(path: str) -> None:
        api.delete(config, path, wait_for_it=True)

    made = [each for each in groups.find(config, name) if groups.sha256_of(config, each) == sha256]
    with ThreadPoolExecutor(16) as pool:
        places = [each.get("zone") or each["region"] for each in made]
        list(pool.map(remove, [group_path(place, name) for place in places]))
        found = instances.find(config, [name], [name])  # without those of the groups
        ours = [each for each, own in zip(found, pool.map(is_ours, found), strict=True) if own]
        for machine in ours:
            instances.let_disk_go(config, machine)
        list(pool.map(remove, map(instances.path_of, ours)))
    forget_templates(config, name)
    forget_policies(config, name)


def what_to_delete(
    config: Config, job: str, machines: list[Machine], group: Group
) -> Iterable[str]:
    """Return the paths of machines, or of the groups or the slice that would re-create them."""
    if group:
        return [groups.path_of(each, job) for each in {group.region, *groups.regions(config, job)}]
    slices = []
    if not machines or machines[0].place == "tpu":
        slices = [each["zone"] for each in groups.find(config, job) if "zone" in each]
    return [group_path(zone, job) for zone in slices] or map(instances.path_of, machines)


def forget_templates(config: Config, job: str) -> None:
    """Delete the template of a job, and old ones. They cost nothing, and reap names those that
    stay.
    """
    with contextlib.suppress(api.GoogleError, BergError):
        groups.delete_old_templates(config, job)


def forget_policies(config: Config, job: str = "") -> None:
    """Delete the placement policy of a job, and those of old ones. They cost nothing, and reap
    names those that stay.
    """
    with contextlib.suppress(api.GoogleError, BergError):
        living = {group["name"] for group in groups.find(config)}
        fabric.delete_policies(config, groups.description(config), job, living)


def resources(config: Config) -> list[Resource]:
    """Return groups, disks without a machine, snapshots of moves that failed, and templates and
    workload policies without a group.
    """
    there = groups.find(config)
    found, used = [], set()
    for group in there:
        where, place = (group["zone"], "tpu") if "zone" in group else (group["region"], "gce")
        created_at = group["creationTimestamp"]
        found.append(Resource("group", group["name"], where, created_at, "", place=place))
        used.add(group.get("resourcePolicies", {}).get("workloadPolicy", ""))
    found += [unused_disk(disk) for disk in instances.unused_disks(config)]
    for each in instances.snapshots(config):
        if each["status"] not in instances.UNDER_WAY:
            labels, created_at = each["labels"], each["creationTimestamp"]
            why = f"it is of a move that failed; berg start --move {labels['berg-job']} continues"
            user = labels["berg-user"]
            found.append(Resource("snapshot", each["name"], "", created_at, why, user))
    why = "no group is made from it"
    for each in groups.unused_templates(config, there):
        found.append(Resource("template", each["name"], "", each["creationTimestamp"], why))
    for each in fabric.policies(config, groups.description(config)):
        if "groupPlacementPolicy" in each:
            found.append(policy_resource(each, "", "gce"))
        elif each["selfLink"] not in used:
            found.append(policy_resource(each, "no group has it", "tpu"))
    return found


def policy_resource(policy: dict[str, Any], why: str, place: str) -> Resource:
    region, created_at = api.last_part(policy["region"]), policy["creationTimestamp"]
    return Resource("policy", policy["name"], region, created_at, why, place=place)


def unused_disk(disk: dict[str, Any]) -> Resource:
    user = disk.get("labels", {}).get("berg-user", "")
    zone, created_at = api.last_part(disk["zone"]), disk["creationTimestamp"]
    kind, size = api.last_part(disk["type"]), int(disk["sizeGb"])
    why = "no machine has it"
    if disk.get("labels", {}).get("berg-kind") == "devbox":
        why = "it is a devbox's, with what was put on it, and no machine has it"
    return Resource("disk", disk["name"], zone, created_at, why, user, kind, size)


def remove(config: Config, resource: Resource) -> None:
    """Delete a resource, a group with its machines, if it exists."""
    where, name = resource.where, resource.name
    path = {
        "disk": f"/zones/{where}/disks/{name}",
        "group": group_path(where, name),
        "snapshot": f"/global/snapshots/{name}",
        "template": f"/global/instanceTemplates/{name}",
        "policy": f"/regions/{where}/resourcePolicies/{name}",
    }[resource.kind]
    api.delete(config, path, wait_for_it=True)
