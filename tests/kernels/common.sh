# shellcheck shell=sh
# What the scripts here share: where things are kept, and Debian's packages of other suites. To be sourced.

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
# Kernels and root file systems: about 3 GB. They stay until `cargo clean`, or until what makes them changes.
cache=${HAIRPIN_KERNELS:-$repository/target/kernels}
mkdir -p "$cache"

# The suite that has the kernel.
suite_of() {
    case $1 in
    6.1) echo bookworm ;;
    6.12) echo trixie ;;
    newest) echo sid ;;
    *) echo "there is no kernel '$1': 6.1, 6.12, newest" >&2 && return 1 ;;
    esac
}

# One number for these files' contents.
key_of() {
    cat "$@" | sha256sum | cut -c 1-16
}

# The sources of a suite, at the mirrors that this machine itself uses.
sources_of() {
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' | sort -u |
        while IFS='|' read -r origin label component uri; do
            case $origin/$label/$component/$1 in
            Debian/Debian/main/*) echo "deb $uri $1 main" ;;
            Debian/Debian-Security/main/sid) ;;
            Debian/Debian-Security/main/*) echo "deb $uri $1-security main" ;;
            esac
        done
}

# apt-get or apt-cache, with nothing of this machine's but its keys: `private_apt SUITE apt-get update`.
private_apt() {
    apt=$cache/apt-$1 program=$2
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    : >"$apt/status"
    [ -s "$apt/sources.list" ] || sources_of "$1" >"$apt/sources.list"
    shift 2
    "$program" -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" \
        -o APT::Sandbox::User=root -o Acquire::Retries=3 -o quiet=2 "$@"
}

# An ext4 image of a directory, with so many MiB to spare.
image_of() {
    size=$(($(du -sm --apparent-size "$1" | cut -f 1) * 12 / 10 + $(find "$1" | wc -l) / 200 + $3 + 16))
    rm -f "$2"
    mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0,lazy_itable_init=1 -m 0 -d "$1" "$2" "${size}M" >/dev/null
}
