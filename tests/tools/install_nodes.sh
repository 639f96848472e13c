#!/bin/sh
# Makes what real Kubernetes nodes on this machine need (tests/kubernetes/nodes): the control plane, kubelet, kube-proxy,
# containerd and CoreDNS, built by install_kube.sh; the images, built by install_images.sh; and from Debian runc, the CNI
# plugins, iptables and iproute2, by apt-get where they are missing and that is possible.
#
# On a machine that cannot it says so and is content, unless FLOWSCHED_REQUIRE_NODES=1: the tests that need real nodes are
# then skipped.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
if [ "${FLOWSCHED_REQUIRE_NODES:-}" = "1" ]; then export FLOWSCHED_REQUIRE_KUBE=1 FLOWSCHED_REQUIRE_IMAGES=1; fi

# The reason on stderr; a failure only where real nodes are required.
give_up() {
    echo "kube-node: $1" >&2
    if [ "${FLOWSCHED_REQUIRE_NODES:-}" = "1" ]; then exit 1; fi
    exit 0
}

packages="runc containernetworking-plugins iptables iproute2"
if ! command -v runc >/dev/null || ! command -v iptables >/dev/null || ! command -v ip >/dev/null || [ ! -x /usr/lib/cni/bridge ]; then
    command -v apt-get >/dev/null || give_up "no apt-get: install $packages"
    run=""
    [ "$(id -u)" -eq 0 ] || run="sudo -n"
    # shellcheck disable=SC2086
    {
        $run apt-get update -q && DEBIAN_FRONTEND=noninteractive $run apt-get install -q -y --no-install-recommends $packages
    } >/dev/null || give_up "$packages were not installed, see above"
fi
sh "$here/install_kube.sh" --with-nodes
sh "$here/install_images.sh" pause coredns samtools numpy flowsched
