"""The built-in filters, costs and orders: one idea each, unaware of one another.

`framework.BUILT_IN_FILTERS` and the tuples beside it say which of them a cycle asks. `extension` and `profile` add those of other
packages (docs/plugins.md).
"""
