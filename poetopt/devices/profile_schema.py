"""What a profile may say, checked by pydantic. Imported only when a file is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from poetopt.devices.profile import OperatorProfile, Profile, StorageProfile
from poetopt.devices.sanity import LONGEST_S, MEASURED, RANGES

_TIME_S = MEASURED["time_s"][1]
_RATE_LEAST, _RATE_MOST = RANGES["page_in_bytes_per_s"]

Seconds = Annotated[float, Field(gt=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
"""Of an operator: more than none."""
Spread = Annotated[float, Field(ge=0, le=_TIME_S, allow_inf_nan=False, strict=True)]
Latency = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]
Joules = Annotated[float, Field(ge=0, le=MEASURED["energy_j"][1], allow_inf_nan=False, strict=True)]
Watts = Annotated[float, Field(ge=0, le=RANGES["active_power_w"][1], allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(ge=_RATE_LEAST, le=_RATE_MOST, allow_inf_nan=False, strict=True)]
Bytes = Annotated[int, Field(ge=0, le=int(MEASURED["workspace_bytes"][1]), strict=True)]
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OperatorTable(_Table):
    """`[operators."<signature>"]`."""

    time_s: Seconds
    spread_s: Spread = 0.0
    runs: Count = 1
    workspace_bytes: Bytes | None = None
    energy_j: Joules | None = None


class StorageTable(_Table):
    """`[storage]`."""

    page_in_latency_s: Latency
    page_in_bytes_per_s: Rate
    page_out_latency_s: Latency
    page_out_bytes_per_s: Rate
    power_w: Watts | None = None
    dma: StrictBool = False


class ProfileTable(_Table):
    """A whole file."""

    version: Literal[1]
    power_w: Watts | None = None
    about: dict[str, str] = {}
    storage: StorageTable | None = None
    operators: dict[str, OperatorTable] = {}

    def profile(self) -> Profile:
        """The profile."""
        return Profile(
            about=self.about,
            power_w=self.power_w,
            operators={key: OperatorProfile(**entry.model_dump()) for key, entry in self.operators.items()},
            storage=None if self.storage is None else StorageProfile(**self.storage.model_dump()),
        )
