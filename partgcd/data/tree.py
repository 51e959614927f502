"""The folders of a walk as a tree: how many images lie below each, and what it has instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from partgcd.data.walk import Walk

_ABOUT_IMAGES = frozenset(
    {
        ".txt",
        ".xml",
        ".json",
        ".jsonl",
        ".csv",
        ".tsv",
        ".mat",
        ".npy",
        ".npz",
        ".yaml",
        ".yml",
        ".md",
        ".pdf",
    }
    | {".xmp", ".html", ".htm", ".log", ".ini", ".py", ".sh", ".ipynb", ".cache"}
)
"""Suffixes of what lies beside images and is none: a folder of nothing else was never meant as a class."""


@dataclass
class Node:
    """A folder: its path, the images in it, the folders in it, and how many images lie below."""

    path: str
    files: list[str] = field(default_factory=list)
    folders: dict[str, Node] = field(default_factory=dict)
    images: int = 0

    def full(self) -> dict[str, Node]:
        """The folders in it that have images."""
        return {name: node for name, node in self.folders.items() if node.images}


def tree_of(walk: Walk) -> Node:
    """The folder that was walked."""
    root = Node("")
    nodes = {"": root}
    # A folder is read after the one that holds it.
    for path in walk.folders:
        if path:
            above, _, name = path.rpartition("/")
            nodes[path] = nodes[above].folders[name] = Node(path)
    for path in walk.files:
        nodes[path.rpartition("/")[0]].files.append(path)
    for path in reversed(walk.folders):
        node = nodes[path]
        node.images = len(node.files) + sum(each.images for each in node.folders.values())
    return root


def images_below(node: Node) -> Iterator[str]:
    """Paths of all images in a folder."""
    yield from node.files
    for kid in node.folders.values():
        yield from images_below(kid)


def held_instead(node: Node, walk: Walk) -> tuple[Counter[str], list[str], int]:
    """Files by suffix, names of system folders, and the number of hidden ones, below a folder."""
    own = walk.folders[node.path]
    others, system, hidden = Counter(own.others), list(own.system), own.hidden
    for kid in node.folders.values():
        more = held_instead(kid, walk)
        others, system, hidden = others + more[0], system + more[1], hidden + more[2]
    return others, system, hidden


def may_be_class(node: Node, walk: Walk) -> bool:
    """Whether a folder without images looks like a class that lost them, and not like one of notes on images."""
    others, system, hidden = held_instead(node, walk)
    if others:
        return any(kind not in _ABOUT_IMAGES for kind in others)
    return bool(system or hidden) or not node.folders
