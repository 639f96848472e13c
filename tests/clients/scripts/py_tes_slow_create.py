"""One create with so many seconds of patience: `py_tes_slow_create.py URL SECONDS`; the id, or what was raised."""

import sys

import requests
import tes

client = tes.HTTPClient(sys.argv[1], timeout=int(sys.argv[2]))
try:
    print(
        client.create_task(
            tes.Task(name="slow", executors=[tes.Executor(image="a", command=["sleep", "30"])])
        )
    )
except requests.exceptions.HTTPError:
    print("HTTPError")
