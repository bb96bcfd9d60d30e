"""A cluster in a box: network namespaces joined by a bridge, with links of a given bandwidth, one rank in each."""
