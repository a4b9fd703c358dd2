"""How a feed is divided into partitions. Pure: counts come in, ranges to count and partitions come out."""
