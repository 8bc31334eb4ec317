"""What a linear-attention family is, and which families there are.

A family is a file of this package with one `FAMILY = LinearFamily(...)`; finding it is a matter of its
being there. Everything above (engine, evaluation, conformance tests) works through this contract and names
no family.
"""

import importlib
import pkgutil
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Unpack

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.runs import Runs
from hypic.linear.transition import TransitionForm

DecayGate = Literal["none", "head", "token", "channel"]
"""Shape of g: absent, `[HV]`, `[T, HV]` or `[T, HV, K]`."""


@dataclass(frozen=True)
class LinearInputs:
    """A layer's packed inputs: q, k `[T, H, K]`, ready to use (normalised, rotated, scaled), v `[T, HV, V]`
    with H dividing HV, g log decay <= 0 in the family's `DecayGate` shape, beta `[T, HV]` or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None = None
    beta: Tensor | None = None

    def gate(self, name: Literal["g", "beta"]) -> Tensor:
        """The gate of that name. Raises ValueError where the family needs one that is not given."""
        gate = self.g if name == "g" else self.beta
        if gate is None:
            raise ValueError(f"this family needs the gate {name}, found None")
        return gate

    def tokens(self, start: int, end: int) -> "LinearInputs":
        """The inputs of tokens start to end - 1; a decay that is constant per head stays as it is."""
        g = self.g if self.g is None or self.g.ndim == 1 else self.g[start:end]
        beta = None if self.beta is None else self.beta[start:end]
        return LinearInputs(self.q[start:end], self.k[start:end], self.v[start:end], g, beta)

    def to(self, dtype: torch.dtype) -> "LinearInputs":
        """The same inputs in another dtype."""
        g = None if self.g is None else self.g.to(dtype)
        beta = None if self.beta is None else self.beta.to(dtype)
        return replace(self, q=self.q.to(dtype), k=self.k.to(dtype), v=self.v.to(dtype), g=g, beta=beta)


class Scan(Protocol):
    """Prefill of packed runs from `initial_states`, `[N, HV, K, V]`, in the dtype of these."""

    def __call__(
        self, inputs: LinearInputs, runs: Runs, initial_states: Tensor, **options: Unpack[ScanOptions]
    ) -> ScanResult: ...


class Step(Protocol):
    """Decoding: token n of `inputs` (N of them) advances state n of `[N, HV, K, V]`. Returns the output
    `[N, HV, V]` and the new states."""

    def __call__(self, inputs: LinearInputs, states: Tensor) -> tuple[Tensor, Tensor]: ...


class Sample(Protocol):
    """Random inputs of the kind that a trained layer produces, for tests and evaluation. `heads` is (H,
    HV)."""

    def __call__(
        self,
        generator: torch.Generator,
        tokens: int,
        heads: tuple[int, int],
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype = torch.float32,
    ) -> LinearInputs: ...


@dataclass(frozen=True)
class LinearFamily:
    """One recurrence S_t = A_t S_{t-1} + u_t. `source` names the paper that defines it."""

    name: str
    form: TransitionForm
    decay: DecayGate
    takes_beta: bool
    scan: Scan
    step: Step
    sample: Sample
    source: str

    @property
    def commutes_with_rotation(self) -> bool:
        """Whether T commutes with a rotation of the K axis, so that states with rotated keys can be moved."""
        return self.form == "scalar"


def families() -> dict[str, LinearFamily]:
    """Every family of this package, by name, in alphabetical order."""
    package = importlib.import_module("hypic.linear")
    found: dict[str, LinearFamily] = {}
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        family = getattr(importlib.import_module(f"hypic.linear.{module.name}"), "FAMILY", None)
        if isinstance(family, LinearFamily):
            if family.name != module.name:
                raise ValueError(f"hypic/linear/{module.name}.py holds a family named {family.name!r}")
            found[family.name] = family
    return found


def sample_qkv(
    generator: torch.Generator, tokens: int, heads: tuple[int, int], key_dim: int, value_dim: int
) -> LinearInputs:
    """Unit keys, queries scaled by K^-1/2, normal values, in float64: q, k `[T, H, K]`, v `[T, HV, V]`."""
    q, k = (
        normalize(torch.randn(tokens, heads[0], key_dim, generator=generator, dtype=torch.float64), dim=-1)
        for _ in range(2)
    )
    v = torch.randn(tokens, heads[1], value_dim, generator=generator, dtype=torch.float64)
    return LinearInputs(q * key_dim**-0.5, k, v)


def sample_write_strength(generator: torch.Generator, tokens: int, heads: int) -> Tensor:
    """The β of a trained delta layer, sigmoid of a normal, float64 `[T, HV]`."""
    return torch.randn(tokens, heads, generator=generator, dtype=torch.float64).sigmoid()


def sample_log_decay(generator: torch.Generator, tokens: int, heads: int, *channels: int) -> Tensor:
    """Input-dependent log decay -A·Δ, float64 `[T, HV, *channels]`: A spread from 1/16 to 16 over the
    heads, Δ log-uniform from 1e-3 to 1e-1, the range in which Mamba2 and GDN start their Δ."""
    rate = torch.logspace(-1.2, 1.2, heads, dtype=torch.float64).view(heads, *[1] * len(channels))
    exponent = torch.rand(tokens, heads, *channels, generator=generator, dtype=torch.float64)
    return -rate * 10 ** (2 * exponent - 3)
