"""Embed a graph that exists as arrays, save the model, and embed nodes that came later."""

import numpy as np

from sgcl import NodeEmbedder


def main(folder: str = "own-graph-model") -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(3, size=300)
    same = [(a, b) for a, b in rng.integers(300, size=(6000, 2)) if a != b and group[a] == group[b]]
    edges = np.array(same).T  # [2, E]
    features = rng.normal(size=(300, 16)) + np.eye(3, 16)[group]

    embedder = NodeEmbedder(dim=32, steps=60).fit(edges, features)
    embedder.save(folder)

    later = NodeEmbedder.load(folder)
    features = np.vstack([features, np.eye(3, 16)[[1]]])  # node 300, of group 1 ...
    friends = np.flatnonzero(group == 1)[:5]
    edges = np.hstack([edges, [friends, np.full(5, 300)]])  # ... joined to five of its members
    vectors = later.transform(edges, features)

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = np.argsort(-(unit[:300] @ unit[300]))[:10]
    print("groups of the ten nearest to the new node of group 1:", group[nearest])


if __name__ == "__main__":
    main()
