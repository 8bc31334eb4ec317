"""The next token of everything that runs: one batch, in which a fault of one is told apart from the others."""

import torch
from torch import Tensor

from hypic.batch import DecodeBatch
from hypic.engine.generation import Choice
from hypic.models.contract import HybridModel


def decode(model: HybridModel, choices: list[Choice]) -> list[Tensor | Exception]:
    """Read the last token of each choice. Returns float32 logits `[vocabulary]` for each, or what went wrong with it.

    A batch that raises has changed no memory (`DecodeBatch`), so each is then decoded alone: who raises again is
    guilty, and the others go on as if it had not been there.
    """
    try:
        tokens = torch.tensor([choice.last_token for choice in choices], device=choices[0].cache.keys.device)
        batch = DecodeBatch(tokens, [choice.cache for choice in choices])
        logits = model.logits(model.forward(batch))
        batch.finish()
        return list(logits)
    except Exception as error:  # of one of them, or of all together, as where memory is short
        if len(choices) == 1:
            return [error]
        return [outcome for choice in choices for outcome in decode(model, [choice])]
