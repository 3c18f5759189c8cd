"""What the machines' account may do: custom roles, and on which objects of the bucket they hold.

A job's code acts as this account. It may read what laptops wrote, write results, logs and states,
and nothing else: no code, no package, no job and no data set of anybody's. Conditions of IAM say so
by the prefix of an object's name, each with a `/` at its end, because `a/b` would let `a/bc` in. A
list is asked for on the bucket, where a condition on objects never holds: it is a right of its own.

Not covered: telling the jobs of one account from each other, which IAM cannot.
"""

import re
from dataclasses import dataclass

DEFAULT_ACCOUNT = re.compile(r"\d+-compute@developer\.gserviceaccount\.com|default|")
DEFAULT_IS_WIDE = (
    "the project's default account usually is Editor of the project: with it a job may change what "
    "any machine runs, everybody's code, results and secrets, and berg keeps nothing from it"
)
STATES = (".berg/jobs/", "_state.json")  # begin and end of the names of states
MACHINES = (
    "compute.instances.list",  # which machines of the job live
    "compute.instances.delete",  # itself, and the others when the job is over
    # The job's group, which would re-create the machine. Compute Engine checks both of these. Not
    # `update`: groups take no condition, so a job could change the startup script of other groups.
    "compute.instanceGroupManagers.delete",
    "compute.instanceGroups.delete",
)


@dataclass(frozen=True)
class Right:
    """A custom role, and the objects that it holds for: none of them means no condition."""

    role: str
    title: str
    permissions: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    states: bool = False  # the states of jobs as well
    on_bucket: bool = True  # else on the project

    @property
    def words(self) -> str:
        """Say where the right holds, for people."""
        if not self.prefixes:
            return ""
        return " below " + ", ".join(self.prefixes) + (" and states" if self.states else "")

    def condition(self, bucket: str) -> dict[str, str] | None:
        """Return the condition of the binding on a bucket, as IAM writes one."""
        if not self.prefixes:
            return None
        parts = [is_below(bucket, prefix) for prefix in self.prefixes]
        if self.states:
            begin, end = STATES
            parts.append(f'({is_below(bucket, begin)} && resource.name.endsWith("{end}"))')
        return {"title": self.role, "expression": " || ".join(parts)}


def is_below(bucket: str, prefix: str) -> str:
    """Return the condition that an object's name begins with a prefix, as IAM writes one."""
    return f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")'


MACHINE = Right("bergWorker", "Berg's machines", MACHINES, on_bucket=False)
READ = Right(
    "bergReader",
    "Berg's machines read code, jobs and data",
    ("storage.objects.get",),
    (".berg/dist/", ".berg/repos/", ".berg/jobs/", ".berg/sweeps/", "data/"),
)
WRITE = Right(
    "bergWriter",
    "Berg's machines write results, logs and states",
    ("storage.objects.create", "storage.objects.delete", "storage.objects.get"),
    (
        "berg_results/",
        ".berg/logs/",
        ".berg/machines/",
        ".berg/folders/",
        ".berg/tmp/",
    ),
    states=True,
)
LIST = Right("bergLister", "Berg's machines list objects", ("storage.objects.list",))
RIGHTS = (MACHINE, READ, WRITE, LIST)  # of the machines' account
# On one secret each, which its job gives (secret.py).
SECRET = Right(
    "bergSecret",
    "Berg's machines read and delete the secret of their job",
    ("secretmanager.secrets.delete", "secretmanager.versions.access"),
)
ROLES = (*RIGHTS, SECRET)


def is_default(email: str) -> bool:
    """Return whether an account is the default one of a project, which "" stands for, too."""
    return bool(DEFAULT_ACCOUNT.fullmatch(email))


def role_name(project: str, right: Right) -> str:
    """The full name of a custom role in a project."""
    return f"projects/{project}/roles/{right.role}"
