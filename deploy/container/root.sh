# Makes the root folder of the container: the program, the libraries that it loads, the root certificates of this machine.
# Usage: sh root.sh PROGRAM FOLDER
set -eu
program=$1
root=$2
install -D -m 0755 "$program" "$root/usr/local/bin/taskyard"
# A line of ldd has the path of a library after "=>", and the loader is a path alone.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    install -D -m 0755 "$library" "$root$library"
done
certificates=/etc/ssl/certs/ca-certificates.crt
if [ -e "$certificates" ]; then
    install -D -m 0644 "$certificates" "$root$certificates"
fi
# The root is read only, so what is mounted needs its folder.
mkdir -p "$root/data" "$root/dev" "$root/proc" "$root/run/secrets" "$root/sys" "$root/tmp"
echo 'taskyard:x:10001:10001::/data:/nonexistent' > "$root/etc/passwd"
echo 'taskyard:x:10001:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
