"""Memory, descriptors and sizes of files that a process may have no more of: which limit it is, and what helps.

Libraries meet the end of memory anywhere: some raise errors of their own, some end the process. So an error is asked
what it came of where it ends, and a command whose memory is limited runs in a process whose end another one sees.
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
"""Descriptors that an import may take at once, its locks and archives included."""

OUT_OF_MEMORY = ("failed to map segment", "annot allocate memory", "bad_alloc", "can't start new thread")
"""Words of errors of libraries, of whatever kind."""


class ShortageError(PoetError):
    """Something that a process may have no more of: memory, descriptors, bytes in a file."""


def memory_limit() -> int | None:
    """Return the bytes of memory that this process may take; None where nobody limits them."""
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def lack_of_memory() -> str:
    """Return the message that memory is lacking, which names the limit where there is one."""
    limit = memory_limit()
    if limit is None:
        return "this machine has too little memory for it; give a smaller --batch or model"
    return (
        f"the {show_bytes(limit)} of memory that this process may take are too little for it; allow it more (ulimit -v "
        "unlimited), or give a smaller --batch or model"
    )


def lack(error: BaseException) -> str | None:
    """Return the message of what was lacking, where an error comes of that; None where it comes of something else."""
    for one in _causes(error):
        number = one.errno if isinstance(one, OSError) else None
        said = not isinstance(one, PoetError) and any(text in str(one) for text in OUT_OF_MEMORY)
        if isinstance(one, MemoryError) or number == errno.ENOMEM or said:
            return lack_of_memory()
        if number == errno.EMFILE or (isinstance(one, ImportError) and not _opens()):
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"the {most:,} files that this process may have open are too few; allow it more (ulimit -n 1024)"
        if number == errno.ENFILE:
            return "this machine has too many open files; close other programs"
        if number == errno.EFBIG:
            most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            where = f"{one.filename}: " if isinstance(one, OSError) and one.filename else ""
            if most != resource.RLIM_INFINITY:
                return f"{where}a file may have {show_bytes(most)} at most; allow it more (ulimit -f unlimited)"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    seen = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _opens() -> bool:
    """Return whether files can be opened now: an import that can't open one says that there is no such module."""
    made: list[int] = []
    try:
        for _ in range(OPENED):
            made.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for descriptor in made:
            os.close(descriptor)
    return True


def supervise() -> None:
    """Where the memory is limited, go on in a new process, whose end for lack of memory this one tells.

    To be called before anything large is imported; it comes back in the new process alone.
    """
    if memory_limit() is None:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # which sends itself SIGINT where it can't start a thread
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
    if code < 0 or code in (1, 127):  # no code of a command that came to an end of its own
        with suppress(OSError):
            os.write(2, f"poetopt: {lack_of_memory()}\n".encode())
        code = ShortageError.exit_code
    os._exit(code)
