#!/bin/bash
# Prepares what an image cannot hold, because mounts and restarts change it, and becomes the companion.
# Commands are named by their full path: what users install comes first in PATH, and must not keep the
# container from starting.
set -euo pipefail

/usr/bin/install -d -m 0700 /run/osctl
/usr/bin/rm -f /run/osctl/*.sock
/usr/bin/mkdir -p /data/packages

exec /opt/osctl/bin/osctl companion "$@"
