"""One token of the recurrence for each of N states: what decoding does, in every family."""

import torch
from torch import Tensor


@torch.no_grad()
def recurrent_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, states: Tensor
) -> tuple[Tensor, Tensor]:
    """q, k: `[N, H, K]`. v: `[N, HV, V]`, HV a multiple of H. log_decay: `[HV]`, `[N, HV]`, `[N, HV, K]` or None.
    beta: `[N, HV]`, or None for families that never erase. states: `[N, HV, K, V]`, left as they are.

    Returns the output `[N, HV, V]` and the new states, in the dtype of `states`. Each state is read and written three
    times and nothing of its size is allocated but the result: at a few dozen requests memory is all that counts.
    """
    groups = v.shape[1] // k.shape[1]
    q, k = (x.to(states.dtype).repeat_interleave(groups, dim=1).flatten(0, 1).unsqueeze(1) for x in (q, k))
    if log_decay is None:
        new = states.clone()
    else:
        decay = log_decay.to(states.dtype).exp()
        new = states * (decay.unsqueeze(-1) if decay.ndim == 3 else decay[..., None, None])
    flat = new.contiguous().flatten(0, 1)  # [N * HV, K, V]
    write = v.to(states.dtype).flatten(0, 1).unsqueeze(1)  # [N * HV, 1, V]
    if beta is not None:
        strength = beta.to(states.dtype).flatten()[:, None, None]
        write = torch.baddbmm(write, k, flat, alpha=-1) * strength
    flat.baddbmm_(k.mT, write)
    return torch.bmm(q, flat).view(v.shape), flat.view(states.shape)
