#!/bin/sh
# Builds the container images of the tests, without a registry: install_images.sh [NAME...], by default all but `coredns`,
# which needs a binary of tests/tools/install_kube.sh.
#
# Each is a folder of tests/tools/images, is called localhost/flowsched-test/NAME:1 and becomes the file NAME.tar that podman,
# docker and containerd load. `debian` is made of Debian's packages by mmdebstrap and is what the others begin with; `python`
# stands in for the base of deploy/Dockerfile under its name, and `flowsched` is that Dockerfile as it is.
# An image is built anew where its recipe, or what it begins with, has changed.
#
# mmdebstrap and buildah, podman with runc and catatonit, which run the images in tests, and a registry are installed by apt-get
# where they are missing and that is possible, with FLOWSCHED_REQUIRE_IMAGES=1 a Docker daemon, too. On a machine that cannot
# build it says so and is content, unless FLOWSCHED_REQUIRE_IMAGES=1: the tests that need the images are then skipped.
set -eu

here=$(cd "$(dirname "$0")/images" && pwd)
root=$(cd "$here/../../.." && pwd)
home="${FLOWSCHED_TEST_IMAGES:-${XDG_CACHE_HOME:-$HOME/.cache}/flowsched/images}"
python_base="docker.io/library/python:3.11-slim"
flowsched="ghcr.io/flowsched/flowsched:0.1.0"
coredns="${XDG_CACHE_HOME:-$HOME/.cache}/flowsched/kube/bin/coredns"

# The reason on stderr; a failure only where the images are required.
give_up() {
    echo "images: $1" >&2
    if [ "${FLOWSCHED_REQUIRE_IMAGES:-}" = "1" ]; then exit 1; fi
    exit 0
}

# The image that an image begins with, and before it the one that that begins with.
bases_of() {
    case $1 in
    debian | coredns) ;;
    flowsched) echo debian python ;;
    *) echo debian ;;
    esac
}

# The name that an image is known by.
tag_of() {
    case $1 in
    python) echo "$python_base" ;;
    flowsched) echo "$flowsched" ;;
    *) echo "localhost/flowsched-test/$1:1" ;;
    esac
}

# What an image is made from: its recipe, this script, and what it begins with.
fingerprint() {
    {
        cat "$here/../install_images.sh"
        case $1 in
        coredns) cat "$here/$1/Dockerfile" "$coredns" ;;
        flowsched) cd "$root" && find deploy/Dockerfile* deploy/requirements*.txt pyproject.toml hatch_build.py README.md LICENSE flowsched migrations workflows \
            -type f -not -name '*.pyc' -not -path 'flowsched/web/ui/*' -print0 | LC_ALL=C sort -z | xargs -0 cksum ;;
        *) cat "$here/$1/Dockerfile" ;;
        esac
        for base in $(bases_of "$1"); do cat "$here/$base/Dockerfile"; done
    } | cksum
}

# buildah with a storage of our own: nothing of the machine's is touched. chroot needs no runtime and no cgroups.
build() {
    buildah --root "$home/storage" --runroot "$home/run" "$@"
}

# make NAME: the image in our storage, and its file beside it. What it begins with is there.
make() {
    name=$1
    [ "$(cat "$home/$name.made" 2>/dev/null)" != "$(fingerprint "$name")" ] || return 0
    echo "building $(tag_of "$name") ..."
    rm -f "$home/$name.made" "$home/$name.tar"
    # A storage that was lost, or is another machine's, is filled again from the file.
    for base in $(bases_of "$name"); do
        build inspect --type image "$(tag_of "$base")" >/dev/null 2>&1 || build pull -q "docker-archive:$home/$base.tar" >/dev/null
    done
    context="$here/$name" recipe="$here/$name/Dockerfile" mounts=""
    case $name in
    debian)
        context=$home/context
        rm -rf "$context" && mkdir "$context"
        mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
            --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$context/rootfs.tar" ||
            give_up "Debian's packages were not fetched, see above: is the mirror reachable?"
        ;;
    coredns)
        context=$home/context
        rm -rf "$context" && mkdir "$context" && cp "$coredns" "$context"
        ;;
    flowsched)
        context=$root recipe="$root/deploy/Dockerfile"
        # The machine's own authorities: its package index may be reached through a proxy that has one of its own.
        mounts="-v /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro"
        ;;
    esac
    # shellcheck disable=SC2086
    build bud --quiet --layers --isolation chroot --network host --pull-never $mounts \
        -f "$recipe" -t "$(tag_of "$name")" "$context" >/dev/null || give_up "$(tag_of "$name") was not built, see above"
    build push -q "$(tag_of "$name")" "docker-archive:$home/$name.tar:$(tag_of "$name")"
    rm -rf "$home/context"
    fingerprint "$name" >"$home/$name.made"
}

wanted="mmdebstrap buildah podman runc catatonit docker-registry"
# Docker's daemon starts with the machine once it is installed: nothing for the machine of somebody who only runs the tests.
[ "${FLOWSCHED_REQUIRE_IMAGES:-}" != "1" ] || wanted="$wanted docker.io"
for program in $wanted; do
    if ! command -v "$(echo "$program" | sed 's/^docker.io$/dockerd/')" >/dev/null; then
        command -v apt-get >/dev/null || give_up "no $program, and no apt-get: install $wanted"
        run=""
        [ "$(id -u)" -eq 0 ] || run="sudo -n"
        # shellcheck disable=SC2086
        {
            $run apt-get update -q && DEBIAN_FRONTEND=noninteractive $run apt-get install -q -y --no-install-recommends $wanted
        } >/dev/null || give_up "$wanted were not installed, see above"
    fi
done

mkdir -p "$home"
exec 9>"$home/.lock"
flock 9
[ $# -gt 0 ] || set -- pause samtools numpy flowsched
for image; do
    for each in $(bases_of "$image") "$image"; do make "$each"; done
    echo "$(tag_of "$image"): $(du -m "$home/$image.tar" | cut -f1) MB  ($home/$image.tar)"
done
