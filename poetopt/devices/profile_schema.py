"""What a profile may say, checked by pydantic. Imported only when a file is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from poetopt.devices.profile import OperatorProfile, Profile, StorageProfile

Amount = Annotated[float, Field(ge=0, le=1e300, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(gt=0, le=1e300, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OperatorTable(_Table):
    """`[operators."<signature>"]`."""

    time_s: Amount
    spread_s: Amount = 0.0
    runs: Count = 1
    workspace_bytes: Count | None = None
    energy_j: Amount | None = None


class StorageTable(_Table):
    """`[storage]`."""

    page_in_latency_s: Amount
    page_in_bytes_per_s: Rate
    page_out_latency_s: Amount
    page_out_bytes_per_s: Rate
    power_w: Amount | None = None
    dma: StrictBool = False


class ProfileTable(_Table):
    """A whole file."""

    version: Literal[1]
    power_w: Amount | None = None
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
