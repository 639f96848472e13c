"""Questions about a cycle, asked of a copy. Nothing in `scheduling` imports it."""
