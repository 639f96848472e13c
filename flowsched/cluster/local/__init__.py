"""The executor of one machine: virtual nodes, and processes that outlive the service."""
