"""What every node does, whoever runs it: cache, ranges, origins, rates, meter."""
