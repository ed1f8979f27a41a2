"""Observations that are the same: what is found for one, or proven, holds for all."""

import torch
from torch import Tensor

from bcl.attacks.threat import Budget

MIX = 6364136223846793005  # odd, with well mixed bits: a product by it, modulo 2**64, loses nothing


def digest(batch: Tensor) -> Tensor:
    """(B,) one number for each sample (B, *shape), the same for the same; of others it is the same by chance alone."""
    bits = batch.flatten(1).double().contiguous().view(torch.long)
    bits = bits ^ (bits >> 32)  # else of small whole numbers the last bits would be 0
    place = (2 * torch.arange(bits.shape[1], device=bits.device) + 1) * MIX
    return (bits * ((place ^ (place >> 31)) * MIX | 1)).sum(dim=1)


def first_alike(obs: Tensor, eps: Budget = 0.0) -> Tensor:
    """(B,) the first observation that is the same at the same budget: the one itself, or an earlier one. `eps`: one
    budget, or one each. It waits for the device."""
    budgets = torch.as_tensor(eps, device=obs.device).flatten().expand(len(obs))
    _, kind = (digest(obs) * MIX + digest(budgets.unsqueeze(1))).unique(return_inverse=True)
    number = torch.arange(len(obs), device=obs.device)
    first = torch.full_like(number, len(obs)).scatter_reduce(0, kind, number, "amin")[kind]
    same = (obs == obs[first]).flatten(1).all(dim=1) & (budgets == budgets[first])
    return torch.where(same, first, number)  # others may have the same number by chance
