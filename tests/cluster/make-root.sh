#!/bin/bash
# Make the root file system of a node: make-root.sh SUITE MIRROR FOLDER. Called by rootfs.py in mount and PID namespaces of its
# own, so that nothing stays mounted or running, however this ends. FOLDER/perdure-pins.txt and FOLDER/perdure-core.txt hold the
# Python packages that Perdure needs.
set -euo pipefail
suite=$1 mirror=$2 root=$3
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin

debootstrap --variant=minbase "$suite" "$root/root" "$mirror"
cd "$root/root"

# Packages come the way the machine's own do: its settings for apt and pip, its resolver, its certificates.
mount -t proc proc proc
mount --rbind /dev dev
printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d
chmod 755 usr/sbin/policy-rc.d
echo "deb $mirror $suite main" >etc/apt/sources.list
rm -f etc/resolv.conf
cp -L /etc/resolv.conf etc/resolv.conf
cp -L /etc/hosts etc/hosts
apt-config dump Acquire >etc/apt/apt.conf.d/99outside
if [ -d /etc/apt/auth.conf.d ]; then cp -rL /etc/apt/auth.conf.d/. etc/apt/auth.conf.d/; fi
if [ -f /etc/apt/auth.conf ]; then cp -L /etc/apt/auth.conf etc/apt/auth.conf; fi
mkdir -p etc/ssl
mount --bind /etc/ssl etc/ssl

printf 'path-exclude /usr/share/doc/*\npath-exclude /usr/share/man/*\npath-exclude /usr/share/locale/*\n' >etc/dpkg/dpkg.cfg.d/small
printf 'force-unsafe-io\n' >etc/dpkg/dpkg.cfg.d/quick
chroot . apt-get update -q
umount etc/ssl
chroot . apt-get install -y -q --no-install-recommends \
    slurmctld slurmd slurmdbd slurm-client munge mariadb-server libslurm-dev gcc libc6-dev make \
    python3 python3-venv iproute2 util-linux procps ca-certificates openssh-server openssh-client bindfs less nano
chroot . apt-get clean
rm -rf var/lib/apt/lists/* etc/apt/apt.conf.d/99outside etc/apt/auth.conf* etc/apt/sources.list usr/sbin/policy-rc.d

# Two users of the cluster with an account, one who has nothing.
chroot . groupadd --gid 5001 projx
for user in alice:2001 bob:2002 carol:2003; do
    chroot . useradd --uid "${user#*:}" --shell /bin/bash --create-home "${user%:*}"
done
chroot . usermod --append --groups projx alice

# root reaches every node from every node, as admins have it. The keys never leave this machine.
install -d -m 700 root/.ssh
chroot . ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
cp root/.ssh/id_ed25519.pub root/.ssh/authorized_keys
sed 's/^/* /' etc/ssh/ssh_host_ed25519_key.pub >root/.ssh/known_hosts

# A database that starts fast and empty: small logs, and Slurm's user.
rm -rf var/lib/mysql
chroot . mariadb-install-db --no-defaults --user=mysql --auth-root-authentication-method=socket --skip-test-db \
    --innodb-log-file-size=8M --datadir=/var/lib/mysql >/dev/null
install -d -o "$(stat -c %u var/lib/mysql)" -g "$(stat -c %g var/lib/mysql)" run/mysqld
chroot . mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock --skip-networking \
    --innodb-log-file-size=8M &
database=$!
sql() { chroot . mariadb --no-defaults --socket=/run/mysqld/mysqld.sock "$@"; }
for _ in $(seq 600); do sql -e 'select 1' >/dev/null 2>&1 && break; sleep 0.1; done
sql -e "create database slurm_acct_db; create user slurm@localhost identified by 'pw'; grant all on slurm_acct_db.* to slurm@localhost"
kill "$database"
wait "$database" || true

# What Perdure stands on. Its own code comes from the checkout, when a node boots.
mount --bind /etc/ssl etc/ssl
if [ -f /etc/pip.conf ]; then cp -L /etc/pip.conf etc/pip.conf; fi
cp ../perdure-pins.txt ../perdure-core.txt tmp/
chroot . python3 -m venv /opt/perdure-base
chroot . /opt/perdure-base/bin/python -m pip -qq --disable-pip-version-check install --only-binary :all: \
    -c /tmp/perdure-pins.txt -r /tmp/perdure-core.txt
chroot . /opt/perdure-base/bin/python -m compileall -q /opt/perdure-base >/dev/null || true
umount etc/ssl
rm -rf etc/pip.conf etc/resolv.conf tmp/* root/.cache var/cache/apt/*
umount -R dev
umount proc
