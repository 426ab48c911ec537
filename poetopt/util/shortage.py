"""Exhausted limits of a process (memory, open files, file sizes): recognise them, and say what helps.

Libraries may run out of memory anywhere: some raise errors of their own, some end the process. So the causes of an
error are inspected where it surfaces, and a command with limited memory runs in a child that its parent watches.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress

from poetopt.util import interrupts
from poetopt.util.errors import PoetError
from poetopt.util.units import show_bytes

OPENED = 8
"""Descriptors that an import may open at once, including locks and archives."""

OUT_OF_MEMORY = ("failed to map segment", "annot allocate memory", "bad_alloc", "can't start new thread")
"""Texts in errors of libraries that mean exhausted memory."""


class ShortageError(PoetError):
    """An exhausted limit of the process: memory, open files, bytes of a file."""


def memory_limit() -> int | None:
    """Return the limit of this process's memory in bytes; None if there is none."""
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def lack_of_memory() -> str:
    """Return the message for exhausted memory, with the limit if there is one."""
    limit = memory_limit()
    if limit is None:
        return "this machine has too little memory for it. Give a smaller --batch or model"
    return (
        f"the limit of this process's memory, {show_bytes(limit)}, is too low for it. Raise it (ulimit -v "
        "unlimited), or give a smaller --batch or model"
    )


def lack(error: BaseException) -> str | None:
    """Return the message for an error caused by an exhausted limit; None for another cause."""
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        is_out_of_memory = not isinstance(cause, PoetError) and any(text in str(cause) for text in OUT_OF_MEMORY)
        if isinstance(cause, MemoryError) or number == errno.ENOMEM or is_out_of_memory:
            return lack_of_memory()
        if number == errno.EMFILE or (isinstance(cause, ImportError) and not _can_open_files()):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"this process may open at most {limit:,} files, which are too few. Raise the limit (ulimit -n 1024)"
        if number == errno.ENFILE:
            return "this machine has too many open files. Close other programs"
        if number == errno.EFBIG:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            prefix = f"{cause.filename}: " if isinstance(cause, OSError) and cause.filename else ""
            if limit != resource.RLIM_INFINITY:
                return f"{prefix}the limit of a file is {show_bytes(limit)}. Raise it (ulimit -f unlimited)"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    seen = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _can_open_files() -> bool:
    """Return whether files can be opened now: an import that can't open one reports a missing module."""
    descriptors: list[int] = []
    try:
        for _ in range(OPENED):
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def supervise() -> None:
    """If memory is limited, continue in a child process, and report if it ends for lack of memory.

    To be called before anything large is imported; it returns only in the child.
    """
    if memory_limit() is None:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # OpenBLAS sends itself SIGINT if it can't start a thread
    signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.CODES)
    child = os.fork()
    if child:
        for number in interrupts.CODES:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda sent, _: os.kill(child, sent))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts.CODES)
    if not child:
        return
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0 or code in (1, 127):  # codes that no command returns
        with suppress(OSError):
            os.write(2, f"poetopt: {lack_of_memory()}\n".encode())
        code = ShortageError.exit_code
    os._exit(code)
