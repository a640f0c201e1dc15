"""Everything that can go wrong, as one tree. The class says who must act.

    SharerError
    ├── InputError      the person at the command line: a wrong file or argument; exit code 2
    │   └── PolicyError the operator: a policy that cannot be accepted, with every problem found
    ├── NodeError       the node: driver, GPU, file or socket; tried again, shown in the report
    │   ├── ApiError    the API server (`core/api_error`)
    │   ├── AwayError   it is away for a while, as is to be expected: nobody is warned
    │   └── FinalError  this process will never see it mended, and a new one may: the agent ends with exit code 1
    └── RequestError    the kubelet asked for something that cannot run; travels as a gRPC error, so a user reads it

Every message says what is wrong, where, what was expected and what to do.
"""

from __future__ import annotations

from sharer.core.values import dataclass


class SharerError(Exception):
    """A failure that sharer can explain in one sentence."""


class InputError(SharerError):
    """Input from a person is wrong: exit code 2."""


class NodeError(SharerError):
    """Something on the node does not answer as it should. The next cycle tries again."""


class AwayError(NodeError):
    """It is away for a while: a kubelet that restarts, a driver that is paused. Whoever waits long for it warns."""


class FinalError(NodeError):
    """Only another process can have it: a file that this container was given, and that the host has replaced since."""


class RequestError(SharerError):
    """A kubelet request that cannot be served. The text reaches the pod's author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a policy: where, what was found, what is allowed.

    >>> str(Problem(source="node.yaml", line=7, column=5, path="rules[0].slice", message="unknown key; use 'slices'"))
    "node.yaml:7:5: rules[0].slice: unknown key; use 'slices'"
    """

    source: str  # file name, or "configmap NS/NAME key KEY"
    line: int | None  # from 1; None: the problem has no single place
    column: int | None  # from 1
    path: str  # "rules[0].memory.limit"; "" is the whole document
    message: str

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.source, self.line, self.column) if part is not None)
        return ": ".join(part for part in (place, self.path, self.message) if part)


class PolicyError(InputError):
    """A policy that cannot be accepted. All its problems at once, in the order of the text."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        if not problems:
            raise ValueError("a PolicyError needs at least one problem")
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
