"""What is tried again: one rule for every request that berg makes.

408, 429, 500, 502, 503, 504 and broken connections pass. Another status says the same each time it
is asked. So does a certificate that cannot be verified, or read. berg/machine/boot.py imports the
standard library alone and keeps a copy of the statuses.
"""

RETRIED = (408, 429, 500, 502, 503, 504)
# how OpenSSL says it, whatever library wraps the error
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "NO_CERTIFICATE_OR_CRL_FOUND")


def is_retried(status: int) -> bool:
    """Return whether a request that was answered with this status may succeed if it is repeated."""
    return status in RETRIED


def is_transient(error: BaseException) -> bool:
    """Return whether a request that ended with this error may succeed if it is repeated."""
    from google.auth.exceptions import TransportError

    if status := status_of(error):
        return is_retried(status)
    if isinstance(error, TransportError) and error.args:  # it holds what broke
        return is_transient(error.args[0])
    return is_connection_error(error)


def status_of(error: BaseException) -> int:
    """Return the HTTP status that an error of Google's libraries stands for, 0 for no status."""
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        return int(error.code or 0)
    # The content of objects comes and goes with errors that have nothing but the response.
    response = getattr(error, "response", None)
    return int(getattr(response, "status_code", None) or 0)


def is_connection_error(error: BaseException) -> bool:
    """Return whether a connection could not be made, or broke."""
    import http.client

    import requests
    import urllib3.exceptions

    if any(word in str(error) for word in UNTRUSTED):
        return False
    broken = (
        ConnectionError,
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
        http.client.BadStatusLine,
        http.client.IncompleteRead,
        http.client.ResponseNotReady,
        urllib3.exceptions.PoolError,
        urllib3.exceptions.ProtocolError,
        urllib3.exceptions.SSLError,
        urllib3.exceptions.TimeoutError,
    )
    return isinstance(error, broken)
