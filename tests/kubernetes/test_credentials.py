"""Kubeconfigs, plugins and service accounts, as people and clusters write them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api import credentials
from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.api.credentials import connect, from_kubeconfig, in_cluster
from flowsched.cluster.kubernetes.api.errors import Unreachable
from flowsched.errors import ConfigurationError
from tests.kubernetes.fake import FakeApi


def written(folder: Path, user: dict[str, Any], server: str = "http://127.0.0.1:1", **more: Any) -> Path:
    """A kubeconfig with one user, of two contexts."""
    contexts = [
        {"name": "one", "context": {"cluster": "here", "user": "me"}},
        {"name": "two", "context": {"cluster": "here", "user": "me", "namespace": "lab"}},
    ]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "here", "cluster": {"server": server, **more}}],
        "contexts": contexts,
        "users": [{"name": "me", "user": user}],
    }
    path = folder / "config"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


class Clock:
    """Wall-clock seconds that stand still."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def in_s(self, seconds: float) -> str:
        """A moment as plugins write it."""
        return datetime.fromtimestamp(self.now + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Plugin:
    """A credential plugin: each run gives the next token, and is counted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "plugin"
        self.path.write_text(
            f"#!/bin/sh\nn=$(cat {folder}/runs 2>/dev/null || echo 0)\nn=$((n + 1))\necho $n > {folder}/runs\n"
            f'test -e {folder}/fail && echo "no card in the reader" >&2 && exit 3\n'
            f'sed "s/TOKEN/token-$n/" {folder}/answer\n'
        )
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        self.lasts(None)

    def lasts(self, until: str | None) -> None:
        """When its tokens end."""
        status = {"token": "TOKEN"} | ({"expirationTimestamp": until} if until else {})
        answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        (self._folder / "answer").write_text(json.dumps(answer))

    @property
    def runs(self) -> int:
        """How often it has run."""
        path = self._folder / "runs"
        return int(path.read_text()) if path.exists() else 0

    @property
    def user(self) -> dict[str, Any]:
        """Of a kubeconfig."""
        return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(self.path)}}


async def token(connection: Connection) -> str:
    """What is sent now."""
    return (await connection.headers()).get("Authorization", "")


async def test_a_token_in_a_kubeconfig(tmp_path: Path) -> None:
    """URL, token and the namespace of the context, which is `default` where none is said."""
    path = written(tmp_path, {"token": "s3cret"})
    one, two = await from_kubeconfig(str(path)), await from_kubeconfig(str(path), "two")
    assert (one.url, one.namespace, two.namespace) == ("http://127.0.0.1:1", "default", "lab")
    assert await token(one) == "Bearer s3cret"
    assert one.ssl is None
    assert one.renew is not None
    assert await one.renew() is False


async def test_a_password_in_a_kubeconfig(tmp_path: Path) -> None:
    """Basic authentication."""
    connection = await from_kubeconfig(str(written(tmp_path, {"username": "u", "password": "p"})))
    assert await token(connection) == "Basic " + base64.b64encode(b"u:p").decode()


async def test_nobody_in_particular(tmp_path: Path) -> None:
    """A user without credentials sends none."""
    assert await token(await from_kubeconfig(str(written(tmp_path, {})))) == ""


async def test_a_token_in_a_file_is_read_again(tmp_path: Path) -> None:
    """Each minute, as something replaces it; and after a 401."""
    (tmp_path / "token").write_text("one\n")
    clock = Clock()
    connection = await from_kubeconfig(
        str(written(tmp_path, {"tokenFile": str(tmp_path / "token")})), clock=clock
    )
    assert await token(connection) == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    clock.now += 59
    assert await token(connection) == "Bearer one"
    clock.now += 2
    assert await token(connection) == "Bearer two"
    (tmp_path / "token").write_text("three\n")
    clock.now += 20
    assert connection.renew is not None
    assert await connection.renew()
    assert await token(connection) == "Bearer three"


async def test_a_plugin_runs_when_its_token_is_nearly_over(tmp_path: Path) -> None:
    """A fifth of its life before the end; until then its token is kept."""
    plugin, clock = Plugin(tmp_path), Clock()
    plugin.lasts(clock.in_s(1000))
    connection = await from_kubeconfig(str(written(tmp_path, plugin.user)), clock=clock)
    clock.now += 799
    assert (await token(connection), plugin.runs) == ("Bearer token-1", 1)
    clock.now += 2
    plugin.lasts(clock.in_s(10_000))
    assert (await token(connection), plugin.runs) == ("Bearer token-2", 2)
    clock.now += 10_000 - credentials.AHEAD_S - 1
    assert (await token(connection), plugin.runs) == ("Bearer token-2", 2)


async def test_many_requests_run_a_plugin_once(tmp_path: Path) -> None:
    """All of them wait for the one run."""
    plugin, clock = Plugin(tmp_path), Clock()
    plugin.lasts(clock.in_s(100))
    connection = await from_kubeconfig(str(written(tmp_path, plugin.user)), clock=clock)
    clock.now += 99
    plugin.lasts(clock.in_s(100))
    told = await asyncio.gather(*(token(connection) for _ in range(20)))
    assert (set(told), plugin.runs) == ({"Bearer token-2"}, 2)


async def test_a_plugin_that_fails_later_is_asked_again(tmp_path: Path) -> None:
    """The old token is used meanwhile: whether it still counts is for the server to say."""
    plugin, clock = Plugin(tmp_path), Clock()
    plugin.lasts(clock.in_s(100))
    connection = await from_kubeconfig(str(written(tmp_path, plugin.user)), clock=clock)
    (tmp_path / "fail").touch()
    clock.now += 99
    assert (await token(connection), await token(connection), plugin.runs) == ("Bearer token-1",) * 2 + (2,)
    (tmp_path / "fail").unlink()
    clock.now += credentials.AGAIN_S + 1
    plugin.lasts(clock.in_s(100))
    assert (await token(connection), plugin.runs) == ("Bearer token-3", 3)


async def test_a_401_runs_the_plugin_and_the_call_succeeds(tmp_path: Path) -> None:
    """Also where the plugin does not say when its token ends. One more try, not more."""
    plugin, clock = Plugin(tmp_path), Clock()
    async with FakeApi(tokens={"token-1"}) as api:
        connection = await from_kubeconfig(str(written(tmp_path, plugin.user, api.url)), clock=clock)
        async with Client(connection) as client:
            assert (await client.call("GET", "/version")).status == 200
            api.tokens = {"token-2"}
            clock.now += 1000
            assert (await client.call("GET", "/version")).status == 200
            api.tokens = {"none"}
            clock.now += 1000
            assert (await client.call("GET", "/version")).status == 401
        assert plugin.runs == 3
        assert api.counts["get", "/version"] == 5


async def test_many_401s_run_the_plugin_once(tmp_path: Path) -> None:
    """And all calls succeed with its token."""
    plugin, clock = Plugin(tmp_path), Clock()
    async with FakeApi(tokens={"token-2"}) as api:
        connection = await from_kubeconfig(str(written(tmp_path, plugin.user, api.url)), clock=clock)
        clock.now += 1000
        async with Client(connection) as client:
            answers = await asyncio.gather(*(client.call("GET", "/version") for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert plugin.runs == 2


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("nothing: [", "ParserError"),
        ("[]", "TypeError"),
        ('{"contexts": [], "clusters": [], "users": []}', "current-context"),
        ('{"current-context": "x", "contexts": [], "clusters": [], "users": []}', "name x"),
    ],
)
async def test_a_kubeconfig_that_is_wrong(tmp_path: Path, told: str, expected: str) -> None:
    """The message names the file and what is wrong with it."""
    path = tmp_path / "config"
    path.write_text(told)
    with pytest.raises(ConfigurationError) as wrong:
        await from_kubeconfig(str(path))
    assert str(path) in str(wrong.value)
    assert expected in str(wrong.value)


async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A file, a context, a server."""
    with pytest.raises(ConfigurationError, match="there is no kubeconfig"):
        await from_kubeconfig(str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="three"):
        await from_kubeconfig(str(written(tmp_path, {})), "three")
    for cluster, expected in (
        ({"tls-server-name": "x"}, "'here' has no server"),
        ({}, "something is missing"),
    ):
        path = written(tmp_path, {})
        document = json.loads(path.read_text())
        document["clusters"][0]["cluster"] = cluster
        path.write_text(json.dumps(document))
        with pytest.raises(ConfigurationError, match=expected):
            await from_kubeconfig(str(path))


async def test_a_plugin_that_fails_at_once(tmp_path: Path) -> None:
    """What it said is in the message."""
    plugin = Plugin(tmp_path)
    (tmp_path / "fail").touch()
    with pytest.raises(ConfigurationError, match="no card in the reader"):
        await from_kubeconfig(str(written(tmp_path, plugin.user)))


async def test_files_are_merged(tmp_path: Path) -> None:
    """The first that says something counts; one that is missing is left out."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = written(tmp_path / "a", {"token": "first"}), written(tmp_path / "b", {"token": "second"})
    document = json.loads(first.read_text())
    del document["users"]
    first.write_text(json.dumps(document))
    paths = os.pathsep.join([str(tmp_path / "none"), str(first), str(second)])
    assert await token(await from_kubeconfig(paths)) == "Bearer second"


def account(folder: Path, authority: Path, token: str = "one") -> Path:
    """The files of a service account."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(authority.read_bytes())
    (folder / "namespace").write_text("lab")
    return folder


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, its key beside it."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=fake -keyout tls.key -out tls.crt"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:kubernetes"]
    subprocess.run([*command.split(), *names], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder / "tls.crt"


ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_a_pod_is_its_service_account(tmp_path: Path, certificate: Path) -> None:
    """URL by environment, namespace and token by files, trust only in the cluster's authority."""
    connection = in_cluster(environ=ENVIRON, account=account(tmp_path / "sa", certificate))
    assert (connection.url, connection.namespace) == ("https://10.0.0.1:443", "lab")
    assert await token(connection) == "Bearer one"
    assert connection.ssl is not None
    assert connection.ssl.verify_mode is ssl.CERT_REQUIRED
    assert len(connection.ssl.get_ca_certs()) == 1
    six = in_cluster(environ={**ENVIRON, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account=tmp_path / "sa")
    assert six.url == "https://[fd00::1]:443"


async def test_a_rotated_token_is_read_again(tmp_path: Path, certificate: Path) -> None:
    """Within a minute, or after a 401; a file that is away for a moment does no harm."""
    clock = Clock()
    files = account(tmp_path / "sa", certificate)
    connection = in_cluster(environ=ENVIRON, account=files, clock=clock)
    (files / "token").unlink()
    clock.now += 61
    assert await token(connection) == "Bearer one"
    (files / "token").write_text("two\n")
    clock.now += 11
    assert await token(connection) == "Bearer two"
    (files / "token").write_text("three")
    assert await token(connection) == "Bearer two"
    assert connection.renew is not None
    assert await connection.renew()
    assert await token(connection) == "Bearer three"
    assert not await connection.renew()


async def test_outside_of_pods_there_is_no_service_account(tmp_path: Path) -> None:
    """Both the environment and the files must be there."""
    with pytest.raises(ConfigurationError, match="no pod"):
        in_cluster(environ={}, account=tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        in_cluster(environ=ENVIRON, account=tmp_path)


async def test_the_order_of_looking(tmp_path: Path, certificate: Path) -> None:
    """As told, KUBECONFIG, our pod, the home folder; nothing of it is said with what was looked for."""
    told, home = tmp_path / "told", tmp_path / "home" / ".kube"
    told.mkdir()
    home.mkdir(parents=True)
    written(told, {"token": "told"})
    written(home, {"token": "home"})
    files = account(tmp_path / "sa", certificate)
    everything = {**ENVIRON, "KUBECONFIG": str(home / "config"), "HOME": str(tmp_path / "home")}
    pod = {**ENVIRON, "HOME": str(tmp_path / "home")}
    assert await token(await connect(told / "config", environ=everything, account=files)) == "Bearer told"
    assert await token(await connect(environ=everything, account=files)) == "Bearer home"
    assert await token(await connect(environ=pod, account=files)) == "Bearer one"
    assert (
        await token(await connect(environ={"HOME": str(tmp_path / "home")}, account=files)) == "Bearer home"
    )
    with pytest.raises(ConfigurationError, match="nor do we run in a pod"):
        await connect(environ={"HOME": str(tmp_path)}, account=files)


async def test_the_servers_certificate_is_checked(tmp_path: Path, certificate: Path) -> None:
    """Trusted by its authority, or by word of the user; under another name only if that is told."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    data = {"certificate-authority-data": base64.b64encode(certificate.read_bytes()).decode()}
    async with FakeApi(tls=context) as api:

        async def status(**cluster: Any) -> int | str:
            connection = await from_kubeconfig(str(written(tmp_path, {"token": "x"}, api.url, **cluster)))
            async with Client(connection) as client:
                try:
                    return (await client.call("GET", "/version")).status
                except Unreachable as error:
                    return "sent" if error.sent else "not sent"

        assert await status(**data) == 200
        assert await status() == "not sent"
        assert await status(**{"insecure-skip-tls-verify": True}) == 200
        assert await status(**data, **{"tls-server-name": "kubernetes"}) == 200
        assert await status(**data, **{"tls-server-name": "another"}) == "not sent"
