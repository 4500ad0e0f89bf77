# Runs the container with a read-only root, without capabilities, and reachable from this machine only.
# The user 10001 must be able to read the file with the token, and no other user: chown 10001 FILE; chmod 400 FILE
set -eu
exec "${ENGINE:-podman}" run --detach --name "${NAME:-taskyard}" \
    --read-only --tmpfs /tmp:rw,noexec,nosuid,nodev,size=64m \
    --user 10001:10001 --cap-drop=ALL --security-opt=no-new-privileges \
    --pids-limit=256 --memory=2g --ulimit=core=0 \
    --volume "${VOLUME:-taskyard-data}:/data" \
    --volume "${TOKEN_FILE:-/etc/taskyard/container-token}:/run/secrets/token:ro" \
    --publish "127.0.0.1:${PORT:-7070}:7070" \
    "${IMAGE:-taskyard}" "$@"
