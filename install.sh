#!/bin/sh
# Installs osctl from a release: `sh install.sh [--to DIR] [--version VERSION]`.
#
# The script downloads the archive of this system and its checksum, verifies the archive, and copies the binary to
# DIR, by default ~/.local/bin. OSCTL_RELEASES is the address of the releases.
set -eu

# The release workflow inserts the address.
releases=${OSCTL_RELEASES:-@RELEASES@}

main() {
    to=${HOME:-}/.local/bin
    version=latest
    while [ $# -gt 0 ]; do
        case $1 in
            --to) to=${2:?"$(usage)"} && shift 2 ;;
            --version) version=${2:?"$(usage)"} && shift 2 ;;
            -h | --help) usage && return ;;
            *) fail "\`$1\` is unknown" "$(usage)" ;;
        esac
    done
    case $to in
        /*) ;;
        *) to=$PWD/$to ;;
    esac
    case $releases in
        @*) fail "this copy of the script does not know where the releases are" \
            "set OSCTL_RELEASES, or download install.sh from a release" ;;
    esac
    target=$(target)
    case $version in
        latest) address=$releases/latest/download ;;
        *) address=$releases/download/v${version#v} ;;
    esac
    archive=osctl-$target.tar.gz

    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    for file in "$archive" "$archive.sha256"; do
        download "$address/$file" "$folder/$file" ||
            fail "\`$address/$file\` can't be downloaded" "see $releases for the versions and systems with a release"
    done
    expected=$(cut -d ' ' -f 1 "$folder/$archive.sha256")
    found=$(checksum "$folder/$archive")
    [ "$found" = "$expected" ] ||
        fail "the checksum of \`$archive\` is $found, not $expected; nothing was installed" "run the script again"

    tar -xzf "$folder/$archive" -C "$folder"
    place "$folder/osctl-$target/bin/osctl" "$to/osctl"
    # The archive for another system also has the Linux binary for the container.
    for file in "$folder/osctl-$target/libexec/"*; do
        [ ! -f "$file" ] || place "$file" "$(dirname "$to")/libexec/${file##*/}"
    done

    echo "installed $("$to/osctl" --version) to $to/osctl"
    case :$PATH: in
        *":$to:"*) echo "next: osctl up" ;;
        *) echo "next: $to/osctl up    # $to is not on the PATH" ;;
    esac
}

usage() {
    echo "usage: sh install.sh [--to DIR] [--version VERSION]"
}

# The target in the name of a release's archive.
target() {
    case $(uname -m) in
        x86_64 | amd64) machine=x86_64 ;;
        aarch64 | arm64) machine=aarch64 ;;
        *) fail "there is no release for the architecture $(uname -m)" "compile osctl as the README describes" ;;
    esac
    case $(uname -s) in
        Linux) echo "$machine-unknown-linux-musl" ;;
        Darwin) echo "$machine-apple-darwin" ;;
        *) fail "there is no release for $(uname -s)" "compile osctl as the README describes" ;;
    esac
}

download() {
    # From an https address, curl follows no redirect to another protocol.
    if command -v curl > /dev/null; then
        case $1 in
            https:*) curl --proto '=https' -fsSL --retry 3 -o "$2" "$1" ;;
            *) curl -fsSL -o "$2" "$1" ;;
        esac
    elif command -v wget > /dev/null; then
        wget -q -O "$2" "$1"
    else
        fail "neither curl nor wget is installed" "install one of them"
    fi
}

checksum() {
    if command -v sha256sum > /dev/null; then
        sha256sum "$1" | cut -d ' ' -f 1
    else
        shasum -a 256 "$1" | cut -d ' ' -f 1
    fi
}

# Copies a file to a temporary name and renames it, so that a running osctl keeps its file.
place() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    chmod 755 "$2.new"
    mv -f "$2.new" "$2"
}

fail() {
    printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

# The last line, so that an incomplete download of the script does nothing.
main "$@"
