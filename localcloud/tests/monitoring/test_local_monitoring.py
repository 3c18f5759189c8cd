# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded Cloud Monitoring, by plain HTTP and by gcloud."""

import copy
import json
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from local_cloud import PROJECT, Server, http_session, server  # noqa: F401 (fixtures)
from local_gcloud import Gcloud

DASHBOARD = json.loads(Path(__file__).with_name("dashboard.json").read_text())
DASHBOARDS, SERIES = "v1/projects/{}/dashboards", "v3/projects/{}/timeSeries"


class Api:
    def __init__(self, server, session):
        self.server, self.session = server, session

    def __call__(self, verb, path, body=None, **params):
        url = f"{self.server.url}/monitoring/{path.format(PROJECT)}"
        return self.session.request(verb, url, json=body, params=params)


@pytest.fixture
def api(server, http_session):
    made = Api(server, http_session)
    yield made
    for each in made("GET", DASHBOARDS).json().get("dashboards", []):
        made("DELETE", f"v1/{each['name']}")


def error(answer):
    found = answer.json()["error"]
    assert found["code"] == answer.status_code and "errors" not in found
    return answer.status_code, found["status"], found["message"]


def at(seconds: float = 0) -> str:
    return (
        datetime.fromtimestamp(time.time() + seconds, timezone.utc)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def series(
    kind="custom.googleapis.com/berg/memory_percent", value=1.5, when=None, instance="1", **labels
) -> dict:
    resource = {
        "type": "gce_instance",
        "labels": {"project_id": PROJECT, "zone": "us-central1-a", "instance_id": instance},
    }
    point = {"interval": {"endTime": when or at()}, "value": {"doubleValue": value}}
    return {"metric": {"type": kind, "labels": labels}, "resource": resource, "points": [point]}


def test_the_life_of_a_dashboard(api):
    made = api("POST", DASHBOARDS, DASHBOARD)
    assert made.status_code == 200, made.text
    made = made.json()
    number = made["name"].split("/")[1]
    assert number.isdigit() and made["etag"] and made["displayName"] == "Berg training"
    assert api("GET", f"v1/{made['name']}").json() == made
    assert api("GET", DASHBOARDS, pageSize=1).json()["dashboards"] == [made]
    tried = api("POST", DASHBOARDS, {**DASHBOARD, "displayName": "no"}, validateOnly="true")
    assert tried.ok and len(api("GET", DASHBOARDS).json()["dashboards"]) == 1
    path = f"v1/{made['name']}"
    assert error(api("PATCH", path, {**DASHBOARD}))[:2] == (400, "INVALID_ARGUMENT"), (
        "an etag is needed"
    )
    changed = api("PATCH", path, {**DASHBOARD, "displayName": "Other", "etag": made["etag"]}).json()
    assert changed["displayName"] == "Other" and changed["etag"] != made["etag"]
    late = error(api("PATCH", path, {**DASHBOARD, "etag": made["etag"]}))
    assert late[:2] == (409, "ABORTED")
    assert api("DELETE", path).json() == {} and error(api("GET", path))[:2] == (404, "NOT_FOUND")
    assert error(api("DELETE", path))[0] == 404 and api("GET", DASHBOARDS).json() == {}
    named = {**DASHBOARD, "name": f"projects/{PROJECT}/dashboards/mine"}
    assert api("POST", DASHBOARDS, named).json()["name"] == f"projects/{number}/dashboards/mine"
    assert error(api("POST", DASHBOARDS, named))[:2] == (409, "ALREADY_EXISTS")


def spoiled(change) -> dict:
    body = copy.deepcopy(DASHBOARD)
    change(body)
    return body


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b.pop("displayName"), "displayName must be set"),
        (lambda b: b.update(etag="x"), "etag must not be set"),
        (lambda b: b.pop("mosaicLayout"), "exactly one layout"),
        (lambda b: b.update(gridLayout={}), "exactly one layout"),
        (lambda b: b.update(labels={"No": ""}), "labels"),
        (
            lambda b: b["dashboardFilters"][0].pop("labelKey"),
            "must have a filterType and a labelKey",
        ),
        (lambda b: b["dashboardFilters"][0].update(filterType="LABEL"), "filterType"),
        (lambda b: b["mosaicLayout"].update(columns=0), "columns"),
        (lambda b: b["mosaicLayout"]["tiles"][1].update(xPos=30), "not inside of the 48 columns"),
        (lambda b: b["mosaicLayout"]["tiles"][1].update(xPos=3), "overlaps another tile"),
        (
            lambda b: b["mosaicLayout"]["tiles"][1].update(widget={"title": "x"}),
            "exactly one content",
        ),
        (lambda b: chart(b).update(dataSets=[]), "dataSets must not be empty"),
        (lambda b: chart(b)["dataSets"][0].update(plotType="LINES"), "plotType"),
        (lambda b: chart(b)["dataSets"][0].update(timeSeriesQuery={}), "exactly one query"),
        (
            lambda b: asked(b).update(filter='resource.type="gce_instance"'),
            "must name one metric.type",
        ),
        (lambda b: asked(b)["aggregation"].update(alignmentPeriod="5s"), "at least 60 seconds"),
        (lambda b: asked(b)["aggregation"].pop("perSeriesAligner"), "perSeriesAligner must be set"),
        (
            lambda b: asked(b)["aggregation"].pop("crossSeriesReducer"),
            "groupByFields must not be set",
        ),
        (lambda b: chart(b).update(zAxis={}), "Cannot find field"),
    ],
)
def test_a_dashboard_that_google_would_refuse(api, change, words):
    status, name, message = error(api("POST", DASHBOARDS, spoiled(change)))
    assert (status, name) == (400, "INVALID_ARGUMENT") and words in message


def chart(body: dict) -> dict:
    return body["mosaicLayout"]["tiles"][0]["widget"]["xyChart"]


def asked(body: dict) -> dict:
    return chart(body)["dataSets"][0]["timeSeriesQuery"]["timeSeriesFilter"]


def test_points_are_written_and_read(api, server):
    kind = "custom.googleapis.com/berg/test_percent"
    both = [
        series(kind, 1.0, at(-120), accelerator="0"),
        series(kind, 2.0, at(-120), accelerator="1"),
    ]
    assert api("POST", SERIES, {"timeSeries": both}).json() == {}
    assert api("POST", SERIES, {"timeSeries": [series(kind, 3.0, at(-60), accelerator="0")]}).ok
    asked = {
        "filter": f'metric.type = "{kind}"',
        "interval.startTime": at(-600),
        "interval.endTime": at(),
    }
    found = api("GET", SERIES, **asked).json()["timeSeries"]
    values = {
        each["metric"]["labels"]["accelerator"]: [p["value"]["doubleValue"] for p in each["points"]]
        for each in found
    }
    assert values == {"0": [3.0, 1.0], "1": [2.0]}, "the newest first"
    assert {(each["metricKind"], each["valueType"]) for each in found} == {("GAUGE", "DOUBLE")}
    late = api("GET", SERIES, **{**asked, "interval.startTime": at(-90)}).json()["timeSeries"]
    assert [len(each["points"]) for each in late] == [1]
    assert error(api("GET", SERIES, filter="x"))[0] == 400
    assert (
        api(
            "GET", SERIES, **{**asked, "filter": 'metric.type="a" AND resource.type="b"'}
        ).status_code
        == 501
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: [], "1 to 200 time series"),
        (lambda: [series(instance=str(n)) for n in range(201)], "1 to 200 time series"),
        (lambda: [series(), series()], "Duplicate TimeSeries"),
        (
            lambda: [series("compute.googleapis.com/instance/cpu/utilization")],
            "metric type must be a URL-formatted",
        ),
        (lambda: [series("custom.googleapis.com/")], "metric type must be a URL-formatted"),
        (
            lambda: [{**series(), "resource": {"type": "aws_ec2_instance", "labels": {}}}],
            "unsupported for custom metrics",
        ),
        (
            lambda: [{**series(), "resource": {"type": "gce_instance", "labels": {"zone": "z"}}}],
            "resource.labels",
        ),
        (lambda: [{**series(), "points": []}], "exactly one point"),
        (lambda: [{**series(), "points": [{"interval": {"endTime": at()}}]}], "exactly one value"),
        (lambda: [{**series(), "points": [{"value": {"doubleValue": 1}}]}], "endTime must be set"),
        (lambda: [series(when=at(-26 * 3600))], "more than 25h in the past"),
        (lambda: [series(when=at(600))], "5 minutes in the future"),
        (lambda: [{**series(), "metricKind": "DELTA"}], "metricKind"),
        (lambda: [{**series(), "valueType": "INT64"}], "valueType does not fit"),
        (lambda: [{**series(), "metrics": {}}], "Cannot find field"),
        (lambda: [series("custom.googleapis.com/x", **{"bad-label": "1"})], "metric.labels"),
    ],
)
def test_points_that_google_would_refuse(api, made, words):
    status, name, message = error(api("POST", SERIES, {"timeSeries": made()}))
    assert (status, name) == (400, "INVALID_ARGUMENT") and words in message


def test_points_come_in_order_and_not_too_often(api):
    kind = "custom.googleapis.com/berg/ordered"
    assert api("POST", SERIES, {"timeSeries": [series(kind, when=at(-60))]}).ok
    assert (
        "written in order"
        in error(api("POST", SERIES, {"timeSeries": [series(kind, when=at(-70))]}))[2]
    )
    assert (
        "more frequently"
        in error(api("POST", SERIES, {"timeSeries": [series(kind, when=at(-57))]}))[2]
    )
    whole = series(kind, when=at(-30))
    whole["points"][0]["value"] = {"int64Value": "3"}
    assert "descriptor has DOUBLE" in error(api("POST", SERIES, {"timeSeries": [whole]}))[2]
    assert api("POST", SERIES, {"timeSeries": [series(kind, when=at(-30))]}).ok


def test_other_projects_and_methods(api):
    assert error(api("GET", "v1/projects/nowhere/dashboards"))[:2] == (403, "PERMISSION_DENIED")
    assert api("POST", f"v3/projects/{PROJECT}/timeSeries:query", {"query": "x"}).status_code == 501
    assert api("GET", f"v2/projects/{PROJECT}/dashboards").status_code == 404


@pytest.mark.slow
def test_gcloud_sees_the_dashboard(api, server, tmp_path):
    gcloud = Gcloud(server.url, PROJECT, server.token(), tmp_path)
    file = tmp_path / "dashboard.json"
    file.write_text(json.dumps(DASHBOARD))
    gcloud("monitoring", "dashboards", "create", f"--config-from-file={file}")
    (listed,) = json.loads(gcloud("monitoring", "dashboards", "list", "--format=json"))
    assert listed["displayName"] == "Berg training"
    described = json.loads(
        gcloud("monitoring", "dashboards", "describe", listed["name"], "--format=json")
    )
    assert described["mosaicLayout"] == DASHBOARD["mosaicLayout"]
    gcloud("monitoring", "dashboards", "delete", listed["name"])
    assert api("GET", DASHBOARDS).json() == {}
