"""Train PyG's GraphSAGE with SGCL, by hand: the loop is yours, and nothing is hidden in it."""

import torch
from torch_geometric.nn import GraphSAGE

from sgcl import SGCL, TrainConfig, linear_probe, load_graph, train
from sgcl.evaluation import random_splits


def main(steps: int = 100) -> None:
    torch.manual_seed(0)
    graph = load_graph("digits")
    splits = random_splits(graph.y)
    encoder = GraphSAGE(graph.num_features, 128, num_layers=2, out_channels=64, norm="batch_norm")
    method = SGCL(encoder, edge_drop=0.3, feature_drop=0.2)
    for step in train(method, graph, TrainConfig(steps=steps, lr=1e-3, warmup=steps // 10)):
        if step.effective_rank is not None:
            print(f"step {step.step}: loss {step.loss.item():.3f}, effective rank {step.effective_rank:.1f} of 64")
    print("embeddings:  ", linear_probe(method.embed(graph), graph.y, splits))
    print("raw features:", linear_probe(graph.x, graph.y, splits))


if __name__ == "__main__":
    main()
