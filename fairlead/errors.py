"""All errors that users see: one exception tree with machine codes, HTTP statuses and exit codes."""

from __future__ import annotations

from typing import Any, ClassVar


class FairleadError(Exception):
    """Base of all errors for users: a one-line message with the field, the value and the fix."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, field: str | None = None, value: Any = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value
        self.fix = fix

    def problem(self) -> dict[str, Any]:
        """The error as an RFC 9457 problem document."""
        document = {
            "type": f"urn:fairlead:error:{self.code}",
            "title": type(self).__name__,
            "status": self.status,
            "detail": self.message,
            "code": self.code,
        }
        optional = {"field": self.field, "value": self.value, "fix": self.fix}
        return document | {key: value for key, value in optional.items() if value is not None}

    @classmethod
    def from_problem(cls, document: dict[str, Any]) -> FairleadError:
        """The exception for a problem document, so that clients raise the server's error."""
        kind = _BY_CODE.get(str(document.get("code", "")), FairleadError)
        detail = str(document.get("detail") or document.get("title") or "the platform answered with an error")
        return kind(detail, field=document.get("field"), value=document.get("value"), fix=document.get("fix"))

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidSpec(FairleadError):
    """Invalid input: unknown field, wrong type, contradiction."""

    code, status, exit_code = "invalid-spec", 422, 2


class TrainingFailed(FairleadError):
    """The training failed in a way that a retry would repeat, such as a NaN loss."""

    code, status, exit_code = "training-failed", 422, 100


class Refused(FairleadError):
    """Valid, but refused by this platform: impossible request, quota, policy."""

    code, status, exit_code = "refused", 409, 4


class OverBudget(Refused):
    """The tenant's budget is used up; the fix says when it resets."""

    code = "over-budget"


class NotFound(FairleadError):
    code, status, exit_code = "not-found", 404, 3


class Unauthenticated(FairleadError):
    code, status, exit_code = "unauthenticated", 401, 4


class Forbidden(FairleadError):
    code, status, exit_code = "forbidden", 403, 4


class Conflict(FairleadError):
    """The key or name is already used for something else."""

    code, status, exit_code = "conflict", 409, 4


class TooLarge(FairleadError):
    code, status, exit_code = "too-large", 413, 4


class RateLimited(FairleadError):
    code, status, exit_code = "rate-limited", 429, 4


class Unavailable(FairleadError):
    """The platform cannot be reached or is not the leader at the moment; a retry may help."""

    code, status, exit_code = "unavailable", 503, 1


class LostLeadership(Unavailable):
    """Another control plane is the leader now, so this one may neither write nor command agents."""

    code = "lost-leadership"


class JobFailed(FairleadError):
    code, status, exit_code = "job-failed", 409, 100


class StillRunning(FairleadError):
    code, status, exit_code = "still-running", 409, 101


class JobCancelled(FairleadError):
    code, status, exit_code = "job-cancelled", 409, 103


_BY_CODE: dict[str, type[FairleadError]] = {
    kind.code: kind
    for kind in (
        InvalidSpec, TrainingFailed, Refused, OverBudget, NotFound, Unauthenticated, Forbidden, Conflict, TooLarge,
        RateLimited, Unavailable, LostLeadership, JobFailed, StillRunning, JobCancelled,
    )
}  # fmt: skip
