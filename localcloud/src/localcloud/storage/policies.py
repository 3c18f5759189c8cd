"""Handlers of the IAM policies of buckets. The content of policies is checked in iam.py, their effect is in
permissions.py.

Not covered: policies of single objects and of managed folders.
"""

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError
from localcloud.identity.iam import is_stale
from localcloud.identity.permissions import allowed
from localcloud.identity.roles import exists
from localcloud.storage.checks import find_bucket, policy_of


async def get_iam_policy(cloud: "Cloud", call: "Call") -> dict:
    return policy_of(cloud, find_bucket(cloud, call))


async def set_iam_policy(cloud: "Cloud", call: "Call") -> dict:
    """Keep a policy; `etag` must be that of the policy it replaces."""
    bucket, body = find_bucket(cloud, call), call.body or {}
    if is_stale(body.get("etag"), policy_of(cloud, bucket)["etag"]):
        raise ApiError(
            412, "conditionNotMet", "The policy has changed since it was read: wrong etag"
        )
    resource = f"projects/{bucket['project']}/buckets/{bucket['name']}"
    bindings = cloud.iam.checked(resource, body)
    cloud.iam.note(resource, policy_of(cloud, bucket)["bindings"], bindings)
    cloud.storage.set_policy(bucket["name"], {"bindings": bindings, "version": 1})
    return policy_of(cloud, bucket)


async def test_iam_permissions(cloud: "Cloud", call: "Call") -> dict:
    bucket = find_bucket(cloud, call)
    resource = f"projects/{bucket['project']}/buckets/{bucket['name']}"
    asked = call.params["permissions"]
    for permission in asked:
        if not exists(permission) or not permission.startswith("storage."):
            raise ApiError(400, "invalid", f"Invalid permission: {permission}")
    held = [
        permission for permission in asked if allowed(cloud, call.principal, permission, resource)
    ]
    return {"kind": "storage#testIamPermissionsResponse", **({"permissions": held} if held else {})}


HANDLERS = {
    "storage.buckets.getIamPolicy": get_iam_policy,
    "storage.buckets.setIamPolicy": set_iam_policy,
    "storage.buckets.testIamPermissions": test_iam_permissions,
}
