"""What went wrong with a request to the API server, for those who must decide when to ask again."""

from __future__ import annotations

from sharer.core.errors import NodeError
from sharer.core.holders.observations import ApiTroubleKind


class ApiError(NodeError):
    """The API server cannot be asked, or says no."""

    def __init__(
        self,
        message: str,
        *,
        kind: ApiTroubleKind,
        code: int | None = None,
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code  # HTTP status; None: there was no answer
        self.retry_after_s = retry_after_s  # as the server wishes
        self.causes = causes  # machine-readable reasons, such as "DisruptionBudget"
