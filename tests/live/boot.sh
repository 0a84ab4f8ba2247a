#!/bin/sh
# Boots this machine's Debian a second time, in namespaces: boot.sh FOLDER CGROUP runs systemd as process 1.
#
# The booted machine has the host's files under an overlay in memory, its own /run, /tmp and /dev, and its own loopback.
# Of the host's cgroups it sees only CGROUP. The files that it must not change are mounted read-only.
# SIGKILL to its systemd is a power cut: the machine boots again with the same overlay.
set -eu
folder=$1
group=$2
stage=${3:-host}

host() { # in a mount namespace
    mkdir -p "$folder/cgroup" "$folder/layer" "$folder/root"
    mount -t cgroup2 cgroup "$folder/cgroup"
    mkdir "$folder/cgroup/$group"
    mount -t tmpfs -o size=1g,mode=755 layer "$folder/layer"
    mkdir "$folder/layer/upper" "$folder/layer/work"
    mount -t overlay -o "lowerdir=/,upperdir=$folder/layer/upper,workdir=$folder/layer/work" overlay "$folder/root"
    cd "$folder/root"
    furnish
    while :; do
        unshare --pid --fork --kill-child --mount --uts --ipc --net sh "$0" "$folder" "$group" group || :
        rm "$folder/started" # no such file: the boot has failed, and rm ends this script
    done
}

furnish() { # in the machine's root folder
    # Remove the host's services, its policy on starting services, its disks and its name.
    rm -rf etc/systemd/system etc/rc?.d etc/init.d etc/rpcsys opt/rpcsys usr/sbin/policy-rc.d
    mkdir -p etc/systemd/system etc/init.d
    : >etc/fstab
    echo booted >etc/hostname
    od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >etc/machine-id
    # Mask the units that configure the kernel, the consoles, and the units that only some Debian systems have.
    for unit in dbus.service dbus.socket dev-hugepages.mount dev-mqueue.mount getty.target kmod-static-nodes.service \
        proc-sys-fs-binfmt_misc.automount sys-fs-fuse-connections.mount sys-kernel-config.mount \
        sys-kernel-debug.mount sys-kernel-tracing.mount systemd-binfmt.service systemd-journald-audit.socket \
        systemd-logind.service systemd-modules-load.service systemd-random-seed.service systemd-sysctl.service \
        systemd-tmpfiles-setup-dev.service systemd-udevd.service; do
        ln -s /dev/null "etc/systemd/system/$unit"
    done
}

group() { # process 1: leave the cgroup to systemd, which creates groups in it
    echo 0 >"$folder/cgroup/$group/cgroup.procs"
    exec unshare --cgroup --mount sh "$0" "$folder" "$group" boot
}

boot() {
    cd "$folder/root"
    mount -t proc -o nosuid,nodev,noexec proc proc
    read_only proc/sys
    [ ! -e proc/sysrq-trigger ] || read_only proc/sysrq-trigger
    mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
    mount -t cgroup2 cgroup sys/fs/cgroup
    mount -t tmpfs -o mode=755 dev dev
    for device in null zero full random urandom tty; do
        : >"dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    mount -t tmpfs -o mode=1777 shm dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount -t tmpfs -o mode=755 run run
    mount -t tmpfs -o mode=1777 tmp tmp
    hostname booted
    ip link set lo up
    : >"$folder/started"
    mkdir run/host
    pivot_root . run/host
    umount -l run/host
    exec env -i container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --log-target=console
}

read_only() {
    mount --bind "$1" "$1"
    mount -o remount,bind,ro "$1"
}

$stage
