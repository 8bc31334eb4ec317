"""The delta rules against transformers' token loops: an oracle that we did not write, for the conventions of g, beta
and their order."""

import pytest
import torch
from recurrence import relative_error
from torch.nn.functional import normalize
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from hypic.kernels.gated_delta.naive import gated_delta
from hypic.kernels.runs import Runs

TOKENS, HEADS, K, V = 75, 3, 16, 24


@pytest.mark.parametrize(
    ("loop", "channels"),
    [(torch_recurrent_gated_delta_rule, ()), (recurrent_kimi_delta_attention, (K,))],
    ids=["gated_delta_net", "kda"],
)
@pytest.mark.parametrize("strongest_beta", [1.0, 2.0])  # OLMo-hybrid writes with up to 2
def test_is_the_loop_of_transformers(loop: object, channels: tuple[int, ...], strongest_beta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = normalize(torch.randn(2, TOKENS, HEADS, K, generator=generator), dim=-1)
    v = torch.randn(TOKENS, HEADS, V, generator=generator)
    g = -torch.rand(TOKENS, HEADS, *channels, generator=generator)
    beta = torch.rand(TOKENS, HEADS, generator=generator) * strongest_beta
    state = torch.randn(1, HEADS, K, V, generator=generator)
    batch = [x.unsqueeze(0) for x in (q, k, v, g, beta)]
    output, end = loop(*batch, initial_state=state, output_final_state=True)  # type: ignore[operator]
    found = gated_delta(q * K**-0.5, k, v, g, beta, Runs.from_lengths([[TOKENS]]), state)
    assert relative_error(found.output, output[0]) <= 2e-6
    assert relative_error(found.final_states, end) <= 2e-6
