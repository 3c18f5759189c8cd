"""What the controllers decide, without a server: from what is observed alone."""

import pytest

from localcloud.kubernetes import containers, deployments, jobs
from localcloud.kubernetes.defaults import INDEX

# --- deployments


def seen(template="new", sizes=None, old_pods=0):
    return deployments.Observed(template, sizes or {}, old_pods)


@pytest.mark.parametrize(
    ("strategy", "observed", "create", "sizes"),
    [
        ("RollingUpdate", seen(), True, {}),
        ("RollingUpdate", seen(sizes={"old": 2}, old_pods=2), True, {"old": 0}),
        ("Recreate", seen(sizes={"old": 2}, old_pods=2), False, {"old": 0}),
        ("Recreate", seen(sizes={"old": 0}, old_pods=1), False, {}),
        ("Recreate", seen(sizes={"old": 0}), True, {}),
        ("RollingUpdate", seen(sizes={"new": 1, "old": 0}), False, {"new": 3}),
        ("RollingUpdate", seen(sizes={"new": 3}), False, {}),
    ],
)
def test_the_sets_of_replicas_of_a_deployment(strategy, observed, create, sizes):
    spec = {"replicas": 3, "strategy": {"type": strategy}}
    assert deployments.decide(spec, observed) == deployments.Decision(create, sizes)


# --- jobs


def pod(index):
    return {"metadata": {"annotations": {INDEX: str(index)}}, "status": {}}


def job(completions=3, parallelism=2, mode="Indexed", status=None, **spec):
    base = {"completions": completions, "parallelism": parallelism, "completionMode": mode}
    base |= {"backoffLimit": 1, "podReplacementPolicy": "TerminatingOrFailed"}
    return {"metadata": {"name": "j"}, "spec": {**base, **spec}, "status": status or {}}


def indexes(job, live=()):
    return jobs.missing(job, [pod(each) for each in live])


def test_the_pods_that_a_job_lacks():
    assert indexes(job()) == [0, 1]
    assert indexes(job(), live=[0]) == [1]
    assert indexes(job(status={"completedIndexes": "0"}), live=[1]) == [2]
    assert indexes(job(status={"completedIndexes": "0-1"})) == [2]
    assert indexes(job(), live=[0, 1]) == []
    plain = {"mode": "NonIndexed"}
    assert indexes(job(**plain)) == [None, None]
    assert indexes(job(**plain, status={"succeeded": 2})) == [None]
    assert indexes(job(**plain, completions=None)) == [None, None]
    assert indexes(job(**plain, completions=None, status={"succeeded": 1})) == []


def test_a_job_waits_after_pods_that_failed():
    waits = lambda failures, now: jobs.waits(10.0, {"failures": failures, "at": 95.0}, now)
    assert not waits(0, 95.0)
    assert waits(1, 100.0) and not waits(1, 105.0)
    assert waits(2, 105.0) and not waits(2, 115.0)
    assert waits(50, 94.0 + jobs.LONGEST) and not waits(50, 95.0 + jobs.LONGEST)
    nothing = jobs.Observed([], [], 0, [])
    assert jobs.decide(job(), nothing, None, True).missing == []


def test_a_job_that_is_over_gets_no_pods():
    nothing = jobs.Observed([], [], 0, [])
    failed = ("Failed", "PodFailurePolicy", "why")
    assert jobs.decide(job(), nothing, failed, False) == jobs.Decision(over=failed)
    enough = job(completions=1, status={"succeeded": 1, "completedIndexes": "0"})
    assert jobs.decide(enough, nothing, None, False).over[:2] == (
        "Complete",
        "CompletionsReached",
    )
    begun = job(
        status={
            "conditions": [
                {"type": "FailureTarget", "status": "True", "reason": "r", "message": "m"}
            ]
        }
    )
    assert jobs.decide(begun, nothing, None, False).over == ("Failed", "r", "m")
    leaving = job()
    leaving["metadata"]["deletionTimestamp"] = "now"
    assert jobs.decide(leaving, nothing, None, False) == jobs.Decision()


def test_pods_beyond_the_parallelism_go():
    pods = [pod(each) for each in range(3)]
    decided = jobs.decide(job(), jobs.Observed(pods, [], 0, pods), None, False)
    assert (decided.surplus, decided.missing, decided.over) == (pods[2:], [], None)


# --- containers


def test_how_a_container_is_started():
    image = {"Env": ["A=image", "B=image"], "WorkingDir": "/app", "Cmd": ["serve"]}
    spec = {"metadata": {"name": "pod"}, "spec": {"shareProcessNamespace": True}}
    words = {"command": ["run", "$(B)", "$(HOSTNAME)"]}
    usual = {"PATH": "/bin", "A": "usual"}
    made = containers.decide(8443, spec, words, image, usual, {"B": "pod"})
    assert made.words == ["run", "pod", "pod"]
    assert (made.env["PATH"], made.env["A"], made.env["B"]) == ("/bin", "image", "pod")
    assert made.env["KUBERNETES_SERVICE_PORT"] == "8443"
    assert (made.workdir, made.hostname, made.shared) == ("/app", "pod", True)
    named = {"metadata": {"name": "pod"}, "spec": {"hostname": "host"}}
    bare = containers.decide(1, named, {"workingDir": "/w"}, image, usual, {})
    assert (bare.words, bare.workdir, bare.hostname) == (["serve"], "/w", "host")
    assert containers.decide(1, named, {}, {}, usual, {}).words == ["sleep", "infinity"]
