"""HTTP in, HTTP out: routes, schemas and wire formats around a Generator."""
