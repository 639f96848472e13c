"""The address of the API server and our identity there: from a kubeconfig, or as the pod's service account.

kubernetes_asyncio reads kubeconfigs (merged files, certificates, tokens, exec plugins, OIDC); nothing else here uses it,
and it is loaded only when a kubeconfig is read. Credentials are renewed before they expire, and once more when the
server answers 401. A renewal that fails is logged and tried again; the old credentials are used until then.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.errors import ConfigurationError
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: Where the kubelet puts a pod's service account.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Files with tokens are read again so often: kubelets replace them long before they expire.
REREAD_S: Final = 60.0
#: A plugin's token is renewed when a fifth of its life is left, but no longer than this before its end.
AHEAD_S: Final = 300.0
#: After a renewal that failed, and at the least between two because of a 401.
AGAIN_S: Final = 10.0
#: A plugin that takes longer is perhaps waiting for a password at a prompt.
PLUGIN_S: Final = 60.0
_NEVER: Final = float("inf")
#: The library's errors for faulty kubeconfigs, from a missing context to a list in place of a mapping.
_WRONG: Final = (ValueError, TypeError, KeyError, AssertionError, AttributeError)


async def connect(
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    account: Path = ACCOUNT,
) -> Connection:
    """Find the API server, in the order that controllers use: as told, KUBECONFIG, our pod's account, ~/.kube/config.

    Args:
        kubeconfig: A file, or several with `:` between them.
        context: Of the kubeconfig; None = its current one.
        environ: The environment.
        account: Folder of the service account.

    Raises:
        ConfigurationError: There is no API server to be found, or the files are wrong; the message says which.
    """
    paths = str(kubeconfig) if kubeconfig is not None else environ.get("KUBECONFIG", "")
    if paths:
        return await from_kubeconfig(paths, context)
    if context is None and "KUBERNETES_SERVICE_HOST" in environ and (account / "token").exists():
        return in_cluster(environ=environ, account=account)
    usual = str(Path(environ.get("HOME", "")) / ".kube" / "config")
    if not _exists(usual):
        raise ConfigurationError(
            f"no Kubernetes cluster: neither a kubeconfig was given, nor is KUBECONFIG set, nor do we run in a pod, "
            f"nor is there {usual}"
        )
    return await from_kubeconfig(usual, context)


def in_cluster(
    *,
    environ: Mapping[str, str] = os.environ,
    account: Path = ACCOUNT,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """The API server of the cluster we run in, as our pod's service account.

    Args:
        environ: The environment.
        account: Folder of the service account; its files may be replaced at any time.
        clock: Monotonic seconds.

    Raises:
        ConfigurationError: We are in no pod, or it has no service account.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigurationError(
            "this is no pod: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set"
        )
    files = _AccountFiles(account, clock)
    namespace = files.text("namespace", "default")
    address = f"[{host}]" if ":" in host else host
    return Connection(f"https://{address}:{port}", files.context, files.headers, namespace, renew=files.renew)


async def from_kubeconfig(
    paths: str, context: str | None = None, *, clock: Callable[[], float] = time.time
) -> Connection:
    """The API server of a kubeconfig's context.

    Args:
        paths: A file, or several with `:` between them: the first that says something counts.
        context: None = the current one.
        clock: Wall-clock seconds: plugins say when their tokens end.

    Raises:
        ConfigurationError: A file is missing or wrong, or a plugin fails.
    """
    kubeconfig = _Kubeconfig(paths, context, clock)
    await kubeconfig.load()
    return kubeconfig.connection()


class _AccountFiles:
    """The files of a service account."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock
        self._headers: Mapping[str, str] = {}
        self._due = 0.0
        authority = folder / "ca.crt"
        try:
            self.context = ssl.create_default_context(cafile=authority)
            self._read()
        except OSError as error:
            raise ConfigurationError(f"the service account in {folder} cannot be read: {error}") from error

    def text(self, name: str, otherwise: str) -> str:
        """The text of a file of the folder."""
        path = self._folder / name
        return path.read_text().strip() if path.exists() else otherwise

    async def headers(self) -> Mapping[str, str]:
        """Of a request."""
        if self._clock() >= self._due:
            try:
                self._read()
            except OSError as error:
                log.warning("cannot read the service account's token", error=str(error))
                self._due = self._clock() + AGAIN_S
        return self._headers

    async def renew(self) -> bool:
        """After a 401: perhaps the token has just been replaced."""
        before = self._headers
        self._due = 0.0
        return await self.headers() != before

    def _read(self) -> None:
        token = (self._folder / "token").read_text().strip()
        if not token:
            raise OSError(f"{self._folder / 'token'} is empty")
        self._headers = {"Authorization": f"Bearer {token}"}
        self.context.load_verify_locations(cafile=self._folder / "ca.crt")  # authorities rotate, too
        self._due = self._clock() + REREAD_S


class _Kubeconfig:
    """A context of a kubeconfig, and its credentials as they are now."""

    def __init__(self, paths: str, context: str | None, clock: Callable[[], float]) -> None:
        self._paths = paths
        self._context = context
        self._clock = clock
        self._turn = asyncio.Lock()
        self._headers: Mapping[str, str] = {}
        self._due = _NEVER
        self._renewable = False
        self._loaded = 0.0
        self._tls: ssl.SSLContext | None = None
        self._settings: Any = None
        self._namespace = "default"

    def connection(self) -> Connection:
        """Of what has been loaded."""
        return Connection(
            self._settings.host.rstrip("/"),
            self._tls,
            self.headers,
            self._namespace,
            renew=self.renew,
            proxy=self._settings.proxy,
            server_name=self._settings.tls_server_name,
        )

    async def headers(self) -> Mapping[str, str]:
        """Of a request. The credentials are renewed before they end."""
        if self._clock() >= self._due:
            async with self._turn:
                if self._clock() >= self._due:
                    await self._renewed()
        return self._headers

    async def renew(self) -> bool:
        """After a 401. Many requests may come at once: the first renews for all, and all try once more."""
        async with self._turn:
            if not self._renewable:
                return False
            return self._clock() - self._loaded < AGAIN_S or await self._renewed()

    async def _renewed(self) -> bool:
        try:
            await self.load()
        except ConfigurationError as error:
            log.warning("cannot renew the credentials", error=str(error))
            self._due = self._clock() + AGAIN_S
            return False
        return True

    async def load(self) -> None:
        """Read the files, and run the plugin if there is one.

        Raises:
            ConfigurationError: They are wrong; the message says what the library said.
        """
        try:
            import yaml
            from kubernetes_asyncio.client import Configuration
            from kubernetes_asyncio.config import ConfigException, kube_config
        except ImportError as error:
            extra = "pip install 'flowsched[kubernetes]'"
            raise ConfigurationError(f"reading a kubeconfig needs an extra: {extra}") from error
        if not _exists(self._paths):
            raise ConfigurationError(f"there is no kubeconfig {self._paths}")
        settings = type.__call__(Configuration)  # not a copy of the default that other code may have set
        try:
            async with asyncio.timeout(PLUGIN_S):
                loader = await kube_config.load_kube_config(
                    self._paths, self._context, client_configuration=settings, persist_config=False
                )
            chosen: Mapping[str, Any] = loader.current_context["context"]  # type: ignore[index]
            user = _user_of(kube_config.KubeConfigMerger(self._paths).config, chosen.get("user"))
            if "host" not in vars(loader):
                raise ValueError(f"cluster {chosen.get('cluster')!r} has no server")
            self._apply(settings)
        except TimeoutError:
            raise ConfigurationError(
                f"{self._paths}: the credential plugin did not end within {PLUGIN_S:g} s"
            ) from None
        except (ConfigException, yaml.YAMLError, OSError, *_WRONG) as error:
            why = f"{type(error).__name__}: {error}" if str(error) else "something is missing in it"
            raise ConfigurationError(f"{self._paths}: {why}") from error
        self._namespace = chosen.get("namespace") or "default"
        self._loaded = self._clock()
        self._renewable = not user.keys().isdisjoint(("exec", "auth-provider", "tokenFile"))
        self._due = self._due_after(user, getattr(loader, "exec_plugin_expiry", None))

    def _apply(self, settings: Any) -> None:
        """Take over what was read. The TLS context stays the same object: its connections are in use."""
        if settings.host.startswith("https:"):
            self._tls = self._tls or ssl.create_default_context(cafile=settings.ssl_ca_cert)
            if not settings.verify_ssl:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
            if settings.cert_file:
                self._tls.load_cert_chain(settings.cert_file, settings.key_file)
        token = settings.api_key.get("BearerToken")
        headers = {"Authorization": token.strip()} if token else {}
        if headers != self._headers:
            self._headers = headers
        self._settings = settings

    def _due_after(self, user: Mapping[str, Any], expiry: Any) -> float:
        """When to load again."""
        if "exec" in user:
            if expiry is None:
                return _NEVER  # until the server says 401
            ends = float(expiry.timestamp())
            return ends - min(AHEAD_S, max(ends - self._loaded, 0.0) / 5)
        return self._loaded + REREAD_S if self._renewable else _NEVER


def _exists(paths: str) -> bool:
    return any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path)


def _user_of(config: Any, name: str | None) -> Mapping[str, Any]:
    """A kubeconfig's entry of a user; empty if there is none."""
    found = config["users"].get_with_name(name, safe=True) if name else None
    if found is None or not found.safe_get("user"):
        return {}
    user: Mapping[str, Any] = found["user"].value
    return user
