"""Filters, costs and orders: one idea each, unaware of one another."""
