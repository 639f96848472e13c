"""Plans of WDL workflows, and where their calls stand in them."""
