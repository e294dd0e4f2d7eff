"""Where a request's keys and values are: pages, who holds them, and which prefixes they already contain."""
