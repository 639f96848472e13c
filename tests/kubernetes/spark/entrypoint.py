"""Stands in for `/opt/entrypoint.sh` of Spark's images where nodes have no images: a pip-installed pyspark is the image.

Run as `entrypoint.py <SPARK_HOME> <python> <argument of the image's entry point> …`. As the original it makes a driver's or an
executor's command from the container's environment and becomes it. What it adds: hollow nodes have no mount namespace, so the
folder of Spark's configuration is where SPARK_CONF_DIR says; and no DNS, so a driver goes by its address, not by its Service.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Where an image has the configuration that Spark mounts.
_CONF = "/opt/spark/conf"


def driver(home: Path, arguments: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A driver's command: spark-submit in client mode, bound to the pod's address."""
    address = env["SPARK_DRIVER_BIND_ADDRESS"]
    conf_dir = env.get("SPARK_CONF_DIR", _CONF)
    return [
        str(home / "bin" / "spark-submit"),
        *("--conf", f"spark.driver.bindAddress={address}"),
        *("--conf", f"spark.driver.host={address}"),  # the Service's name is in the properties file
        *("--deploy-mode", "client"),
        *(each.replace(_CONF, conf_dir) for each in arguments),
    ]


def executor(home: Path, env: Mapping[str, str]) -> list[str]:
    """An executor's command: the backend that registers with the driver."""
    options = sorted(
        (int(found[1]), value)
        for name, value in env.items()
        if (found := re.fullmatch(r"SPARK_JAVA_OPT_(\d+)", name))
    )
    memory = env["SPARK_EXECUTOR_MEMORY"]
    classes = (env.get("SPARK_CONF_DIR", _CONF), env.get("SPARK_CLASSPATH", ""), f"{home}/jars/*")
    return [
        "java",
        *(value for _, value in options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        *("-cp", ":".join(each for each in classes if each)),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", env["SPARK_DRIVER_URL"]),
        *("--executor-id", env["SPARK_EXECUTOR_ID"]),
        *("--cores", env["SPARK_EXECUTOR_CORES"]),
        *("--app-id", env["SPARK_APPLICATION_ID"]),
        *("--hostname", env["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", env["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", env["SPARK_EXECUTOR_POD_NAME"]),
    ]


def main(argv: Sequence[str]) -> None:
    """Become what the container is for."""
    home, python, role, *arguments = argv
    env = {**os.environ, "SPARK_HOME": home, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    # A container's processes see the quota of its cgroup; a process of this machine would see all cores.
    env.setdefault("JDK_JAVA_OPTIONS", "-XX:ActiveProcessorCount=1 -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    if role == "driver":
        command = driver(Path(home), arguments, env)
    elif role == "executor":
        command = executor(Path(home), env)
    else:
        raise SystemExit(f"neither driver nor executor: {role}")
    os.execvpe(command[0], command, env)


if __name__ == "__main__":
    main(sys.argv[1:])
