#!/bin/sh
# Builds what the Kubernetes tests run: etcd, kube-apiserver, kube-scheduler, kube-controller-manager, kubectl, helm.
# With --with-volcano also Volcano's vc-scheduler, for the bench. With --with-nodes also what real nodes run: kubelet,
# kube-proxy, containerd, its shim and ctr, CoreDNS (`make kube-node`). Nothing is built that is there already, in the
# versions of tests/tools/kube/*/go.mod. The first time: about 7 minutes on 2 cores, with nodes about 12, and 2 GB of Go's caches.
#
# On a machine that cannot build (no Go, no module proxy) it says so and is content, unless FLOWSCHED_REQUIRE_KUBE=1: the
# tests that need the binaries are then skipped, or take those of KUBEBUILDER_ASSETS or PATH.
set -eu

here=$(cd "$(dirname "$0")/kube" && pwd)
bin="${XDG_CACHE_HOME:-$HOME/.cache}/flowsched/kube/bin"
volcano=""
nodes=""
case ${1:-} in
--with-volcano) volcano="yes" ;;
--with-nodes) nodes="yes" ;;
esac

# The reason on stderr; a failure only where the binaries are required.
give_up() {
    echo "kube-assets: $1" >&2
    if [ "${FLOWSCHED_REQUIRE_KUBE:-}" = "1" ]; then exit 1; fi
    exit 0
}

# What a target's binaries are built from: its module's versions and checksums, and this script (its flags). The target
# `kubelet` is built from the module `kubernetes`: nodes and control plane are of one version.
fingerprint() {
    cat "$(folder "$1")"/go.mod "$(folder "$1")"/go.sum "$here/../install_kube.sh" | cksum
}

folder() {
    if [ "$1" = "kubelet" ]; then echo "$here/kubernetes"; else echo "$here/$1"; fi
}

# built TARGET BINARY...: whether all of them are there, from what its module says now.
built() {
    module=$1
    shift
    [ "$(cat "$bin/.$module" 2>/dev/null)" = "$(fingerprint "$module")" ] || return 1
    for name in "$@"; do [ -x "$bin/$name" ] || return 1; done
}

# compile TARGET LDFLAGS PACKAGE...: builds into a folder of its own and moves the results, so that a build that is
# interrupted leaves nothing half done. A package's binary has the name of its last part.
compile() {
    module=$1 ldflags=$2
    shift 2
    cd "$(folder "$module")"
    nice go list -mod=readonly -deps "$@" >/dev/null || return 1  # fetches what is not there
    made=$(mktemp -d "$bin/.$module.XXXXXX")
    echo "building $module ..."
    # One command for each: with several, go build does not tell etcd's `server/v3` from a folder of that name.
    for package in "$@"; do
        name=$(basename "$package")
        [ "$package" != "go.etcd.io/etcd/server/v3" ] || name="etcd"
        [ "$package" != "volcano.sh/volcano/cmd/scheduler" ] || name="vc-scheduler"
        [ "$package" != "." ] || name="$module"
        if ! nice go build -mod=readonly -trimpath -ldflags "$ldflags" -o "$made/$name" "$package"; then
            rm -rf "$made"
            return 1
        fi
    done
    mv "$made"/* "$bin/"
    rmdir "$made"
    fingerprint "$module" >"$bin/.$module"
}

# version_of MODULE PATH: the version that a go.mod asks for.
version_of() {
    sed -n "s|^\(require\)\{0,1\}[[:space:]]*$2 \(v[^ ]*\).*|\2|p" "$here/$1/go.mod" | head -1
}

kubernetes=$(version_of kubernetes k8s.io/kubernetes)
helm=$(version_of helm helm.sh/helm/v3)
mkdir -p "$bin"

wanted=""
built helm helm || wanted="helm"
built kubernetes kube-apiserver kube-scheduler kube-controller-manager kubectl etcd || wanted="$wanted kubernetes"
[ -z "$volcano" ] || built volcano vc-scheduler || wanted="$wanted volcano"
if [ -n "$nodes" ]; then
    built kubelet kubelet kube-proxy || wanted="$wanted kubelet"
    built containerd containerd containerd-shim-runc-v2 ctr || wanted="$wanted containerd"
    built coredns coredns || wanted="$wanted coredns"
fi
if [ -z "$wanted" ]; then
    echo "Kubernetes $kubernetes and Helm $helm: $bin"
    exit 0
fi

command -v go >/dev/null || give_up "no Go on this machine: install Go 1.26 or later (https://go.dev/dl/), or set KUBEBUILDER_ASSETS"
needed=$(sed -n 's/^go //p' "$here/kubernetes/go.mod")
found=$(go env GOVERSION | sed 's/^go//; s/[^0-9.].*//')
oldest=$(printf '%s\n%s\n' "$needed" "$found" | sort -t. -k1,1n -k2,2n -k3,3n | head -1)
if [ "$oldest" != "$needed" ] && [ "$(go env GOTOOLCHAIN)" = "local" ]; then
    give_up "Go $found is too old: $needed or later is needed (or GOTOOLCHAIN=auto, which fetches one)"
fi

unreachable="see above; the modules come from GOPROXY=$(go env GOPROXY), is that reachable?"
for module in $wanted; do
    case $module in
    helm)
        compile helm "-s -w -X helm.sh/helm/v3/internal/version.version=$helm" helm.sh/helm/v3/cmd/helm ||
            give_up "Helm $helm was not built: $unreachable"
        ;;
    kubernetes)
        compile kubernetes "-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes" \
            go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl \
            k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kube-controller-manager ||
            give_up "Kubernetes $kubernetes was not built: $unreachable"
        ;;
    kubelet)
        compile kubelet "-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes" \
            k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-proxy ||
            give_up "kubelet and kube-proxy $kubernetes were not built: $unreachable"
        ;;
    containerd)
        containerd=github.com/containerd/containerd/v2/cmd
        compile containerd "-s -w -X github.com/containerd/containerd/v2/version.Version=$(version_of containerd github.com/containerd/containerd/v2)" \
            "$containerd/containerd" "$containerd/containerd-shim-runc-v2" "$containerd/ctr" ||
            give_up "containerd was not built: $unreachable"
        ;;
    coredns)
        # Without C: it runs in an image that holds nothing else.
        export CGO_ENABLED=0
        compile coredns "-s -w" . || give_up "CoreDNS was not built: $unreachable"
        unset CGO_ENABLED
        ;;
    volcano)
        compile volcano "-s -w" volcano.sh/volcano/cmd/scheduler ||
            give_up "Volcano's scheduler was not built, the bench goes without it: $unreachable"
        ;;
    esac
done
echo "Kubernetes $kubernetes and Helm $helm: $bin"
