"""The store: SQLite or PostgreSQL behind one code. SQL is written only here.

`database` opens it, `writer` writes, `workflows` reads, `lease` has the leader. Knows nothing of scheduling.
"""
