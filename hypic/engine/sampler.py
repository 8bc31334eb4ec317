"""Choosing the next token from logits."""

from collections import Counter

import torch
from torch import Tensor

from hypic.request import GenerationRequest

GREEDY_BELOW = 1e-5
"""Below this temperature the division would leave what float32 can hold; the likeliest token is taken there."""

_SEEDS = 2**64


class Sampler:
    """Chooses the tokens of one answer; its random numbers are its own, so company does not change its text."""

    def __init__(self, request: GenerationRequest, choice: int = 0, ends: frozenset[int] = frozenset()) -> None:
        """choice: which of the request's answers; each has a seed of its own, the first one the request's. ends: tokens
        that may not come before min_tokens."""
        self.params = request.sampling
        self._ends = torch.tensor(sorted(ends), dtype=torch.long)
        self._counts: Counter[int] = Counter()
        self._prompt_ids = torch.zeros(0, dtype=torch.long)
        if self.params.repetition_penalty != 1.0:
            ids = [torch.from_numpy(segment.token_ids).long() for segment in request.segments]
            self._prompt_ids = torch.unique(torch.cat(ids))
        self._bias_ids = torch.tensor([token for token, _ in self.params.logit_bias], dtype=torch.long)
        self._biases = torch.tensor([bias for _, bias in self.params.logit_bias], dtype=torch.float32)
        self._generator = torch.Generator()
        if self.params.seed is not None:
            self._generator.manual_seed((self.params.seed + choice) % _SEEDS)
        else:
            self._generator.seed()

    def choose(self, logits: Tensor) -> int:
        """A token id from float32 logits `[vocabulary]`, which stay as they are."""
        logits = self._adjusted(logits)
        token = int(logits.argmax()) if self.params.temperature < GREEDY_BELOW else self._drawn(logits)
        self._counts[token] += 1
        return token

    def _adjusted(self, logits: Tensor) -> Tensor:
        """Bias, penalties and the end that may not come yet."""
        params = self.params
        too_early = self._counts.total() < params.min_tokens
        penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        if not (too_early or penalised or params.logit_bias):
            return logits
        logits = logits.detach().to("cpu", torch.float32, copy=True)
        said = torch.tensor(list(self._counts), dtype=torch.long)
        if params.repetition_penalty != 1.0:
            seen = torch.unique(torch.cat([self._prompt_ids, said]))
            values, penalty = logits[seen], params.repetition_penalty
            logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
        counts = torch.tensor(list(self._counts.values()), dtype=torch.float32)
        logits[said] -= params.frequency_penalty * counts + params.presence_penalty
        logits.index_add_(0, self._bias_ids, self._biases)
        if too_early:
            logits[self._ends] = -torch.inf
        return logits

    def _drawn(self, logits: Tensor) -> int:
        params = self.params
        probabilities = torch.softmax(logits.cpu() / params.temperature, dim=-1)
        if 0 < params.top_k < len(probabilities):
            least = probabilities.topk(params.top_k).values[-1]
            probabilities = probabilities.where(probabilities >= least, 0.0)
        if params.top_p < 1.0:
            probabilities = _nucleus(probabilities / probabilities.sum(), params.top_p)
        if params.min_p > 0.0:
            probabilities = probabilities.where(probabilities >= params.min_p * probabilities.max(), 0.0)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def log_probabilities(logits: Tensor, token: int, top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Of a token, and of the `top` likeliest ones, by float32 logits `[vocabulary]`."""
    logs = torch.log_softmax(logits.detach().cpu().float(), dim=-1)
    best = logs.topk(min(top, len(logs)))
    return float(logs[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose mass reaches top_p (arXiv 1904.09751); the first is always kept."""
    ordered, order = probabilities.sort(descending=True)
    beyond = ordered.cumsum(0) - ordered >= top_p
    return probabilities.index_fill(0, order[beyond], 0.0)
