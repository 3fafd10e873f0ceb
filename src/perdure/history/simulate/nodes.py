"""The nodes of a fleet: who holds how many GPUs of which, which are down, and when each is expected to be free.

Called by the engine. Allocation is real: a GPU is held by one job at a time, and a node in repair by none.
"""

from __future__ import annotations

from bisect import bisect_right


class NodePool:
    """Nodes with equal numbers of GPUs. Times are whole seconds of the simulation."""

    def __init__(self, nodes: int, gpus_per_node: int) -> None:
        self.size = nodes
        self.gpus_per_node = gpus_per_node
        self._free = [gpus_per_node] * nodes
        # Nodes by free GPUs. Dictionaries serve as sets that keep their order, so that a seed gives the same fleet everywhere.
        self._by_free: list[dict[int, None]] = [{} for _ in range(gpus_per_node + 1)]
        self._by_free[gpus_per_node] = dict.fromkeys(reversed(range(nodes)))
        self._draining = [False] * nodes
        self._expected_free = [0] * nodes

    @property
    def idle(self) -> int:
        """Number of nodes that are up and hold no job."""
        return len(self._by_free[self.gpus_per_node])

    def has_part(self, gpus: int) -> bool:
        """Tell whether a node that already holds a job has room for `gpus` more."""
        return any(self._by_free[gpus : self.gpus_per_node])

    def take_part(self, gpus: int, expected_end: int) -> tuple[int, ...]:
        """Take `gpus` GPUs of one node, the fullest that has room, else an idle one. The caller has checked that there is one."""
        for free in range(gpus, self.gpus_per_node + 1):
            if self._by_free[free]:
                node = next(reversed(self._by_free[free]))
                del self._by_free[free][node]
                self._free[node] = free - gpus
                self._by_free[free - gpus][node] = None
                self._expected_free[node] = max(self._expected_free[node], expected_end)
                return (node,)
        raise AssertionError("no node has room: the caller checks before it takes")

    def take_nodes(self, count: int, expected_end: int) -> tuple[int, ...]:
        """Take `count` idle nodes. The caller has checked that there are as many."""
        idle = self._by_free[self.gpus_per_node]
        taken = sorted(idle.popitem()[0] for _ in range(count))
        for node in taken:
            self._free[node] = 0
            self._by_free[0][node] = None
            self._expected_free[node] = expected_end
        return tuple(taken)

    def release(self, nodes: tuple[int, ...], gpus_each: int) -> list[int]:
        """Give back `gpus_each` GPUs of each of `nodes`. Returns those that were draining and are empty now, ready for repair."""
        emptied = []
        for node in nodes:
            free = self._free[node]
            self._free[node] = free + gpus_each
            empty = free + gpus_each == self.gpus_per_node
            if empty:
                self._expected_free[node] = 0
            if self._draining[node]:
                if empty:
                    emptied.append(node)
                continue
            del self._by_free[free][node]
            self._by_free[free + gpus_each][node] = None
        return emptied

    def drain(self, node: int) -> bool:
        """Let nothing new onto `node`. Returns True when it is empty, so that its repair can begin; False when it drains already."""
        if self._draining[node]:
            return False
        self._draining[node] = True
        del self._by_free[self._free[node]][node]
        return self._free[node] == self.gpus_per_node

    def expect_back(self, node: int, when: int) -> None:
        """Note when the repair of an empty draining node will end."""
        self._expected_free[node] = when

    def repaired(self, node: int) -> None:
        """Take an empty draining node into service again."""
        self._draining[node] = False
        self._expected_free[node] = 0
        self._by_free[self.gpus_per_node][node] = None

    def reservation(self, count: int, now: int) -> tuple[int, int]:
        """Say when `count` nodes are expected to be idle at once, and how many more than that are expected to be idle by then.

        This is the reservation of EASY backfill (Lifka 1995): a job may start ahead of the one that waits if it ends before the
        first figure or fits into the second.
        """
        times = sorted(max(now, when) for when in self._expected_free)
        shadow = times[count - 1]
        return shadow, bisect_right(times, shadow) - count
