"""Compute Engine as a place for jobs: from a plan to machines, what becomes of them, and their end.

What a place does says places.py. The single requests stand in google/: instances.py, and groups.py
for machines that Google makes anew.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import SCOPES, Config
from berg.google import api, creation, groups, iam, instances, offers, prices, shapes
from berg.job import NO_GROUP, Group, Machine, Resource
from berg.plain import plural
from berg.plan import Choice, Offer, Plan
from berg.spec import JobSpec

STARTUP_SCRIPT = Path(__file__).with_name("machine") / "boot.py"
MOST_REGIONS = 3  # in which a machine waits for room
FLEX_SECONDS = 7200  # for which Google waits for room, at most
warm_up = creation.import_compute
waiting = groups.waiting
set_metadata = instances.set_metadata
console = instances.serial_output
proxy, shell = instances.tunnel, instances.no_shell
login = instances.login


def machines(
    config: Config, jobs: Collection[str] = (), sweeps: Collection[str] = (), *, zone: str = ""
) -> list[Machine]:
    """Return machines as `Place.machines` says. Of those of a job that is named Compute Engine
    vouches for each; in a list of all their names count.
    """
    found = instances.find(config, jobs, sweeps, zone=zone)
    if not jobs:
        return found
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda each: instances.vouched(config, each), found))


# --- what there is for a spec


def choose(config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
    """Return the machines that a spec means; raise BergError where Google has no such ones."""
    if spec.tpu is not None:
        return choose_tpus(config, shapes.parse_tpu(spec.tpu), spec)
    shape = shapes.choose(spec.num_gpus, spec.gpu_type, spec.num_cpus, spec.machine_type)
    is_never_reserved = shape.machine_type.startswith(shapes.NOT_RESERVED)
    from_elsewhere = spec.elsewhere and not (spec.reservation and is_never_reserved)
    shapes.check(shape, config.default_image, from_elsewhere)
    if spec.flex:
        shapes.check_flex(shape)
    return Choice(shape, spec.num_machines, config.default_image, config.default_image_project)


def choose_tpus(config: Config, tpu: shapes.Tpu, spec: JobSpec) -> Choice:
    """Return the machines of TPUs, with an image that is made for these unless one was given."""
    if spec.image:
        image, project = config.default_image, config.default_image_project
    else:
        image, project = tpu.about.image, shapes.TPU_IMAGES
    return Choice(tpu.shape, tpu.hosts, image, project)


def offer(config: Config, spec: JobSpec, choice: Choice, sweep: int) -> Offer:
    """Look up image, zones and quotas; raise BergError where there is no image or no zone."""
    with ThreadPoolExecutor() as pool:
        image = pool.submit(offers.find_image, config, choice.image, choice.image_project)
        likely = likely_region(config)
        quotas = pool.submit(offers.quotas, config, likely)
        reserved = reservation(config, spec, choice)
        zones = zones_to_try(config, spec, choice, reserved)
        odds = []
        if spec.spot:
            odds = offers.odds_by_zone(config, choice.shape, zones, sweep or choice.hosts)
        if not (spec.zones or spec.regions):
            zones = list(dict.fromkeys([*(each.zone for each in odds), *zones]))
        regions = list(dict.fromkeys(prices.region_of(zone) for zone in zones))
        if regions[0] != likely:
            quotas = pool.submit(offers.quotas, config, regions[0])
        ways = pool.map(lambda region: ways_out(config, region), with_ways(config, regions))
        found = Offer(
            shape=choice.shape,
            hosts=choice.hosts,
            image=image.result(),
            zones=zones,
            rows=[],
            ender="Google deletes the machine",
            disk_gb=spec.disk_gb,
            ways=list(ways),
            shortages=shortages(config, spec, choice, sweep, quotas.result()),
            priced=None if reserved else choice.shape,
            reservation=reserved,
            odds=list(map(str, odds)),
        )
    if is_kept(spec, choice, sweep) or is_requested(spec, choice):
        let_wait(found, regions, most_regions(spec, choice.hosts))
        found.heals = healed(spec, choice)
    found.rows = rows(spec, found)
    return found


def likely_region(config: Config) -> str:
    """Return the region whose quotas will matter, but for a spec that names others: who asks now
    need not wait until zones are known.
    """
    if config.zones:
        return prices.region_of(config.zones[0])
    return config.region


def most_regions(spec: JobSpec, hosts: int) -> int:
    """Return in how many regions a job's machines may wait for room: in one where Google makes
    several one after another, so that each region might have some of them, and none all.
    """
    if hosts == 1 or spec.flex:
        return MOST_REGIONS
    return 1


def let_wait(found: Offer, regions: list[str], most: int) -> None:
    """Let machines wait for room in the first of these regions, in so many at most."""
    found.regions = regions[:most]
    found.group = Group(region=regions[0])
    found.zones = [zone for zone in found.zones if prices.region_of(zone) in found.regions]
    found.left_out = regions[most:]


def zones_to_try(
    config: Config, spec: JobSpec, choice: Choice, reserved: offers.Reservation | None
) -> list[str]:
    """Return the zones for a spec's machines: the reservation's, those named, or all of the region;
    of regions that are named the cheapest one's first, after the zones named.
    """
    if reserved:
        return offers.zones_with(config, choice.shape, [reserved.zone])
    if not spec.regions:
        return offers.zones_with(config, choice.shape, config.zones)
    first = offers.zones_with(config, choice.shape, [*spec.zones]) if spec.zones else []
    zones = offers.zones_with(config, choice.shape, regions=spec.regions)
    listed = prices.latest(config, map(prices.region_of, zones))

    def order(zone: str) -> tuple[float, bool, str]:
        there, hourly = listed.get(prices.region_of(zone)), None
        if there:
            hourly = there.per_hour(choice.shape, spec.model, spec.disk_gb)
        return hourly or math.inf, prices.region_of(zone) != config.region, zone

    return list(dict.fromkeys([*first, *sorted(zones, key=order)]))


def reservation(config: Config, spec: JobSpec, choice: Choice) -> offers.Reservation | None:
    """Return the reservation that a spec names; None if it names none."""
    if not spec.reservation:
        return None
    return offers.find_reservation(
        config, spec.reservation, choice.shape.machine_type, list(spec.zones)
    )


def is_kept(spec: JobSpec, choice: Choice, sweep: int) -> bool:
    """Return whether a group makes the machine anew that Google took away.

    Not a devbox's: people would find another one. TPUs and sweeps have no such groups.
    """
    is_job = spec.cmd is not None and not sweep and spec.tpu is None
    return is_job and (spec.spot or spec.wait_for_capacity)


def is_requested(spec: JobSpec, choice: Choice) -> bool:
    """Return whether a group asks for machines by flex-start: for several, which come all at once,
    or for one that may wait longer than two hours.
    """
    return spec.flex and not choice.is_slice and (choice.hosts > 1 or spec.queue_timeout > 0)


def healed(spec: JobSpec, choice: Choice) -> str:
    """Return what a group makes anew, in words; "": nothing."""
    if spec.flex:
        return ""
    if choice.hosts > 1:
        return "lost machines, each made anew in their zone"
    return "lost machines, wherever there is room"


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


def with_ways(config: Config, regions: list[str]) -> list[str]:
    """Return the regions whose ways out matter: those of machines without an external address."""
    return regions if config.no_external_ip else []


def ways_out(config: Config, region: str) -> offers.Ways:
    """Return what leads out of a region; raise BergError if machines would not reach Google."""
    ways = offers.ways(config, region)
    if ways.to_google is False:
        raise BergError(
            "a machine without an external address reaches nothing of Google's from the "
            f"subnetwork {ways.subnetwork} in {ways.region}. "
            f"Let it: {ways.command(to_internet=False)}"
        )
    return ways


def rows(spec: JobSpec, offer: Offer) -> list[tuple[str, str]]:
    """Return what a plan says of the machines."""
    several = f"{offer.hosts} machines, each " if offer.hosts > 1 else ""
    model = {prices.SPOT: ", spot", prices.FLEX: ", flex-start"}.get(spec.model, "")
    return [
        ("Machine", f"{several}{offer.shape}{model}, {spec.disk_gb} GB disk"),
        ("Image", api.last_part(offer.image)),
        ("Zones", ", ".join(offer.zones)),
        *[("", waits_elsewhere(spec, offer))] * bool(offer.left_out),
        *[("Reserved", str(offer.reservation))] * bool(offer.reservation),
        *[("Odds", "\n".join(offer.odds))] * bool(offer.odds),
    ]


def waits_elsewhere(spec: JobSpec, offer: Offer) -> str:
    """Return which regions do not count, because machines wait for room in few at a time."""
    what = "one machine waits" if offer.hosts == 1 else "several machines wait"
    most = plural(most_regions(spec, offer.hosts), "region")
    return f"not in {', '.join(offer.left_out)}: {what} in {most} at most"


def longest_name(first: str, names: list[str]) -> str:
    """Return the longest name that a machine of these gets."""
    return names[-1]


# --- what Google is asked for


def request(plan: Plan) -> dict[str, Any]:
    """Return what each machine is to be, by zone in the order of the attempts, in the API's words.

    Its name is not among it.
    """
    return {zone: body(plan, zone) for zone in plan.offer.zones}


def body(plan: Plan, zone: str) -> dict[str, Any]:
    """Return what a machine is to be in a zone."""
    config, shape, labels = plan.config, plan.offer.shape, labels_of(plan)
    disk = {
        "sourceImage": plan.job.image,
        "diskSizeGb": str(plan.offer.disk_gb),
        "diskType": f"zones/{zone}/diskTypes/{shape.disk_type}",
        "labels": labels,
    }
    items = [{"key": key, "value": value} for key, value in metadata(plan).items()]
    made = {
        "machineType": f"zones/{zone}/machineTypes/{shape.machine_type}",
        "labels": labels,
        "scheduling": scheduling(plan),
        "networkInterfaces": [interface(config, shape, zone)],
        "serviceAccounts": [{"email": config.service_account or "default", "scopes": SCOPES}],
        "metadata": {"items": items},
        "disks": [
            {"boot": True, "autoDelete": not plan.job.stops_when_idle, "initializeParams": disk}
        ],
        **shapes.TPU_EXTRAS.get(shape.machine_type, {}),
    }
    if plan.model == prices.FLEX:
        made |= creation.queued(FLEX_SECONDS)
    if plan.offer.reservation:
        made["reservationAffinity"] = offers.affinity(config, plan.offer.reservation)
    if shape.accelerator:
        kind = f"zones/{zone}/acceleratorTypes/{shape.accelerator}"
        attached = {"acceleratorType": kind, "acceleratorCount": shape.num_gpus}
        made["guestAccelerators"] = [attached]
    return made


def labels_of(plan: Plan) -> dict[str, str]:
    return {
        "berg": "1",
        **plan.owner,
        "berg-kind": plan.job.kind,
        "berg-user": plan.config.user,
        "berg-bucket": instances.bucket_label(plan.config),
    }


def scheduling(plan: Plan) -> dict[str, Any]:
    """Return when Google may stop a machine, and what becomes of it then."""
    found: dict[str, Any] = {
        "maxRunDuration": {"seconds": str(plan.machine_seconds)},
        "instanceTerminationAction": "STOP" if plan.job.keeps_disk else "DELETE",
        "automaticRestart": plan.job.is_restarted and plan.model == prices.STANDARD,
    }
    if plan.spot:
        found["provisioningModel"] = "SPOT"
        # else the machine hears of it with the power-off
        found["preemptionNoticeDuration"] = {"seconds": "120"}
    if plan.model == prices.FLEX:
        found["provisioningModel"] = prices.FLEX
    if plan.offer.reservation and plan.offer.reservation.is_bound:
        found["provisioningModel"] = "RESERVATION_BOUND"
    if plan.spot or plan.offer.shape.num_gpus or plan.job.tpu:
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
    """Return what a machine finds in its metadata."""
    config = plan.config
    found = {
        "berg-bucket": config.bucket,
        **plan.owner,
        "berg-dist": f".berg/dist/{plan.wheel[0]}",
        "startup-script": STARTUP_SCRIPT.read_text(),
        **shapes.driver_metadata(plan.offer.shape.gpu_type),
    }
    if plan.packages[0]:
        found["berg-packages"] = f".berg/dist/{plan.packages[0]}"
    if plan.job.box:
        found["berg-box"] = plan.job.box
    for key, value in plan.checksums.items():
        found[f"berg-{key.replace('_', '-')}"] = value
    if config.endpoint:
        found["berg-endpoint"] = config.endpoint
    found["enable-guest-attributes"] = "TRUE"  # where it tells its host keys
    # OS Login refuses the metadata's keys. Root's the worker installs, whatever the organisation
    # says of OS Login.
    if config.ssh_user != "root":
        found["enable-oslogin"] = "FALSE"
    if plan.ssh_key:
        found["ssh-keys"] = plan.ssh_key
    return found


def preview(config: Config, request: dict[str, Any], names: list[str], keep: bool) -> Any:
    """Return the body of the request that makes the machines, or those that make a group."""
    first = next(iter(request.values()))
    if keep:
        found = []
        for zones in by_region(request):
            body = request[zones[0]]
            shape = groups.shape_of(body)
            found.append(groups.requests(config, shape, zones, body, names))
        return found[0] if len(found) == 1 else found
    return creation.request_body(first, names)


def why_gone(config: Config, job: str, group: Group, zone: str) -> str:
    """Return why machines that were asked for never came, in Google's words; "" if that is not
    known.
    """
    if group:
        return groups.why_failed(config, group.region, job)
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

    Returns the zone, "" while the group has no room. Raises BergError with every zone that was
    tried and why it would not do.
    """
    if keep:
        return create_groups(config, request, names, say)
    what = "the machine" if len(names) == 1 else f"{len(names)} machines"
    hint = "Try other zones (--zone), other or fewer GPUs (-t, -g) or TPUs (--tpu), or --spot"

    def make(zone: str) -> None:
        say(f"Creating {what} in {zone}")
        tries = itertools.count()

        def insert() -> None:
            # Machines of the try before may have begun the job before they went.
            if next(tries):
                still_trying()
            try:
                creation.insert(config, zone, request[zone], names)
            except api.OperationFailed as error:
                is_tpu = api.last_part(request[zone]["machineType"]) in shapes.TPU_TYPES
                raise (groups.tpu_error(error) if is_tpu else error) from None

        iam.once_known(config, insert)

    return in_turn(list(request), make, hint, say, still_trying)


def by_region(zones: Iterable[str]) -> list[list[str]]:
    """Return zones by their regions, in the order of the first of each."""
    found: dict[str, list[str]] = {}
    for zone in zones:
        found.setdefault(prices.region_of(zone), []).append(zone)
    return list(found.values())


def create_groups(
    config: Config, request: dict[str, Any], names: list[str], say: Callable[[str], None]
) -> str:
    """Make a group in each region until one has its machine; return its zone, "" while none has.

    The machine that comes first deletes the other groups (worker.py). Raises what Google said of
    the last region if it lets the machine wait in none of them.
    """
    refused, is_waiting = BergError(""), False
    for zones in by_region(request):
        body = request[zones[0]]
        try:
            zone = groups.create(config, zones, body, names, say)
        except BergError as error:
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


def let_in(config: Config, machine: Machine, line: str) -> bool | None:
    """Add a line to the keys in a machine's metadata.

    Returns whether it was new there, None if the machine is gone.
    """
    items = instances.metadata(config, machine)
    if items is None:
        return None
    if line in items.get("ssh-keys", "").splitlines():
        return False
    set_metadata(config, machine, "ssh-keys", lambda old: "\n".join([*old.splitlines(), line]))
    return True


def delete(config: Config, job: str, machines: list[Machine], group: Group = NO_GROUP) -> None:
    """Delete machines, or a job's groups with them, and wait until they are gone.

    The disks of devboxes go with them, as a person chose.
    """
    for machine in machines:
        instances.let_disk_go(config, machine)
    paths = [instances.path_of(machine) for machine in machines]
    if group:
        regions = {group.region, *groups.regions(config, job)}
        paths = [groups.path_of(region, job) for region in regions]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: api.delete(config, path, wait_for_it=True), paths))


def resources(config: Config) -> list[Resource]:
    """Return groups, disks that no machine has, snapshots of moves that broke off, and templates
    that no group is made from.
    """
    kept = groups.find(config)
    regional = [group for group in kept if "region" in group]
    found = [
        Resource("group", group["name"], group["region"], group["creationTimestamp"], "")
        for group in regional
    ]
    found += [unused_disk(disk) for disk in instances.unused_disks(config)]
    found += [
        left_snapshot(each)
        for each in instances.snapshots(config)
        if each["status"] not in instances.UNDER_WAY
    ]
    why = "no group is made from it"
    found += [
        Resource("template", template["name"], "", template["creationTimestamp"], why)
        for template in groups.unused_templates(config, kept)
    ]
    return found


def unused_disk(disk: dict[str, Any]) -> Resource:
    user = disk.get("labels", {}).get("berg-user", "")
    zone, created_at = api.last_part(disk["zone"]), disk["creationTimestamp"]
    kind, size = api.last_part(disk["type"]), int(disk["sizeGb"])
    why = "no machine has it"
    if disk.get("labels", {}).get("berg-kind") == "devbox":
        why = "it is a devbox's, with what was put on it, and no machine has it"
    return Resource("disk", disk["name"], zone, created_at, why, user, kind, size)


def left_snapshot(snapshot: dict[str, Any]) -> Resource:
    labels, created_at = snapshot["labels"], snapshot["creationTimestamp"]
    why = f"it is of a move that broke off; berg start --move {labels['berg-job']} goes on"
    return Resource("snapshot", snapshot["name"], "", created_at, why, labels["berg-user"])


def remove(config: Config, resource: Resource) -> None:
    """Delete a group, with its machine, or a disk, snapshot or template; what is gone already is
    fine.
    """
    path = {
        "disk": f"/zones/{resource.where}/disks/{resource.name}",
        "group": groups.path_of(resource.where, resource.name),
        "snapshot": f"/global/snapshots/{resource.name}",
        "template": f"/global/instanceTemplates/{resource.name}",
    }[resource.kind]
    api.delete(config, path, wait_for_it=True)
