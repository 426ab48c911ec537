"""`sensitivity`: what a plan loses where the device's figures are off."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from poetopt.util.progress import telling
from poetopt.util.units import Factor, parse_deadline, parse_time

if TYPE_CHECKING:
    from poetopt.compare.sensitivity import Sensitivity, Told
    from poetopt.devices import Device
    from poetopt.devices.model import Storage
    from poetopt.devices.profile import Profile
    from poetopt.report.report import Report

TIME_S = 10.0
"""For each optimum."""


def sensitivity(
    report: Report,
    *,
    device: Device | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    deadline: str | float | Factor | None = None,
    time_limit: str | float = TIME_S,
    told: Told | None = None,
    progress: bool = False,
) -> Sensitivity:
    """What the plan of a report loses against the optimum where storage or CPU are off by up to four times.

    device, profile
        As given to `Training.cost`: what part of a transfer's power is the storage's, and its latencies. By default the
        device of the catalogue that has the problem's name.
    deadline
        As given to `solve`: one in passes (`"1.5x"`) moves with the CPU's rate, any other stays.
    time_limit
        For each of the optima that are solved.
    told, progress
        Called with a line before each solve; whether lines go to stderr.

    Raises OptionError for a report of what isn't least energy, PlanError for one without a plan.
    """
    from poetopt.compare.sensitivity import sensitivity as changes

    graph = report.problem.graph
    found = None if graph is None else _device_of(device or report.problem.device, profile)
    storage = None if found is None else found.storage
    return changes(
        report.problem,
        report.solution,
        time_limit_s=parse_time(time_limit, option="--time-limit"),
        storage_share=_storage_share(storage),
        latencies_s=None if storage is None else (storage.page_in_latency_s, storage.page_out_latency_s),
        by_time=profile is not None or found is None or found.flop_per_j is None,
        relative_deadline=deadline is not None and isinstance(parse_deadline(deadline), Factor),
        told=told or telling(progress),
    )


def _storage_share(storage: Storage | None) -> float:
    """The part of a transfer's power that is the storage's; 1 where that isn't known."""
    total = storage.power_w + storage.cpu_power_w if storage is not None else 0.0
    return storage.power_w / total if storage is not None and total else 1.0


def _device_of(
    device: Device | str | os.PathLike[str], profile: Profile | str | os.PathLike[str] | None
) -> Device | None:
    """`device`, with the storage that the profile measured where there is one; None: not known."""
    from poetopt.devices import Device
    from poetopt.devices import device as device_of
    from poetopt.devices.profile import Profile, load_profile, measured_device
    from poetopt.util.errors import DeviceError

    try:
        found = device if isinstance(device, Device) else device_of(device)
    except DeviceError:
        return None  # a problem file has devices of its own
    if profile is None:
        return found
    return measured_device(found, profile if isinstance(profile, Profile) else load_profile(profile))
