"""Keys of service accounts: made, and what is signed with them.

Google keeps the public half of a key, and gives the private one away once, in a file that its
libraries load. Who has it signs a JSON Web Token (RFC 7519) with RS256, and exchanges that for an
access token.

Not covered: such tokens in the place of access tokens, lists, uploaded keys, disabled ones, keys that expire, other file types.
"""

import base64
import json
import secrets
import time
from typing import Any

from localcloud import certificates
from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, unserved
from localcloud.identity.iam import Iam

SKEW = 300  # seconds that a signer's clock may be ahead
LONGEST = 3600 + SKEW  # seconds that what was signed may hold


def account_of(cloud: Cloud, name: str) -> dict:
    email = name.split("/")[3]
    account = cloud.iam.account(email)
    if account is None:
        raise ApiError(404, "notFound", f"Service account {email} does not exist.")
    return account


def shown(key: dict) -> dict:
    """A key as Google shows it, without what is kept to check signatures."""
    return {name: value for name, value in key.items() if name != "public"}


async def create(cloud: Cloud, call: Call) -> dict:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import rsa

    account = account_of(cloud, call.params["name"])
    unserved(any((call.body or {}).values()), "keys but in the usual files")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = private.public_key().public_bytes(
        forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo
    )
    number = secrets.token_hex(20)
    key = {
        "name": f"{account['name']}/keys/{number}",
        "keyAlgorithm": "KEY_ALG_RSA_2048",
        "keyOrigin": "GOOGLE_PROVIDED",
        "keyType": "USER_MANAGED",
        "validAfterTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "validBeforeTime": "9999-12-31T23:59:59Z",
        "public": public.decode(),
    }
    cloud.iam.keys[number] = key
    cloud.iam.save()
    file = {
        "type": "service_account",
        "project_id": account["projectId"],
        "private_key_id": number,
        "private_key": certificates.private(private).decode(),
        "client_email": account["email"],
        "client_id": account["uniqueId"],
        "token_uri": f"{cloud.tokens.endpoint()}/token",
        "universe_domain": "googleapis.com",
    }
    data = base64.b64encode(json.dumps(file, indent=2).encode()).decode()
    kind = {"privateKeyType": "TYPE_GOOGLE_CREDENTIALS_FILE", "privateKeyData": data}
    return {**shown(key), **kind}


async def delete(cloud: Cloud, call: Call) -> dict:
    account, number = account_of(cloud, call.params["name"]), call.params["name"].split("/")[5]
    key = cloud.iam.keys.get(number)
    if key is None or key["name"].split("/")[3] != account["email"]:
        raise ApiError(404, "notFound", f"Service account key {number} does not exist.")
    del cloud.iam.keys[number]
    cloud.iam.save()
    return {}


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def verified(iam: Iam, token: str, audiences: tuple[str, ...]) -> dict[str, Any] | None:
    """The claims of a token that a key of an account's signed for one of the audiences and that holds
    now; None for any other.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        head, claims_part, signature = token.split(".")
        header, claims = json.loads(decoded(head)), json.loads(decoded(claims_part))
        key = iam.keys[header["kid"]]
        public = load_pem_public_key(key["public"].encode())
        assert isinstance(public, rsa.RSAPublicKey)
        signed = f"{head}.{claims_part}".encode()
        public.verify(decoded(signature), signed, padding.PKCS1v15(), hashes.SHA256())
        email, begins, ends = claims["iss"], float(claims["iat"]), float(claims["exp"])
    except (ValueError, KeyError, TypeError, InvalidSignature):
        return None
    now = time.time()
    fits = (
        header.get("alg") == "RS256"
        and key["name"].split("/")[3] == email
        and iam.account(email) is not None
        and begins - SKEW <= now < ends <= begins + LONGEST
        and claims.get("aud") in audiences
    )
    return claims if fits else None


HANDLERS = {
    "iam.projects.serviceAccounts.keys.create": create,
    "iam.projects.serviceAccounts.keys.delete": delete,
}
