"""What a kubelet reads of a pod, as typed structs. Fields that are not here do not exist for a hollow node."""

from __future__ import annotations

from typing import Final

from msgspec import field

from flowsched.cluster.kubernetes.objects.metadata import Metadata, Read

#: The state of a pod that will not change any more.
ENDED: Final = frozenset({"Succeeded", "Failed"})


class FieldRef(Read, frozen=True):
    """A field of the pod itself: `metadata.name`, `status.podIP` …"""

    field_path: str


class KeyRef(Read, frozen=True):
    """One key of a Secret or ConfigMap."""

    name: str = ""
    key: str = ""
    optional: bool = False


class EnvSource(Read, frozen=True):
    """Where a variable's value comes from: one of these."""

    field_ref: FieldRef | None = None
    secret_key_ref: KeyRef | None = None
    config_map_key_ref: KeyRef | None = None


class EnvVar(Read, frozen=True):
    """One variable."""

    name: str
    value: str = ""
    value_from: EnvSource | None = None


class Ref(Read, frozen=True):
    """A whole Secret or ConfigMap."""

    name: str = ""
    optional: bool = False


class EnvFrom(Read, frozen=True):
    """All keys of a Secret or ConfigMap as variables."""

    prefix: str = ""
    config_map_ref: Ref | None = None
    secret_ref: Ref | None = None


class Mount(Read, frozen=True):
    """Where a container sees a volume."""

    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class Port(Read, frozen=True):
    """A port that is open in the pod, and perhaps on the node."""

    container_port: int
    name: str = ""
    host_port: int = 0
    protocol: str = "TCP"


class Resources(Read, frozen=True):
    """Quantities as they were written."""

    requests: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)


class ExecAction(Read, frozen=True):
    """A command in the container."""

    command: tuple[str, ...] = ()


class HttpAction(Read, frozen=True):
    """A GET; a port is a number, or the name of one of the container's."""

    path: str = "/"
    port: int | str = 80
    host: str = ""
    scheme: str = "HTTP"


class Probe(Read, frozen=True):
    """How a kubelet finds out whether a container has started: one of the actions."""

    exec: ExecAction | None = None
    http_get: HttpAction | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    failure_threshold: int = 3


class Container(Read, frozen=True):
    """A container, also of `initContainers`; there `restart_policy` Always makes it a native sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    volume_mounts: tuple[Mount, ...] = ()
    resources: Resources = Resources()
    ports: tuple[Port, ...] = ()
    restart_policy: str = ""
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"
    startup_probe: Probe | None = None


class KeyToPath(Read, frozen=True):
    """Where one key of a volume's source becomes a file."""

    key: str
    path: str


class MapSource(Read, frozen=True):
    """A ConfigMap as files. (`secretName` is how the secret volume alone calls it.)"""

    name: str = ""
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class HostPath(Read, frozen=True):
    """A folder of the node."""

    path: str


class Claim(Read, frozen=True):
    """A PersistentVolumeClaim by its name."""

    claim_name: str


class Volume(Read, frozen=True):
    """A volume; the kinds that are not here cannot be mounted on a hollow node."""

    name: str
    empty_dir: dict[str, object] | None = None
    config_map: MapSource | None = None
    secret: MapSource | None = None
    host_path: HostPath | None = None
    persistent_volume_claim: Claim | None = None


class Spec(Read, frozen=True):
    """`spec`."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    hostname: str = ""
    subdomain: str = ""
    host_network: bool = False
    service_account_name: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    overhead: dict[str, str] = field(default_factory=dict)
    resources: Resources = Resources()


class Status(Read, frozen=True):
    """`status`, as far as a kubelet that was restarted must know it."""

    phase: str = "Pending"
    start_time: str | None = None


class Pod(Read, frozen=True):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def key(self) -> str:
        """Its name for people: namespace/name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"/api/v1/namespaces/{self.metadata.namespace}/pods/{self.metadata.name}"

    @property
    def ended(self) -> bool:
        """Whether its phase is final."""
        return self.status.phase in ENDED

    @property
    def hostname(self) -> str:
        """What it calls itself."""
        return self.spec.hostname or self.metadata.name

    @property
    def on_host(self) -> bool:
        """Whether it is reached at its node's address; a host port is not forwarded here, so it counts."""
        return self.spec.host_network or any(
            port.host_port for container in self.spec.containers for port in container.ports
        )


def is_sidecar(container: Container) -> bool:
    """Whether an init container is a native sidecar: it starts in its turn and stays."""
    return container.restart_policy == "Always"
