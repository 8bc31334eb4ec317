"""Choosing the next token from logits."""

import torch
from torch import Tensor

from hypic.request import SamplingParams


class Sampler:
    """Chooses the tokens of one request; its random numbers are its own, so company does not change its text."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = torch.Generator()
        if params.seed is not None:
            self._generator.manual_seed(params.seed)
        else:
            self._generator.seed()

    def choose(self, logits: Tensor) -> int:
        """A token id from float32 logits `[vocabulary]`."""
        if self.params.temperature == 0.0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits.cpu() / self.params.temperature, dim=-1)
        if self.params.top_p < 1.0:
            probabilities = _nucleus(probabilities, self.params.top_p)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose mass reaches top_p (arXiv 1904.09751); the first is always kept."""
    ordered, order = probabilities.sort(descending=True)
    beyond = ordered.cumsum(0) - ordered >= top_p
    return probabilities.index_fill(0, order[beyond], 0.0)
