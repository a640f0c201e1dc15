"""A disk on which a file cannot grow any more, for this process and for a moment."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(left_bytes: int = 64) -> Iterator[None]:
    """No file can be written beyond so many bytes: EFBIG, after what fitted was written, as ENOSPC comes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
