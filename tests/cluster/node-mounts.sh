#!/bin/bash
# The first half of a node's boot, as PID 1 of its namespaces: lay its root folder and move into it.
#   node-mounts.sh NAME ADDRESS ROLE ROOTFS OUTSIDE SOURCE
# ROOTFS is read-only; OUTSIDE is the cluster's folder, SOURCE the checkout's src. Standard input is a pipe from whoever started the
# node: its end is the node's end.
set -euo pipefail
name=$1 address=$2 role=$3 rootfs=$4 outside=$5 source=$6
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8

hostname "$name"
root=$outside/nodes/$name
lay() {
    # The node's disk: it outlives the node's boots.
    mkdir -p "$root"
    cd "$root"
    for link in bin sbin lib lib64; do [ -L "$rootfs/$link" ] && cp -P "$rootfs/$link" .; done
    mkdir -p usr local proc sys dev home shared run opt/perdure-base srv mnt tmp var/lib oldroot
    cp -a "$rootfs/etc" "$rootfs/root" .
    cp -a "$rootfs/usr/local/." local
    for part in "$rootfs"/var/*; do
        case ${part##*/} in lib | cache) ;; *) cp -a "$part" var/ ;; esac
    done
    for part in munge slurm misc private; do [ -e "$rootfs/var/lib/$part" ] && cp -a "$rootfs/var/lib/$part" var/lib/; done
    [ "$role" = head ] && cp -a "$rootfs/var/lib/mysql" var/lib/
    mkdir -p var/cache var/lib/dpkg var/spool/slurmd var/spool/slurmctld var/log/slurm
    cp -a "$outside/etc/$name/." etc/
    # What an installation made once is the same on all nodes. Its large files are never written to, so links will do.
    if [ -d "$outside/template" ]; then
        if [ -d "$outside/template/disk/opt/perdure" ]; then
            cp -al "$outside/template/disk/opt/perdure" opt/ 2>/dev/null || cp -a "$outside/template/disk/opt/perdure" opt/
        fi
        for part in etc var local; do [ -d "$outside/template/disk/$part" ] && cp -a "$outside/template/disk/$part/." "$part"; done
    fi
    touch "$root.laid"
}
[ -e "$root.laid" ] || lay
mount --bind "$root" "$root"
cd "$root"
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount --bind -o ro "$rootfs/usr" usr
mount --bind local usr/local
mount --bind -o ro "$rootfs/opt/perdure-base" opt/perdure-base
mount --bind -o ro "$rootfs/var/lib/dpkg" var/lib/dpkg

# A machine's own devices, shared memory and terminals; nothing of them is another node's.
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755,size=1m tmpfs dev
for device in null zero full random urandom tty; do cp -a "/dev/$device" dev/; done
[ -e /dev/fuse ] && cp -a /dev/fuse dev/
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t mqueue mqueue dev/mqueue
# The control groups' version 1 hierarchies, as far as the machine has them.
if [ -d /sys/fs/cgroup ] && mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup 2>/dev/null; then
    while read -r controller _ _ enabled; do
        case $enabled:$controller in
        1:freezer | 1:memory | 1:cpuset | 1:cpu | 1:cpuacct | 1:devices | 1:pids)
            mkdir "sys/fs/cgroup/$controller"
            mount -t cgroup -o "$controller" none "sys/fs/cgroup/$controller" 2>/dev/null || rmdir "sys/fs/cgroup/$controller"
            ;;
        esac
    done </proc/cgroups
fi

mkdir -m 700 run/node run/node/server run/node/server/home run/node/server/shared
mount --bind "$outside/home" run/node/server/home
mount --bind "$outside/shared" run/node/server/shared
mkdir -p "$outside/log/$name"
mount --bind "$outside/log/$name" var/log/slurm
if [ "$role" = head ]; then mount --bind "$outside/state" var/spool/slurmctld; fi
mkdir -p run/source
mount --bind -o ro "$source" run/source
cp "$(dirname "$0")/node-start.sh" run/node/start
pivot_root . oldroot
cd /
umount -l /oldroot
mount --make-rshared /
exec /bin/bash /run/node/start "$name" "$address" "$role"
