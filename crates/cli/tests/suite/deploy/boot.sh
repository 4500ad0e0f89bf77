# Starts systemd as the first process of new namespaces, on a copy of the machine's files that disappears with it.
# $1 is a folder of the test, $2 the program, $3 the folder with the unit, $4 a control group for everything that is started.
set -e
echo 0 > "$4/cgroup.procs"
exec unshare --mount --pid --fork --uts --ipc --cgroup --propagation private --kill-child sh -ec '
    mount -t tmpfs tmpfs "$1/machine"
    cd "$1/machine"
    mkdir changes work root
    mount -t overlay overlay -o lowerdir=/,upperdir=changes,workdir=work root
    cd root
    mount -t proc proc proc
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs tmpfs dev
    for device in null zero full random urandom tty; do
        touch "dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    mkdir dev/shm dev/pts dev/mqueue dev/hugepages
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    touch dev/console
    mount --bind "$1/console" dev/console
    mount -t tmpfs tmpfs run
    mount -t tmpfs tmpfs tmp

    # No service of the machine is started.
    mkdir targets
    cp lib/systemd/system/*.target targets
    mount -t tmpfs tmpfs lib/systemd/system
    cp targets/* lib/systemd/system
    mount -t tmpfs tmpfs lib/systemd/system-generators
    mount -t tmpfs tmpfs etc/systemd/system

    mkdir -p etc/taskyard var/log usr/local/bin
    mount --bind "$1/etc" etc/taskyard
    mount --bind "$1/lib" var/lib
    mount --bind "$1/log" var/log
    touch usr/local/bin/taskyard
    mount --bind "$2" usr/local/bin/taskyard
    for unit in taskyard taskyard-pool; do
        cp "$3/$unit.service" etc/systemd/system
        mkdir "etc/systemd/system/$unit.service.d"
        printf "[Service]\nStandardOutput=append:/var/log/$unit.log\nStandardError=inherit\n" \
            > "etc/systemd/system/$unit.service.d/log.conf"
    done
    systemd-sysusers --root="$PWD" "$3/taskyard.sysusers"
    chroot . chown taskyard: /etc/taskyard/users.toml

    pivot_root . mnt
    umount -l mnt
    # As a machine has it; systemd leaves this to what starts a container.
    mount --make-rshared /
    exec env -i container=taskyard-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
' boot "$1" "$2" "$3"
