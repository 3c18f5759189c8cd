"""An API error, and how Google writes it as JSON.

Not covered: Google's HTML error pages (unknown hosts, overload) and localised messages.
"""

from typing import Any

# The gRPC code that Google puts beside the HTTP status; see google/rpc/code.proto.
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
    """An answer other than success: HTTP status, Google's machine-readable reason, a sentence for people."""

    def __init__(self, status: int, reason: str, message: str, domain: str = "global", details: list | None = None):
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.domain = domain
        self.details = details

    def body(self) -> dict:
        """Return the error in Google's shape: `{"error": {"code", "message", "errors", "status"}}`."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": self.domain, "reason": self.reason}],
        }
        if self.status in STATUS_NAMES:
            error["status"] = STATUS_NAMES[self.status]
        if self.details:
            error["details"] = self.details
        return {"error": error}
