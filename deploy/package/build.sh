# Makes a Debian package, a tarball with the same files, and a file with the checksums of both.
# Usage: SOURCE_DATE_EPOCH=SECONDS sh build.sh PROGRAM VERSION MAN_FOLDER OUTPUT_FOLDER
# PROGRAM is taskyard; taskyard-sandbox is beside it.
# MAN_FOLDER has the manual pages that `taskyard man` writes. FAST=1 compresses little, for tests.
# The same inputs give the same bytes.
set -eu
program=$1
version=$2
man=$3
output=$4
: "${SOURCE_DATE_EPOCH:?must be set to the time of the sources, such as: git log -1 --format=%ct}"
export SOURCE_DATE_EPOCH
export LC_ALL=C TZ=UTC
umask 022
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
architecture=$(dpkg --print-architecture)
# For dpkg 0.1.0~rc.1 is before 0.1.0, but 0.1.0-rc.1 is behind it.
debian_version=$(echo "$version" | sed 's/-/~/')
name="taskyard_${debian_version}_$architecture"
root="$output/$name"
rm -rf "$root"
mkdir -p "$root"

put() {
    install -D -m "$1" "$2" "$root/$3"
}

# The program, and the one that a pool starts inside each sandbox.
put 0755 "$program" usr/bin/taskyard
put 0755 "$(dirname "$program")/taskyard-sandbox" usr/libexec/taskyard-sandbox
strip --strip-unneeded "$root/usr/bin/taskyard" "$root/usr/libexec/taskyard-sandbox"

# Manual pages and completions.
for page in "$man"/*.1; do
    put 0644 "$page" "usr/share/man/man1/$(basename "$page")"
done
gzip -9n "$root"/usr/share/man/man1/*.1
mkdir -p "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
    "$root/usr/share/fish/vendor_completions.d"
"$program" completions bash > "$root/usr/share/bash-completion/completions/taskyard"
"$program" completions zsh > "$root/usr/share/zsh/vendor-completions/_taskyard"
"$program" completions fish > "$root/usr/share/fish/vendor_completions.d/taskyard.fish"

# Units, users, configuration. The program of a package is not in /usr/local.
for unit in taskyard taskyard-pool; do
    put 0644 "$source/deploy/systemd/$unit.service" "usr/lib/systemd/system/$unit.service"
    sed -i 's|/usr/local/bin/taskyard|/usr/bin/taskyard|g' "$root/usr/lib/systemd/system/$unit.service"
done
put 0644 "$source/deploy/systemd/taskyard.sysusers" usr/lib/sysusers.d/taskyard.conf
put 0644 "$source/deploy/systemd/taskyard.yaml" etc/taskyard/taskyard.yaml

# Documents.
documents=usr/share/doc/taskyard
put 0644 "$source/CHANGELOG.md" "$documents/changelog"
gzip -9n "$root/$documents/changelog"
echo "The documents of this version are at http://127.0.0.1:7070/docs/ of a running server." > "$root/$documents/README"
chmod 0644 "$root/$documents/README"
put 0644 "$source/deploy/prometheus-rules.yaml" "$documents/prometheus-rules.yaml"
{
    echo "Taskyard is licensed under either of the following licenses, at the choice of the user."
    echo
    cat "$source/LICENSE-MIT"
    echo
    echo "The Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0."
} > "$root/$documents/copyright"
chmod 0644 "$root/$documents/copyright"

# The tarball.
tarball="taskyard-$version-linux-$architecture.tar.gz"
# In two steps: a pipe would hide a failure of tar.
tar --directory "$root" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --transform "s|^\.|taskyard-$version|" --create --file "$output/$name.tar" .
gzip -n ${FAST:+-1} < "$output/$name.tar" > "$output/$tarball"
rm "$output/$name.tar"

# What dpkg needs to know.
control="$root/DEBIAN"
mkdir "$control"
libc=$(grep -ao 'GLIBC_2\.[0-9]*' "$program" | sort -uV | tail -n 1 | cut -d _ -f 2)
[ -n "$libc" ] || { echo "$program needs no version of glibc; build it for a target with gnu" >&2; exit 1; }
size=$(du -sk --apparent-size "$root" | cut -f 1)
cat > "$control/control" <<END
Package: taskyard
Version: $debian_version
Architecture: $architecture
Maintainer: Taskyard developers <taskyard@example.org>
Installed-Size: $size
Depends: libc6 (>= $libc), libgcc-s1, systemd | systemd-standalone-sysusers
Suggests: bubblewrap
Section: net
Priority: optional
Description: task queue with priorities, delays, leases, schedules and semaphores
 Taskyard stores tasks in a folder of this machine, in PostgreSQL, in Redis or in Tarantool, and
 delivers them to workers over HTTP. This package has the server, its command line, and units of
 systemd for a server and a pool; the server is started after the installation on 127.0.0.1:7070.
END
echo /etc/taskyard/taskyard.yaml > "$control/conffiles"
for script in postinst prerm postrm; do
    install -m 0755 "$here/$script" "$control/$script"
done
(cd "$root" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
dpkg-deb ${FAST:+-Zgzip -z1} --root-owner-group --build "$root" "$output/$name.deb" > /dev/null
rm -rf "$root"
(cd "$output" && sha256sum "$name.deb" "$tarball" > "taskyard-$version-$architecture.sha256")
echo "$output/$name.deb"
echo "$output/$tarball"
