"""Facts about this machine and its processes: identity, cost, memory, the fast dtype."""
