"""What there is in a place for jobs: machines, and other resources that may be left over."""

from dataclasses import dataclass, field


@dataclass
class Machine:
    """A machine as the place that it is in tells of it. The words of its status are Compute
    Engine's.
    """

    name: str
    zone: str
    status: str = ""
    id: str = ""  # tells it from an earlier one of its name
    labels: dict[str, str] = field(default_factory=dict)
    created_at: str = ""
    external_ip: str = ""
    internal_ip: str = ""
    gpus: str = ""  # such as 4 x p100
    machine_type: str = ""
    model: str = "STANDARD"  # how it is paid for, in the API's words
    disk_gb: int = 0  # of all of its disks
    account: str = ""  # that it acts as
    place: str = "gce"
    pod: str = ""  # its name in Kubernetes, where it is a pod
    note: str = ""  # what it waits for, in words
    is_vain: bool = False  # those before it ended alike, again and again, before they began
    is_queued: bool = False  # its cluster holds it back until it is its turn
    silence: str = ""  # that the node it is on does not answer, in words


@dataclass
class Login:
    """How to log in to a machine, in its own words."""

    rank: int
    port: int  # of its ssh server; 0: it runs none
    host_keys: list[str]


@dataclass
class Resource:
    """What a place has for jobs beside machines, such as a disk."""

    kind: str
    name: str
    where: str  # zone or region; "": everywhere
    created_at: str
    why: str  # why nobody needs it; "": as long as its job is not over
    user: str = ""  # "": shared
    disk_type: str = ""  # of a disk
    gb: int = 0  # of a disk
    place: str = "gce"
