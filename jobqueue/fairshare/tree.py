"""Fair Tree: rank users by who has had the least of what its shares promise, level by level.

Among siblings, the *level fair share* is the normalized shares divided by the normalized usage:
above 1 it had too little, below 1 too much. The tree is walked depth first, the highest level fair
share first, and users are ranked as they are met. So if project A comes before project B, all users
of A come before those of B. Ties share a rank: users with the same level fair share; a user and the
first user of a project with the same; and projects with the same are walked as one.

Source: Cox and Morrison, "Fair Tree Fairshare Algorithm",
https://slurm.schedmd.com/fair_tree.html, and `fair_tree.c` of Slurm.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True, eq=False)
class ShareNode:
    """A project or a user of the tree, with what its siblings are compared by.

    Attributes:
        shares: relative to those of its siblings; 0 puts it behind them.
        usage: the decayed usage of everything below, in any unit.
        is_user: whether it gets a rank; only projects have children.
        normalized_shares: its part of the shares of it and its siblings, from 0 to 1.
        normalized_usage: its part of their usage.
        level_fair_share: the quotient of both; infinite without usage.
        rank: the place of a user, from 1; 0 before `rank_tree`.
        factor: 1 for the first user, 1 / the number of users for the last.
    """

    id: str
    name: str
    shares: float = 1.0
    usage: float = 0.0
    is_user: bool = False
    children: Sequence["ShareNode"] = ()
    normalized_shares: float = field(default=0.0, init=False)
    normalized_usage: float = field(default=0.0, init=False)
    level_fair_share: float = field(default=0.0, init=False)
    rank: int = field(default=0, init=False)
    factor: float = field(default=0.0, init=False)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, "ShareNode"]]:
        """Yield the node and all below it with their depths, the first served first."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


def rank_tree(root: ShareNode) -> list[ShareNode]:
    """Rank the users below the root, and sort the children of each node; return the users."""
    _compare_siblings(root)
    count = sum(node.is_user for _, node in root.walk())
    users: list[ShareNode] = []
    _rank(root.children, count, users, is_tied=False)
    return users


def _compare_siblings(parent: ShareNode) -> None:
    """Set the level fair shares of all nodes below."""
    total_shares = sum(child.shares for child in parent.children)
    for child in parent.children:
        child.normalized_shares = child.shares / total_shares if total_shares else 0.0
        child.normalized_usage = child.usage / parent.usage if parent.usage else 0.0
        if not child.shares:
            child.level_fair_share = 0.0
        elif not child.usage:
            child.level_fair_share = math.inf
        else:
            # A single division, so that equal quotients of whole numbers are equal.
            promised = child.shares * parent.usage
            child.level_fair_share = promised / (total_shares * child.usage)
        _compare_siblings(child)
    parent.children = sorted(parent.children, key=_place)


def _place(node: ShareNode) -> tuple[float, bool, str]:
    """Return the sort key among siblings; of a tie, users come first."""
    return -node.level_fair_share, not node.is_user, node.name


def _rank(
    siblings: Sequence[ShareNode], count: int, users: list[ShareNode], *, is_tied: bool
) -> None:
    """Rank siblings and those below them behind the users that are ranked already.

    Args:
        siblings: the children of a project, or of all tied ones, in order.
        count: the number of users of the tree.
        users: those with ranks, to which this adds.
        is_tied: whether the first of the siblings shares the rank of the last of `users`.
    """
    previous: float | None = None
    position = 0
    while position < len(siblings):
        node = siblings[position]
        shares_rank = is_tied if position == 0 else node.level_fair_share == previous
        previous = node.level_fair_share
        if node.is_user:
            node.rank = users[-1].rank if shares_rank and users else len(users) + 1
            node.factor = (count + 1 - node.rank) / count
            users.append(node)
            position += 1
            continue
        tied = [other for other in siblings[position:] if other.level_fair_share == previous]
        children = [child for project in tied for child in project.children]
        _rank(sorted(children, key=_place), count, users, is_tied=shares_rank)
        position += len(tied)
