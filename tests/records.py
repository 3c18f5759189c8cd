"""Jobs that nobody ran and machines without a worker, for tests of what commands make of them: each
costs a request.
"""

import time
from typing import Any

from conftest import Cloud

from berg import gce, google
from berg import job as jobs
from berg.job import Job, State

CODE, MACHINE = {"head": "", "commit": "", "changed": []}, "the id of its machine"


def put(
    cloud: Cloud,
    name: str,
    outcome: str = "SUCCEEDED",
    ago: float = 3600,
    took: float = 1800,
    job: dict[str, Any] | None = None,
    results: dict[str, bytes] | None = None,
    log: bytes = b"",
    **values: Any,
) -> Job:
    """Write what the bucket has of a job that was submitted so many seconds ago, and ran so long."""
    user, at = values.pop("user", cloud.config.user), time.time() - ago
    seconds = (0, 60, 70, max(70, 60 + took))
    submitted, begun, running, ended = (jobs.now(at + after) for after in seconds)
    folder = values.pop("folder", name)
    about = {"cmd": "true", "repo": "r", "code": CODE, "results": folder, "user": user}
    made = Job(**{"name": name, "created_at": submitted, **about, **(job or {})})
    times = {"SUBMITTED": submitted, "STARTING": begun, "RUNNING": running}
    if outcome not in times:
        times[outcome] = ended
    times = {step: times[step] for step in times if outcome != "SUBMITTED" or step == outcome}
    state = State(
        name, outcome, user, results=folder, created_at=submitted, times=times, id=made.id
    )
    for key, value in {"is_devbox": made.is_devbox, **values}.items():
        setattr(state, key, value if value != MACHINE else gce.machines(cloud.config, name)[0].id)
    cloud.bucket.write(jobs.job_path(name), made.content())
    cloud.bucket.write(jobs.state_path(name), state.content(), about=state.about())
    for path, content in (results or {}).items():
        cloud.bucket.write(f"berg_results/{folder}/{path}", content)
    if log:
        cloud.bucket.write(f".berg/logs/{name}/{name}.20260101T000000.log", log)
    return made


def put_row(cloud: Cloud, sweep: Job, number: int, outcome: str, **values: Any) -> State:
    """Write the state of a row, which ran for ten seconds."""
    name, at = f"{sweep.name}/{number}", time.time() - 100
    times = {"RUNNING": jobs.now(at), outcome: jobs.now(at + 10 * (outcome != "RUNNING"))}
    about = {"results": name, "created_at": sweep.created_at, "times": times, "id": sweep.id}
    state = State(name, outcome, sweep.user, **{**about, **values})
    cloud.bucket.write(jobs.state_path(name), state.content(), about=state.about())
    return state


def machine(
    cloud: Cloud, name: str, job: Job | None = None, user: str = "", kind: str = "job"
) -> gce.Machine:
    """Make a machine that runs nothing, as one of a job, or of a name without a record."""
    config, zone = cloud.config, "us-central1-a"
    labels = {"berg": "1", "berg-bucket": gce.bucket_label(config), "berg-kind": kind}
    labels |= {"berg-job": job.name if job else name, "berg-user": user or config.user}
    project, family = config.default_image.split("/")
    image = f"projects/{project}/global/images/family/{family}"
    parameters = {"sourceImage": image, "labels": labels}
    body = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/e2-medium",
        "labels": labels,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": parameters}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": [{"key": "berg-job-sha256", "value": job.sha256 if job else "-"}]},
    }
    google.do(config, "POST", f"/zones/{zone}/instances", body)
    (made,) = [each for each in gce.machines(config) if each.name == name]
    return made
