"""Values that every room shares: items, operations, results, events, options and limits. No I/O."""
