"""An API error, and how Google writes it as JSON.

Not covered: Google's HTML error pages (unknown hosts, overload) and localised messages.
"""

from typing import Any

# The gRPC code that Google adds to the HTTP status; see google/rpc/code.proto.
STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    416: "OUT_OF_RANGE",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ApiError(Exception):
    """An answer other than success: HTTP status, Google's machine-readable reason, a sentence for
    people.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        domain: str = "global",
        details: list | None = None,
        code: str = "",  # gRPC code, where it is not the usual one of the status
    ):
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.domain = domain
        self.details = details
        self.code = code or STATUS_NAMES.get(status, "")

    def body(self, reasons: bool = True) -> dict:
        """Return the error in Google's shape: `{"error": {"code", "message", "errors", "status"}}`.

        Only the older APIs, Compute Engine and Cloud Storage, write `errors`, with the reasons.
        """
        error: dict[str, Any] = {"code": self.status, "message": self.message}
        if reasons:
            error["errors"] = [
                {"message": self.message, "domain": self.domain, "reason": self.reason}
            ]
        if self.code:
            error["status"] = self.code
        if self.details:
            error["details"] = self.details
        return {"error": error}


def error_info(reason: str, domain: str, **metadata: str) -> dict[str, Any]:
    """The part of an error's details that programs read."""
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": domain, "metadata": metadata}


def unserved(is_asked: object, what: str) -> None:
    """Refuse with 501 what is Google's, and what the embedded cloud has not, if it is asked for."""
    if is_asked:
        raise ApiError(501, "notImplemented", f"The embedded cloud has no {what}")
