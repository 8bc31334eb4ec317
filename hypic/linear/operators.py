"""Cached operators, (T, S) of a segment in every linear layer, in the formats that they are stored in (DESIGN 2.3).

T of a dense family: each head takes the smallest format whose error has a spectral norm within the tolerance.

    zero       T has vanished
    scaled 8   diag(d) + the rest as `Scaled8`
    half       diag(d) + the rest in bfloat16
    whole      T in float32

The diagonal d, float32, stands apart because T of a head that forgets slowly is near a diagonal matrix (its decay, less
what the keys erase). What is left is small: its error is ten times smaller in 8 bits, and three times in bfloat16. T of
scalar and diagonal families stays as it is. S has one format for all heads. A layer is decoded when composition comes
to it, and composition computes in float32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from hypic.errors import HypicError
from hypic.kernels.chunk_scan.naive import Pair
from hypic.kernels.compose.naive import LiveHeads, Transition
from hypic.linear.scaled import Scaled8, scaled8_error, within
from hypic.linear.transition import TransitionForm

StateFormat = Literal["fp32", "bf16", "int8"]
STATE_FORMATS: tuple[str, ...] = get_args(StateFormat)

ZERO, SCALED8, HALF, WHOLE = range(4)
"""Formats of a head's T, from the smallest on, as `PackedTransitions.formats` tells them."""


class OperatorError(HypicError):
    """An operator holds NaN or infinity, and so would every state that it is composed with."""

    code = "bad_operator"


@dataclass(frozen=True)
class OperatorFormats:
    """How operators are stored. transition_tolerance: how far T of a dense family may be off, in spectral norm; 0 keeps
    float32. state_format: of S, one of `STATE_FORMATS`.

    A head that was entered with S and wrote S0 is off by at most tolerance·‖S‖ + state_error·‖S0‖, in Frobenius norms.
    """

    transition_tolerance: float = 0.0
    state_format: str = "fp32"

    @classmethod
    def for_form(cls, form: TransitionForm | None, transition_tolerance: float, state_format: str) -> "OperatorFormats":
        """What is asked for, as far as it means anything to a family whose T has that form, or (None) to a model
        without linear layers: settings that change nothing do not make other entries."""
        if form is None:
            return cls()
        return cls(transition_tolerance if form == "dense" else 0.0, state_format)

    @property
    def lossless(self) -> bool:
        """Whether what is read is what was computed."""
        return self.transition_tolerance == 0 and self.state_format == "fp32"

    def state_error(self, value_dim: int) -> float:
        """Bound of ‖S - Ŝ‖ / ‖S‖ of a head, in Frobenius norms."""
        return {"fp32": 0.0, "bf16": 2**-8, "int8": scaled8_error(value_dim)}[self.state_format]

    @property
    def name(self) -> str:
        """What stands for the formats in keys."""
        return f"T {float(self.transition_tolerance)!r} S {self.state_format}"


LOSSLESS = OperatorFormats()


class Transitions(Protocol):
    """T of a segment in every linear layer."""

    @property
    def heads(self) -> tuple[int, ...]:
        """Their number in each layer, `[L, H]`, and K where T depends on it."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is stored, by name."""

    def layer(self, layer: int) -> Transition:
        """T of one layer, in float32."""


@dataclass(frozen=True, eq=False)
class PlainTransitions:
    """T of scalar and diagonal families: float32 `[L, H]` or `[L, H, K]`. Raises ValueError for anything else."""

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.dtype != torch.float32 or self.values.ndim not in (2, 3):
            found = (self.values.dtype, tuple(self.values.shape))
            raise ValueError(f"plain transitions must be float32 [L, H] or [L, H, K], found {found}")

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values}

    def layer(self, layer: int) -> Tensor:
        return self.values[layer]


@dataclass(frozen=True, eq=False)
class PackedTransitions:
    """T of a dense family: the heads of one format stand together, by layer and then by head.

    formats: uint8 `[L, H]`. Of a heads in 8 bits: codes int8 `[a, K, K]`, rows, columns and scaled_diagonals float32
    `[a, K]`. Of b heads: halves bfloat16 `[b, K, K]`, half_diagonals float32 `[b, K]`. Of c heads: wholes float32
    `[c, K, K]`. Raises ValueError where that does not fit together.
    """

    formats: Tensor
    codes: Tensor
    rows: Tensor
    columns: Tensor
    scaled_diagonals: Tensor
    halves: Tensor
    half_diagonals: Tensor
    wholes: Tensor

    def __post_init__(self) -> None:
        counts = [int((self.formats == code).sum()) for code in range(4)]
        if self.formats.ndim != 2 or sum(counts) != self.formats.numel():
            raise ValueError(f"formats of heads must be [L, H] of 0 to 3, found {tuple(self.formats.shape)}")
        size = self.wholes.shape[-1]
        _, a, b, c = counts
        expected: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "formats": (torch.uint8, tuple(self.formats.shape)),
            "codes": (torch.int8, (a, size, size)),
            **dict.fromkeys(("rows", "columns", "scaled_diagonals"), (torch.float32, (a, size))),
            "halves": (torch.bfloat16, (b, size, size)),
            "half_diagonals": (torch.float32, (b, size)),
            "wholes": (torch.float32, (c, size, size)),
        }
        wrong = [
            f"{name} {tensor.dtype} {tuple(tensor.shape)}, expected {expected[name]}"
            for name, tensor in self.tensors.items()
            if (tensor.dtype, tuple(tensor.shape)) != expected[name]
        ]
        if wrong:
            raise ValueError(f"packed transitions do not fit together: {'; '.join(wrong)}")

    @classmethod
    def of(cls, transitions: Tensor, tolerance: float) -> "PackedTransitions":
        """Store T, float32 `[L, H, K, K]`. A layer at a time, so that what is in between stays small."""
        layers = [_packed(layer, tolerance) for layer in transitions]
        return cls(**{name: torch.cat([layer[name] for layer in layers]) for name in layers[0]})

    @property
    def heads(self) -> tuple[int, ...]:
        return (*self.formats.shape, self.wholes.shape[-1])

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def layer(self, layer: int) -> Transition:
        """A tensor `[H, K, K]` where every head is stored whole, without a copy; else the heads that are not zero."""
        (eights, a), (halves, b), (wholes, c) = (self._places[layer][code] for code in (SCALED8, HALF, WHOLE))
        whole = self.wholes[wholes : wholes + len(c)]
        if len(c) == self.formats.shape[1]:
            return whole
        span = slice(eights, eights + len(a))
        eight = Scaled8(self.codes, self.rows, self.columns)[span].decoded()
        eight.diagonal(dim1=-2, dim2=-1).copy_(self.scaled_diagonals[span])
        span = slice(halves, halves + len(b))
        half = self.halves[span].float()
        half.diagonal(dim1=-2, dim2=-1).copy_(self.half_diagonals[span])
        heads = torch.tensor([*a, *b, *c], dtype=torch.int64, device=whole.device)
        return LiveHeads(heads, torch.cat([eight, half, whole]))

    @cached_property
    def _places(self) -> list[list[tuple[int, list[int]]]]:
        """Per layer and format: where its heads begin among all of that format, and which they are."""
        starts = [0, 0, 0, 0]
        places: list[list[tuple[int, list[int]]]] = []
        for row in self.formats.tolist():
            heads = [[head for head, found in enumerate(row) if found == code] for code in range(4)]
            places.append(list(zip(starts, heads, strict=True)))
            starts = [start + len(found) for start, found in places[-1]]
        return places


def _packed(transitions: Tensor, tolerance: float) -> dict[str, Tensor]:
    """The fields of `PackedTransitions` for one layer, `[H, K, K]`: formats are tried from the smallest on."""
    formats = torch.full(transitions.shape[:1], WHOLE, dtype=torch.uint8, device=transitions.device)
    open_heads = torch.arange(len(formats) if tolerance else 0, device=transitions.device)
    zero = within(transitions[open_heads], tolerance)
    formats[open_heads[zero]] = ZERO
    open_heads = open_heads[~zero]

    rest = transitions[open_heads]
    diagonals = rest.diagonal(dim1=-2, dim2=-1).clone()
    rest.diagonal(dim1=-2, dim2=-1).zero_()
    coded = Scaled8.of(rest)
    eight = within(rest - coded.decoded(), tolerance)
    formats[open_heads[eight]] = SCALED8
    open_heads = open_heads[~eight]

    scaled = coded[eight]
    halves = rest[~eight].bfloat16()
    half = within(rest[~eight] - halves.float(), tolerance)
    formats[open_heads[half]] = HALF
    return {
        "formats": formats.unsqueeze(0),
        "codes": scaled.codes,
        "rows": scaled.rows,
        "columns": scaled.columns,
        "scaled_diagonals": diagonals[eight],
        "halves": halves[half],
        "half_diagonals": diagonals[~eight][half],
        "wholes": transitions[formats == WHOLE],
    }


@dataclass(frozen=True, eq=False)
class States:
    """S of a segment in every linear layer: values `[L, H, K, V]` float32, bfloat16, or int8 with the scales of
    `Scaled8`, rows `[L, H, K]` and columns `[L, H, V]`. Raises ValueError where that does not fit together."""

    values: Tensor
    rows: Tensor | None = None
    columns: Tensor | None = None

    def __post_init__(self) -> None:
        scaled = self.values.dtype == torch.int8
        shape = tuple(self.values.shape)
        if self.values.dtype not in (torch.float32, torch.bfloat16, torch.int8) or len(shape) != 4:
            raise ValueError(
                f"states must be float32, bfloat16 or int8 [L, H, K, V], found {self.values.dtype} {shape}"
            )
        for name, scale, expected in (
            ("rows", self.rows, shape[:3]),
            ("columns", self.columns, (*shape[:2], shape[3])),
        ):
            found = None if scale is None else (scale.dtype, tuple(scale.shape))
            if found != ((torch.float32, expected) if scaled else None):
                raise ValueError(f"{name} {found} do not belong to states {self.values.dtype} {shape}")

    @classmethod
    def of(cls, states: Tensor, state_format: str) -> "States":
        """Store S, float32 `[L, H, K, V]`."""
        if state_format == "int8":
            scaled = Scaled8.of(states)
            return cls(scaled.codes, scaled.rows, scaled.columns)
        return cls(states.bfloat16() if state_format == "bf16" else states)

    @property
    def tensors(self) -> dict[str, Tensor]:
        scales = {} if self.rows is None or self.columns is None else {"rows": self.rows, "columns": self.columns}
        return {"values": self.values, **scales}

    def layer(self, layer: int) -> Tensor:
        """S of one layer, float32 `[H, K, V]`: a view where it is stored so."""
        if self.rows is None or self.columns is None:
            return self.values[layer].float()
        return Scaled8(self.values, self.rows, self.columns)[layer].decoded()


@dataclass(frozen=True, eq=False)
class Operators:
    """T and S of a segment."""

    transitions: Transitions
    states: States

    def __post_init__(self) -> None:
        heads, shape = self.transitions.heads, tuple(self.states.values.shape)
        if heads != shape[: len(heads)]:
            raise ValueError(f"transitions of heads {heads} do not belong to states {shape}")

    @classmethod
    def of(cls, transitions: Tensor, states: Tensor, formats: OperatorFormats = LOSSLESS) -> "Operators":
        """Store T `[L, H]`, `[L, H, K]` or `[L, H, K, K]` and S `[L, H, K, V]`, float32. Raises OperatorError where one
        is not finite."""
        for name, tensor in (("T", transitions), ("S", states)):
            finite = tensor.isfinite().flatten(2).all(-1) if tensor.ndim > 2 else tensor.isfinite()
            if not bool(finite.all()):
                layer, head = (~finite).nonzero()[0].tolist()
                raise OperatorError(
                    f"{name} of linear layer {layer}, head {head} holds NaN or infinity: a segment with it is not "
                    "cached; check the weights and their dtype"
                )
        packed = PackedTransitions.of(transitions, formats.transition_tolerance) if transitions.ndim == 4 else None
        return cls(packed or PlainTransitions(transitions), States.of(states, formats.state_format))

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> "Operators":
        """The operators whose `tensors` these are. Raises ValueError for any others."""
        parts: dict[str, dict[str, Tensor]] = {"transitions": {}, "states": {}}
        for name, tensor in tensors.items():
            kind, _, part = name.partition(".")
            if kind not in parts:
                raise ValueError(f"no part of an operator is called {name!r}")
            parts[kind][part] = tensor
        made: Callable[..., Transitions] = PlainTransitions if "values" in parts["transitions"] else PackedTransitions
        try:
            return cls(made(**parts["transitions"]), States(**parts["states"]))
        except TypeError as error:
            raise ValueError(f"parts are missing or too many: {error}") from error

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is stored, by name."""
        transitions = {f"transitions.{name}": tensor for name, tensor in self.transitions.tensors.items()}
        return transitions | {f"states.{name}": tensor for name, tensor in self.states.tensors.items()}

    @property
    def nbytes(self) -> int:
        """True bytes held."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def pair(self, layer: int) -> Pair:
        """(T, S) of one layer, in float32."""
        return self.transitions.layer(layer), self.states.layer(layer)
