# Functions that make a bare Debian 12 in a folder, for .ci/bare_debian and .ci/by_hand/run. They need root.

# The variables by which this machine reaches its package indexes; the machine in the folder gets them, too.
settings='^(PIP|UV|NPM_CONFIG|NODE_EXTRA|SSL_CERT)_|^(https?|no|all)_proxy='

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

# install_tool COMMAND PACKAGE
install_tool() {
    command -v "$1" >/dev/null && return
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends "$2" >/dev/null ||
        fail "$1 is not here, and apt-get could not install it"
}

# make_root FOLDER PACKAGES
make_root() {
    [ "$(id -u)" = 0 ] || fail "needs root, to make a machine in a folder"
    install_tool debootstrap debootstrap
    # The mirror of this machine, if it is a Debian 12, too.
    local mirror said
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' |
        head -n 1)
    mirror=${mirror:-http://deb.debian.org/debian}
    said=$(debootstrap --variant=minbase --include="$2" bookworm "$1" "$mirror" 2>&1) ||
        fail "debootstrap failed: $said"
    # Debian's installer, or its boot, would do this.
    echo '127.0.0.1 localhost' >"$1/etc/hosts"
    chmod 755 "$1"
    chmod 1777 "$1/dev/shm"
}

# copy_settings ROOT HOME
copy_settings() {
    local name file
    for name in PIP_CERT SSL_CERT_FILE NODE_EXTRA_CA_CERTS; do
        file=${!name:-}
        if [ -f "$file" ]; then cp --parents --dereference "$file" "$1"; fi
    done
    if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$1/etc"; fi
    mkdir -p "$1$2/.config"
    for name in pip uv; do
        if [ -d ~/.config/$name ]; then cp --recursive ~/.config/$name "$1$2/.config"; fi
    done
}
