"""The plain, obvious version of every formula: dense, float64, nothing shared with the package.

``plain_pyg`` is the same method as PyG users would write it.
"""

from itertools import pairwise

import torch
from torch import nn
from torch_geometric.nn import GCNConv


def normalized_adjacency(edge_index, num_nodes):
    """Row = receiver; d_i = 1 + distinct in-neighbours other than i; one loop per node."""
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for sender, receiver in edge_index.T.tolist():
        if sender != receiver:
            a[receiver, sender] += 1
    a += torch.eye(num_nodes, dtype=torch.float64)
    d = a.sum(dim=1)
    return a / (d.unsqueeze(1) * d.unsqueeze(0)).sqrt()


def batch_norm(h, gain, shift, mean, variance):
    return (h - mean) / (variance + 1e-5).sqrt() * gain + shift


def encode(layers, x, a, running=None):
    """Layers are (weight, bias, gain, shift, slope); ``running``: (mean, variance) per layer instead of the batch's."""
    statistics = []
    for i, (weight, bias, gain, shift, slope) in enumerate(layers):
        h = a @ (x @ weight.T) + bias
        batch = h.mean(dim=0), h.var(dim=0, unbiased=False)
        mean, variance = batch if running is None else running[i]
        statistics.append((h.mean(dim=0), h.var(dim=0, unbiased=True)))
        h = batch_norm(h, gain, shift, mean, variance)
        x = torch.where(h > 0, h, slope * h)
    return x, statistics


def predictor(target):
    centred = target - target.mean(dim=0)
    p = torch.zeros(target.shape[1], target.shape[1], dtype=target.dtype)
    for row in centred:
        if row.norm() > 0:
            unit = row / row.norm()
            p += unit.unsqueeze(1) * unit.unsqueeze(0)
    return p / (len(target) - 1)


def loss(online, target):
    prediction = online @ predictor(target)
    cosines = [(p @ t) / (p.norm() * t.norm()) for p, t in zip(prediction, target, strict=True)]
    return 1 - torch.stack(cosines).mean()


class PlainEncoder(nn.Module):
    """GCNConv, BatchNorm1d, PReLU, as in PyG's own examples."""

    def __init__(self, channels):
        super().__init__()
        sizes = list(pairwise(channels))
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(b, momentum=0.99) for _, b in sizes)
        self.activations = nn.ModuleList(nn.PReLU() for _ in sizes)

    def forward(self, x, edge_index):
        for conv, norm, activation in zip(self.convs, self.norms, self.activations, strict=True):
            x = activation(norm(conv(x, edge_index)))
        return x

    def in_order(self):
        """Parameters in the order of ``GCNEncoder.parameters()``."""
        for conv, norm, activation in zip(self.convs, self.norms, self.activations, strict=True):
            yield from (conv.lin.weight, conv.bias, norm.weight, norm.bias, activation.weight)


def plain_pyg_step(encoder, optimizer, x, edge_index, target, after=None):
    """Lines 5-9 of Algorithm 1; returns loss, gradients and the next target.

    ``after``: weights to continue with instead of the optimizer's.
    """
    encoder.train()
    online = encoder(x, edge_index)
    centred = target - target.mean(dim=0)
    rows = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    prediction = online @ (rows.T @ rows / (len(rows) - 1))
    value = 1 - torch.nn.functional.cosine_similarity(prediction, target).mean()
    optimizer.zero_grad()
    value.backward()
    gradients = [parameter.grad.clone() for parameter in encoder.in_order()]
    optimizer.step()
    encoder.eval()
    with torch.no_grad():
        for parameter, given in zip(encoder.in_order(), after or (), strict=False):
            parameter.copy_(given)
        return value.item(), gradients, encoder(x, edge_index)
