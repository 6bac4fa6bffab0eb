#!/bin/bash
# Prepares the folders that an image can't hold because mounts and restarts change them, and executes the companion.
# Commands have their full path: packages of users come first in PATH, and must not prevent the start of the container.
set -euo pipefail

/usr/bin/install -d -m 0700 /run/osctl
/usr/bin/rm -f /run/osctl/*.sock
/usr/bin/mkdir -p /data/packages

exec /opt/osctl/bin/osctl companion "$@"
