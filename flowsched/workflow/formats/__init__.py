"""Other people's documents, read into flowsched's own values. Pure mappings; each library has one module here."""
