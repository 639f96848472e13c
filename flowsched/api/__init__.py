"""HTTP in: the routes of `/api/v1`, access rules, the OpenAPI document."""
