"""The host tier: RAM below the device that computes. What goes in is moved to the host, what is read moves back."""

import dataclasses
from typing import TypeVar, cast

import torch
from torch import Tensor

from hypic.cache.tiers.ram import RamTier
from hypic.cache.tiers.tier import Named, Payload

PayloadT = TypeVar("PayloadT", bound=Payload)


class HostTier(RamTier):
    """Payloads that are dataclasses of tensors. device: where the engine computes; where that is the CPU itself nothing
    is copied, and the tier is simply more room."""

    def __init__(self, budget_bytes: int, device: str | torch.device = "cpu", name: str = "host") -> None:
        super().__init__(name, budget_bytes)
        self._device = torch.device(device)

    def put(self, cell: Named, payload: Payload) -> None:
        super().put(cell, moved(payload, torch.device("cpu")))

    def get(self, cell: Named) -> Payload:
        return moved(super().get(cell), self._device)


def moved(payload: PayloadT, device: torch.device) -> PayloadT:
    """The payload with its tensors on a device; itself where they are there already."""
    if not dataclasses.is_dataclass(payload) or isinstance(payload, type):
        return payload
    values = {field.name: getattr(payload, field.name) for field in dataclasses.fields(payload)}
    elsewhere = {
        name: value.to(device)
        for name, value in values.items()
        if isinstance(value, Tensor) and value.device.type != device.type
    }
    return cast(PayloadT, dataclasses.replace(payload, **elsewhere)) if elsewhere else payload
