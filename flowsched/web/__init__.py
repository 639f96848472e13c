"""Static pages, as data: `api.pages` reads them."""
