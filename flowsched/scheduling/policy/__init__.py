"""Filters, costs and orders, and the profile that names them."""
