"""OAuth 2.0 token endpoint for google-auth: refresh tokens (RFC 6749, section 6), and what a key of
a service account signed (RFC 7523).

Not covered: other grants, introspection, revocation.
"""

from aiohttp import BasicAuth, web

from localcloud.identity import keys
from localcloud.identity.iam import Iam
from localcloud.identity.tokens import Tokens

GOOGLE = "https://oauth2.googleapis.com/token"  # what google-auth signs for, wherever it asks
ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer"


async def token(tokens: Tokens, iam: Iam, request: web.Request) -> web.Response:
    """Give a new access token for a refresh token, or for a signed assertion."""
    form = await request.post()
    if form.get("grant_type") == ASSERTION:
        return of_key(tokens, iam, str(form.get("assertion", "")))
    try:
        client = BasicAuth.decode(request.headers.get("Authorization", ""))
    except ValueError:
        client = BasicAuth(str(form.get("client_id", "")), str(form.get("client_secret", "")))
    if not tokens.is_client(client.login, client.password):
        return answer({"error": "invalid_client", "error_description": "Unauthorized"}, 401)
    if form.get("grant_type") != "refresh_token":
        return answer(
            {"error": "unsupported_grant_type", "error_description": "Use refresh_token"}, 400
        )
    email = tokens.exchange(str(form.get("refresh_token", "")))
    if email is None:
        return answer({"error": "invalid_grant", "error_description": "Bad Request"}, 400)
    return answer(
        {"access_token": tokens.mint(email), "expires_in": 3600, "token_type": "Bearer"}, 200
    )


def of_key(tokens: Tokens, iam: Iam, assertion: str) -> web.Response:
    """Give an access token for what an account's key signed, with the scopes that it names."""
    claims = keys.verified(iam, assertion, (GOOGLE, f"{tokens.endpoint()}/token"))
    if claims is None:
        error = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        return answer(error, 400)
    scopes = str(claims.get("scope", "")).split()
    if not scopes:
        message = "Empty or missing scope not allowed."
        return answer({"error": "invalid_scope", "error_description": message}, 400)
    minted = tokens.mint(claims["iss"], scopes=scopes)
    return answer({"access_token": minted, "expires_in": 3599, "token_type": "Bearer"}, 200)


def answer(body: dict, status: int) -> web.Response:
    return web.json_response(body, status=status)
