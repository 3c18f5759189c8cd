"""Several GPU types would do: which one a job gets."""

import json

import pytest


def types_in(shown) -> list[str]:
    return [line.split()[1] for line in shown.stderr.splitlines() if line.startswith("Machine ")]


def tried_without_room(berg, *options: str, **more):
    """A job of several types of which the first has no quota."""
    return berg("run", "-t", "t4,l4", "-n", "either", *options, "true", **more)


@pytest.fixture
def no_t4(cloud):
    """The project has no quota for T4s, of either kind."""
    before = {}
    for metric in ("NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"):
        region = cloud.call("GET", "/compute/v1/projects/berg-local/regions/us-central1")
        before[metric] = next(row["limit"] for row in region["quotas"] if row["metric"] == metric)
        limit = {"metric": metric, "limit": 0, "region": "us-central1"}
        cloud.call("POST", "/_berg/quotas", limit)
    yield
    for metric, limit in before.items():
        body = {"metric": metric, "limit": limit, "region": "us-central1"}
        cloud.call("POST", "/_berg/quotas", body)


def test_the_next_type_is_tried_where_there_is_no_room(berg, no_t4):
    (berg.repo / "sub").mkdir()
    (berg.repo / "sub/requirements.txt").write_text("")
    ran = tried_without_room(berg, cwd=berg.repo / "sub")
    assert ran.returncode == 0, ran.stderr
    assert types_in(ran) == ["n1-standard-8", "g2-standard-12"]
    assert "GPU types to try, in this order: t4, l4\n" in ran.stderr
    assert "No room for t4: now l4\n" in ran.stderr
    job = json.loads(berg("show", "either", "--json").stdout)["metadata"]
    assert (job["gpu_type"], job["spec"]["gpu_type"]) == ("l4", "l4")
    assert (job["spec"]["cwd"], job["installation"]["folder"]) == ("sub", "sub")


@pytest.mark.slow
def test_what_would_wait_for_one_type_takes_the_next_one_instead(berg, no_t4):
    ran = tried_without_room(berg, "--spot")
    assert ran.returncode == 0, ran.stderr
    assert "there is no room for n1-standard-8 with 1 x t4 now" in ran.stderr or (
        "Quota" in ran.stderr
    )
    assert json.loads(berg("show", "either", "--json").stdout)["metadata"]["gpu_type"] == "l4"


def test_what_could_not_be_taken_back_ends_the_search(berg, cloud, no_t4):
    """Else the first type's group would get its machine one day, and the job would run twice."""
    method = "compute.regionInstanceGroupManagers.delete"
    cloud.fault(method, status=403, times=9)
    ran = berg("run", "-t", "t4,l4,a100", "--spot", "true")
    cloud.call("DELETE", "/_berg/faults")
    assert ran.returncode == 1, ran.stderr
    assert "That failed" in ran.stderr and "there is a job" in ran.stderr
    (job,) = json.loads(berg("list", "--json").stdout)
    killed = berg("kill", job["name"])
    assert killed.returncode == 0, killed.stderr
    assert not berg.machines()


@pytest.mark.slow
def test_without_room_for_any_the_last_one_s_reason_counts_and_nothing_is_left(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {})
    ran = tried_without_room(berg)
    assert ran.returncode == 1 and "no machine could be created" in ran.stderr
    assert types_in(ran) == ["n1-standard-8", "g2-standard-12"]
    assert not berg.machines() and not berg.objects(".berg/jobs/")


@pytest.mark.parametrize(
    ("options", "machine"),
    [
        ((), "n1-standard-8"),  # one T4
        (("--gpu-memory", "24"), "g2-standard-12"),
        (("--gpu-memory", "40"), "a2-highgpu-1g"),
        (("--gpu-memory", "80"), "g4-standard-48"),
        (("--gpu-memory", "80", "--spot", "-g", "8"), "a4-highgpu-8g"),  # A100s have no price
        (("--gpu-memory", "20", "--flex"), "g2-standard-12"),
    ],
)
def test_the_cheapest_that_has_the_memory_and_a_price(berg, options, machine):
    shown = berg("run", "-t", "cheapest", "--dry-run", "--json", *options, "true")
    assert shown.returncode == 0, shown.stderr
    assert types_in(shown)[0] == machine


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-t", "l4", "--gpu-memory", "40"), "give -t cheapest"),
        (("-t", "cheapest", "--gpu-memory", "400"), "no GPU of at least 400 GB"),
        (("-t", "l4,,t4"), "no GPU type between two commas"),
        (("-t", "l4,x9"), "unknown GPU type 'x9'"),
        (("-t", "l4,t4", "--machine-type", "n1-standard-8"), "-g and -t say alone"),
        (("-t", "l4,t4", "--grid", "x=1,2"), "one GPU type for a sweep"),
    ],
)
def test_what_cannot_be_chosen_from_is_named(berg, options, says):
    command = "echo {x}" if "--grid" in options else "true"
    refused = berg("run", *options, command)
    assert refused.returncode == 1 and says in refused.stderr, refused.stderr
    assert not berg.machines()
