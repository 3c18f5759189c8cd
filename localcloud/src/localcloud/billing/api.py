"""Cloud Billing Catalog: the public price list, as far as it is of interest here. It takes any
token and no right.

A few of Compute Engine's and Kubernetes Engine's SKUs with what Google published for them in 2026-07, and what else stands
between them there: commitments, reserved ones for nothing, those of other regions.

Not covered: all other SKUs and services, currencies but USD, former prices, billing accounts.
"""

from typing import Any

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, unserved

COMPUTE, KUBERNETES = "6F81-5844-456A", "CCD8-9BF1-090E"
SERVICES = {
    COMPUTE: "Compute Engine",
    KUBERNETES: "Kubernetes Engine",
    "95FF-2EF5-5EA1": "Cloud Storage",
}
MOST = 5000  # SKUs in a page
CENTRAL, AMERICAS, EAST5 = ("us-central1",), ("us-central1", "us-east1", "us-west1"), ("us-east5",)
FRANKFURT, WEST4 = ("europe-west3",), ("europe-west4",)
SPOT = "attached to Spot Preemptible VMs"
FLEX = "attached to DWS Defined Duration VMs"
# Description, resource group, usage type, USD for each unit, unit, regions. A usage type is no help:
# flex-start is "OnDemand", and so are TPUs' Spot machines.
ROWS = (
    ("Commitment v1: A2 Core in Americas for 1 Year", "CPU", "Commit1Yr", 0.01991, "h", AMERICAS),
    ("Commitment v1: Local SSD in Americas for 1 Year", "SSD", "Commit1Yr", 0.05, "h", AMERICAS),
    ("Reserved Nvidia Tesla A100 GPU in Americas", "GPU", "OnDemand", 0.0, "h", AMERICAS),
    ("Reserved A2 Instance Core running in Americas", "CPU", "OnDemand", 0.0, "h", AMERICAS),
    ("N1 Predefined Instance Core running in Americas", "N1Standard", "OnDemand", 0.031611, "h", AMERICAS),
    ("N1 Predefined Instance Ram running in Americas", "N1Standard", "OnDemand", 0.004237, "GiBy.h", AMERICAS),
    ("Spot Preemptible N1 Predefined Instance Core running in Americas", "N1Standard", "Preemptible", 0.00698, "h", AMERICAS),
    ("Spot Preemptible N1 Predefined Instance Ram running in Americas", "N1Standard", "Preemptible", 0.00094, "GiBy.h", AMERICAS),
    ("N1 Predefined Instance Core running in Frankfurt", "N1Standard", "OnDemand", 0.040744, "h", FRANKFURT),
    ("Custom Instance Core running in Americas", "CPU", "OnDemand", 0.033174, "h", AMERICAS),
    ("E2 Instance Core running in Americas", "CPU", "OnDemand", 0.02181159, "h", AMERICAS),
    ("E2 Instance Ram running in Americas", "RAM", "OnDemand", 0.00292353, "GiBy.h", AMERICAS),
    ("Spot Preemptible E2 Instance Core running in Americas", "CPU", "Preemptible", 0.006543, "h", AMERICAS),
    ("Spot Preemptible E2 Instance Ram running in Americas", "RAM", "Preemptible", 0.000877, "GiBy.h", AMERICAS),
    ("Nvidia Tesla T4 GPU running in Americas", "GPU", "OnDemand", 0.35, "h", AMERICAS),
    (f"Nvidia Tesla T4 GPU {SPOT} running in Americas", "GPU", "Preemptible", 0.1155, "h", AMERICAS),
    ("Nvidia Tesla P100 GPU running in Americas", "GPU", "OnDemand", 1.46, "h", AMERICAS),
    ("Nvidia Tesla V100 GPU running in Americas", "GPU", "OnDemand", 2.48, "h", AMERICAS),
    ("G2 Instance Core running in Americas", "CPU", "OnDemand", 0.024988, "h", AMERICAS),
    ("G2 Instance Ram running in Americas", "RAM", "OnDemand", 0.002927, "GiBy.h", AMERICAS),
    ("Nvidia L4 GPU running in Americas", "GPU", "OnDemand", 0.56004, "h", AMERICAS),
    ("Spot Preemptible G2 Instance Core running in Americas", "CPU", "Preemptible", 0.01, "h", AMERICAS),
    ("Spot Preemptible G2 Instance Ram running in Americas", "RAM", "Preemptible", 0.00117, "GiBy.h", AMERICAS),
    (f"Nvidia L4 GPU {SPOT} running in Americas", "GPU", "Preemptible", 0.224, "h", AMERICAS),
    ("DWS Defined Duration G2 Core running in Americas", "CPU", "OnDemand", 0.01375, "h", AMERICAS),
    ("DWS Defined Duration G2 Ram running in Americas", "RAM", "OnDemand", 0.00161, "GiBy.h", AMERICAS),
    (f"Nvidia L4 GPU {FLEX} running in Americas", "GPU", "OnDemand", 0.308, "h", AMERICAS),
    ("A2 Instance Core running in Americas", "CPU", "OnDemand", 0.03161, "h", AMERICAS),
    ("A2 Instance Ram running in Americas", "RAM", "OnDemand", 0.00424, "GiBy.h", AMERICAS),
    ("Nvidia Tesla A100 GPU running in Americas", "GPU", "OnDemand", 2.93391, "h", AMERICAS),
    ("Nvidia Tesla A100 80GB GPU running in Americas", "GPU", "OnDemand", 3.93, "h", AMERICAS),
    ("Spot Preemptible A2 Instance Core running in Americas", "CPU", "Preemptible", 0.01659, "h", AMERICAS),
    ("Spot Preemptible A2 Instance Ram running in Americas", "RAM", "Preemptible", 0.00222, "GiBy.h", AMERICAS),
    (f"Nvidia Tesla A100 GPU {SPOT} running in Americas", "GPU", "Preemptible", 1.5399, "h", AMERICAS),
    ("DWS Calendar Mode A2 Core running in Americas", "CPU", "OnDemand", 0.02, "h", AMERICAS),
    ("DWS Defined Duration A2 Core running in Americas", "CPU", "OnDemand", 0.01739, "h", AMERICAS),
    ("DWS Defined Duration A2 Ram running in Americas", "RAM", "OnDemand", 0.00233, "GiBy.h", AMERICAS),
    (f"Nvidia Tesla A100 GPU {FLEX} running in Americas", "GPU", "OnDemand", 1.61365, "h", AMERICAS),
    # On demand, GPUs as of 2026-07-07. Core and memory: what Vertex AI billed in 2025-08, less its 15 %.
    ("Nvidia H100 80GB GPU running in Americas", "GPU", "OnDemand", 9.796550569, "h", AMERICAS),
    ("A3 Instance Core running in Americas", "CPU", "OnDemand", 0.025498, "h", AMERICAS),
    ("A3 Instance Ram running in Americas", "RAM", "OnDemand", 0.00222, "GiBy.h", AMERICAS),
    # By flex-start, of a bill of 2025-08.
    (f"Nvidia H100 80GB GPU {FLEX} running in Americas", "GPU", "OnDemand", 4.200761, "h", AMERICAS),
    ("DWS Defined Duration A3 Core running in Americas", "CPU", "OnDemand", 0.010934, "h", AMERICAS),
    ("DWS Defined Duration A3 Ram running in Americas", "RAM", "OnDemand", 0.000952, "GiBy.h", AMERICAS),
    ("DWS Defined Duration SSD backed Local Storage running in Americas", "LocalSSD", "OnDemand", 0.08, "GiBy.mo", AMERICAS),
    # As of 2026-07-07; what their machines' cores and memory cost is not known here.
    ("Nvidia H100 80GB Plus GPU running in Americas", "GPU", "OnDemand", 10.344275712, "h", AMERICAS),
    ("H200 141GB GPU running in Americas", "GPU", "OnDemand", 9.31174, "h", AMERICAS),
    # As of 2026-07, from the page of the SKU group "G4 on demand".
    ("G4 Instance Core running in Iowa", "CPU", "OnDemand", 0.04891, "h", CENTRAL),
    ("G4 Instance Ram running in Iowa", "RAM", "OnDemand", 0.00587, "GiBy.h", CENTRAL),
    ("RTX 6000 96GB running in Iowa", "GPU", "OnDemand", 1.09565, "h", CENTRAL),
    ("A4 Nvidia B200 (1 gpu slice) running in Americas", "GPU", "OnDemand", 16.11, "h", CENTRAL),
    (f"A4 Nvidia B200 (1 gpu slice) {SPOT} running in Americas", "GPU", "Preemptible", 4.95, "h", CENTRAL),
    (f"A4 Nvidia B200 (1 gpu slice) {FLEX} running in Americas", "GPU", "OnDemand", 8.06, "h", CENTRAL),
    ("Capacity Optimized TpuV6e running in Columbus", "TPU", "OnDemand", 2.75, "h", EAST5),
    ("TpuV6e running in Columbus", "TPU", "OnDemand", 2.70, "h", EAST5),
    (f"TpuV6e {SPOT} running in Columbus", "TPU", "OnDemand", 1.4033, "h", EAST5),
    ("DWS Defined Duration V6e running in Columbus", "TPU", "OnDemand", 1.35, "h", EAST5),
    # As of 2026-06-14, and of 2026-07 and 2026-08.
    ("TPU7x running in Americas", "TPU", "OnDemand", 12.0, "h", AMERICAS),
    ("TpuV5p running in Iowa", "TPU", "OnDemand", 4.20, "h", CENTRAL),
    (f"TpuV5p {SPOT} running in Iowa", "TPU", "Preemptible", 0.836, "h", CENTRAL),
    ("TpuV6e running in Netherlands", "TPU", "OnDemand", 2.97, "h", WEST4),
    (f"TpuV6e {SPOT} running in Netherlands", "TPU", "Preemptible", 1.782, "h", WEST4),
    ("DWS Defined Duration V6e running in Netherlands", "TPU", "OnDemand", 1.35, "h", WEST4),
    ("Regional Balanced PD Capacity", "SSD", "OnDemand", 0.2, "GiBy.mo", AMERICAS),
    ("Balanced PD Capacity", "SSD", "OnDemand", 0.1, "GiBy.mo", AMERICAS),
    ("SSD backed PD Capacity", "SSD", "OnDemand", 0.17, "GiBy.mo", AMERICAS),
    ("Storage PD Capacity", "PDStandard", "OnDemand", 0.04, "GiBy.mo", AMERICAS),
    ("Balanced PD Capacity in Columbus", "SSD", "OnDemand", 0.1, "GiBy.mo", EAST5),
    ("Hyperdisk Balanced Capacity in Columbus", "SSD", "OnDemand", 0.08, "GiBy.mo", EAST5),
    ("Hyperdisk Balanced IOPS in Iowa", "SSD", "OnDemand", 0.005, "mo", CENTRAL),
    ("Hyperdisk Balanced Capacity in Iowa", "SSD", "OnDemand", 0.08, "GiBy.mo", CENTRAL),
    ("SSD backed Local Storage", "LocalSSD", "OnDemand", 0.08, "GiBy.mo", AMERICAS),
    (f"SSD backed Local Storage {SPOT}", "LocalSSD", "OnDemand", 0.048, "GiBy.mo", AMERICAS),
    ("Network Internet Egress from Americas to Americas", "PremiumInternetEgress", "OnDemand", 0.12, "GiBy", AMERICAS),
)  # fmt: skip
# The fees for clusters are the same everywhere.
CLUSTER_ROWS = (
    ("Autopilot Kubernetes Clusters", "Compute", "OnDemand", 0.1, "h", ("global",)),
    ("Extended Period Kubernetes Clusters", "Compute", "OnDemand", 0.5, "h", ("global",)),
    ("Regional Kubernetes Clusters", "Compute", "OnDemand", 0.1, "h", ("global",)),
    ("Zonal Kubernetes Clusters", "Compute", "OnDemand", 0.1, "h", ("global",)),
)
SKUS = {COMPUTE: ROWS, KUBERNETES: CLUSTER_ROWS}


async def list_skus(cloud: Cloud, call: Call) -> dict:
    service = call.params["parent"].partition("/")[2]
    if service not in SERVICES:
        raise ApiError(404, "notFound", f"Service {call.params['parent']} not found.")
    unserved(call.params.get("currencyCode", "USD") != "USD", "prices but in USD")
    rows = SKUS.get(service, ())
    skus = [sku(service, number, *row) for number, row in enumerate(rows)]
    return page(call, "skus", skus)


def page(call: Call, key: str, rows: list[dict]) -> dict:
    """One page of a list; the token is where the next one begins."""
    size, token = call.params.get("pageSize", MOST), call.params.get("pageToken") or "0"
    if not 0 <= size <= MOST or not token.isdigit():
        raise ApiError(
            400, "invalid", f"Invalid page size or token: at most {MOST} entries a page."
        )
    begin = int(token)
    end = begin + (size or MOST)
    return {key: rows[begin:end], **({"nextPageToken": str(end)} if end < len(rows) else {})}


def sku(
    service: str,
    number: int,
    description: str,
    group: str,
    usage: str,
    price: float,
    unit: str,
    regions: tuple[str, ...],
) -> dict:
    whole = int(price)
    rate: dict[str, Any] = {
        "currencyCode": "USD",
        "units": str(whole),
        "nanos": round((price - whole) * 1e9),
    }
    expression = {
        "usageUnit": unit,
        "displayQuantity": 1,
        "tieredRates": [{"startUsageAmount": 0, "unitPrice": rate}],
    }
    family = "Storage" if unit == "GiBy.mo" else "Compute"
    category = {"serviceDisplayName": SERVICES[service], "resourceFamily": family}
    return {
        "name": f"services/{service}/skus/{number:04X}-0000-0000",
        "skuId": f"{number:04X}-0000-0000",
        "description": description,
        "category": {**category, "resourceGroup": group, "usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": expression,
                "currencyConversionRate": 1,
                "effectiveTime": "2026-07-01T08:00:00Z",
            }
        ],
        "serviceProviderName": "Google",
    }


HANDLERS = {"cloudbilling.services.skus.list": list_skus}
