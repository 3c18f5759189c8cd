"""OAuth 2.0 token endpoint (RFC 6749, section 6) for google-auth's refresh.

Not covered: other grants, introspection, revocation.
"""

from aiohttp import BasicAuth, web

from localcloud.identity.tokens import Tokens


async def token(tokens: Tokens, request: web.Request) -> web.Response:
    """Give a new access token for a refresh token."""
    form = await request.post()
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


def answer(body: dict, status: int) -> web.Response:
    return web.json_response(body, status=status)
