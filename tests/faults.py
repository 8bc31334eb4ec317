"""Faults to plant in an engine: each breaks one thing that reuse rests on, as a programming error would."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hypic.cache.entry import SegmentEntry
from hypic.engine.engine import Engine
from hypic.sequence import Reused, Sequence

Plant = Callable[[Engine, pytest.MonkeyPatch], None]


def wrong_rotation(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached keys are rotated one position too far."""
    _rotate(engine, monkeypatch, lambda positions: positions + 1)


def rotation_off_when_moved(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached keys are rotated as if their segment stood no further than token 16: right where it opens a prompt."""
    _rotate(engine, monkeypatch, lambda positions: positions - max(0, int(positions[0]) - 16))


def dropped_seam(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arms with a seam run without it."""
    _change_arm(engine, monkeypatch, seam_tokens=0)


def zeroed_transition(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reused segment forgets what came before it."""
    _change_arm(engine, monkeypatch, composition="last")


def swapped_segments(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators of the segments of a prompt are applied in reverse order."""
    right = engine.composer.sequence

    def swapped(reservation: Any) -> Sequence:
        sequence = right(reservation)
        reused = [piece for piece in sequence.pieces if isinstance(piece, Reused)]
        pieces = (
            replace(reused.pop(), tokens=piece.tokens) if isinstance(piece, Reused) else piece
            for piece in sequence.pieces
        )
        return replace(sequence, pieces=tuple(pieces))

    monkeypatch.setattr(engine.composer, "sequence", swapped)


def stale_keys_and_values(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry holds the keys and values of the one before it, as if its memory had not been written."""
    deliver = engine.deliver
    before: list[dict[str, Tensor]] = []

    @torch.inference_mode()
    def stale(entry: SegmentEntry) -> None:
        before.append({"keys": entry.keys.clone(), "values": entry.values.clone()})
        for name, tensor in before[-2].items() if len(before) > 1 else ():
            tokens = min(tensor.shape[1], entry.remainder_tokens)
            getattr(entry, name)[:, :tokens] = tensor[:, :tokens]
        deliver(entry)

    monkeypatch.setattr(engine, "deliver", stale)


def _rotate(engine: Engine, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Tensor], Tensor]) -> None:
    model: Any = engine.model
    right = model.rotate_keys

    def rotate(keys: Tensor, positions: Tensor, out: Tensor) -> None:
        right(keys, wrong(positions), out)

    monkeypatch.setattr(model, "rotate_keys", rotate, raising=False)


def _change_arm(engine: Engine, monkeypatch: pytest.MonkeyPatch, **wrong: Any) -> None:
    reserve = engine.composer.reserve

    def changed(request: Any) -> Any:
        arm = request.arm
        return reserve(replace(request, arm=replace(arm, **wrong)) if arm.reuse_segments else request)

    monkeypatch.setattr(engine.composer, "reserve", changed)
